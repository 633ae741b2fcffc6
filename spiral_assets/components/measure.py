"""Numbers of your own in YAML."""

from collections.abc import Iterator, Sequence

import dagster as dg
from pydantic import Field

from spiral_assets.assets.measure import measure_assets
from spiral_assets.components.parts import (
    FunctionByName,
    OwnCheck,
    Owned,
    function_of,
    wrong_checks,
    wrong_deps,
    wrong_key,
    wrong_named,
)
from spiral_assets.components.scaffolding import example
from spiral_assets.conventions import STATS
from spiral_assets.reading.positions import Wrong


@example(key="shop/lengths", function="spiral_assets.plans.text_facts:token_lengths", deps=["catalog/shop/photos"])
class Measure(Owned):
    """Numbers that a function of yours measures: the asset stats/<key>.

    Examples:
        >>> defs = load('''
        ... type: spiral_assets.components.Measure
        ... attributes:
        ...   key: shop/lengths
        ...   function: spiral_assets.plans.text_facts:token_lengths
        ...   deps: [catalog/shop/texts]
        ... ''')
        >>> names(defs)
        ['stats/shop/lengths']
    """

    key: str = Field(description="The asset is stats/<key>.", examples=["text/token_lengths"])
    function: str | FunctionByName = Field(
        description="Gets the catalog; returns the data version of what it read, and metadata."
    )
    deps: Sequence[str] = Field(default=(), description="What it reads.")
    checks: Sequence[OwnCheck] = Field(default=(), description="Checks of your own.")
    automated: bool = Field(default=True, description="Whether it is measured again when its data is new.")

    def wrong(self) -> Iterator[Wrong]:
        """Yield what is wrong in the attributes."""
        yield from super().wrong()
        yield from wrong_key(("key",), *self.key.split("/"))
        yield from wrong_deps(("deps",), self.deps, f"{STATS}/{self.key}")
        yield from wrong_named(("function",), self.function, 1)
        yield from wrong_checks(self.checks)

    def definitions_of(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the asset and its checks."""
        del context
        return measure_assets(
            self.key,
            function_of(self.function),
            deps=self.deps,
            checks=[each.check() for each in self.checks],
            automated=self.automated,
            **{"description": f"Numbers of {self.key}.", **self.owned()},
        )
