"""A cache in YAML."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import dagster as dg
from pydantic import Field

from spiral_assets.assets.cache import cache_assets
from spiral_assets.components.parts import (
    Owned,
    PlanByName,
    plan_of,
    stream_of,
    wrong_deps,
    wrong_key,
    wrong_plan,
)
from spiral_assets.components.scaffolding import example
from spiral_assets.conventions import CACHES
from spiral_assets.launching.fields import DESCRIPTION, launcher_schema, wrong_launcher
from spiral_assets.launching.finding import following_sensor
from spiral_assets.reading.bounds import Hours, Positive
from spiral_assets.reading.location import Path
from spiral_assets.reading.positions import Wrong

if TYPE_CHECKING:
    import spiral_stream as spiral


@example(
    name="photos_decoded",
    plan="spiral_assets.plans.images:cache_plan",
    description="Decoded product photos.",
    deps=["catalog/shop/photos"],
)
class PlanCache(Owned):
    """The caches of a plan: built shard by shard, and built again when the plan or the data is new.

    Examples:
        >>> defs = load('''
        ... type: spiral_assets.components.PlanCache
        ... attributes:
        ...   name: photos_decoded
        ...   plan: {function: "spiral_assets.plans.standard:decoded_images", arguments: {relation: shop.photos}}
        ...   deps: [catalog/shop/photos]
        ... ''')
        >>> names(defs)
        ['caches/photos_decoded']
    """

    name: str = Field(description="The asset is caches/<name>.", examples=["photos_decoded"])
    plan: str | PlanByName = Field(description="module:function, or a function with arguments, or a saved stream.")
    deps: Sequence[str] = Field(default=(), description="The relation, and what else must be there before.")
    executor: Literal["threads", "processes", "ray"] = Field(default="threads", description="Where it is built.")
    workers: Positive | None = Field(default=None, description="How many work at a time.")
    fresh_within_h: Hours | None = Field(default=None, description="Hours within which it must be built.")
    automated: bool = Field(default=True, description="Whether it is rebuilt when its plan or its data is new.")

    launcher: dict[str, Any] | None = Field(
        default=None,
        description=DESCRIPTION,
        examples=[{"kind": "ray", "address": "http://ray-head:8265"}],
        json_schema_extra=launcher_schema(),
    )

    def wrong(self) -> Iterator[Wrong]:
        """Yield what is wrong in the attributes."""
        yield from super().wrong()
        yield from wrong_key(("name",), self.name)
        yield from wrong_deps(("deps",), self.deps, f"{CACHES}/{self.name}")
        yield from wrong_plan(("plan",), self.plan)
        yield from wrong_launcher(self.launcher)

    def opened_streams(self) -> Sequence[tuple[Path, str]]:
        """Return the saved stream whose caches are built."""
        return stream_of(("plan",), self.plan)

    def definitions_of(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the cache's asset and the check that it is complete."""
        del context
        made = cache_assets(
            self.name,
            plan=plan_of(self.plan),
            deps=self.deps,
            metadata=form,
            executor=self.executor,
            workers=self.workers,
            fresh_within_h=self.fresh_within_h,
            automated=self.automated,
            launcher=self.launcher,
            **{"description": f"The caches of {self.name}.", **self.owned()},
        )
        if self.launcher is None:
            return made
        (asset,) = (each for each in made.assets or () if isinstance(each, dg.AssetsDefinition))
        sensor = following_sensor(f"caches_{self.name}", asset, catalog=self.catalog)
        return dg.Definitions.merge(made, dg.Definitions(sensors=[sensor]))


def form(cache: "spiral.results.CacheStatus") -> Mapping[str, Any]:
    """Return in which form a cache stores a column."""
    return {f"form_of_{cache.column}": cache.form}
