"""A tokenizer in YAML."""

from collections.abc import Sequence

import dagster as dg
from pydantic import Field

from spiral_assets.assets.tokenizer import tokenizer_asset
from spiral_assets.components.parts import FunctionByName, Owned
from spiral_assets.components.scaffolding import example


@example(name="llama-tokenizer", source="$DATA/tokenizer.json")
class Tokenizer(Owned, dg.Component, dg.Resolvable):
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

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the tokenizer's asset."""
        del context
        source = self.source if isinstance(self.source, str) else self.source.named()
        return dg.Definitions(assets=[tokenizer_asset(self.name, source, deps=self.deps, **self.owned())])
