"""A tokenizer in YAML."""

from collections.abc import Iterator, Sequence

import dagster as dg
from pydantic import Field

from spiral_assets.assets.tokenizer import tokenizer_asset
from spiral_assets.components.parts import FunctionByName, Owned, wrong_deps, wrong_name, wrong_named
from spiral_assets.components.scaffolding import example
from spiral_assets.conventions import tokenizer_key
from spiral_assets.reading.positions import Wrong


@example(name="llama-tokenizer", source="$DATA/tokenizer.json")
class Tokenizer(Owned):
    """A tokenizer, registered under a name: from a file, a folder, the Hugging Face Hub, or a function that trains one.

    Examples:
        >>> defs = load('''
        ... type: spiral_assets.components.Tokenizer
        ... attributes: {name: llama-tokenizer, source: $DATA/tokenizer.json}
        ... ''')
        >>> names(defs)
        ['tokenizers/llama_tokenizer']
    """

    name: str = Field(description="In the catalog.", examples=["llama-tokenizer"])
    source: str | FunctionByName = Field(
        description="A tokenizer.json, a folder, a Hub name; or a function that gets the catalog and returns one of them.",
        examples=["$DATA/tokenizer.json"],
    )
    deps: Sequence[str] = Field(default=(), description="Assets that the function reads.")

    def wrong(self) -> Iterator[Wrong]:
        """Yield what is wrong in the attributes."""
        yield from super().wrong()
        yield from wrong_name(("name",), self.name)
        yield from wrong_deps(("deps",), self.deps, "/".join(tokenizer_key(self.name).path))
        if self.source == "":
            yield Wrong(("source",), "it is empty. Give a tokenizer.json, a folder, a name on the Hub, or a function")
        if not isinstance(self.source, str):
            yield from wrong_named(("source",), self.source, 1)

    def definitions_of(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the tokenizer's asset."""
        del context
        source = self.source if isinstance(self.source, str) else self.source.named()
        return dg.Definitions(assets=[tokenizer_asset(self.name, source, deps=self.deps, **self.owned())])
