"""The token caches, one per relation: rebuilt where the text or the tokenizer changed."""

from collections.abc import Mapping
from functools import partial
from typing import Final

import dagster as dg

from spiral_assets.assets import cache_asset
from spiral_assets.cache_rebuilds import token_code_version
from spiral_assets.defs.relations.text import DOCUMENTS
from spiral_assets.defs.tokenizers.text import llama_tokenizer
from spiral_assets.plans import text as plans


def _tokens(stream: str) -> dg.AssetsDefinition:
    """The cache of one stream's relation. Its data version covers the tokenizer's content, its code version the name."""
    return cache_asset(
        f"{stream}_tokens",
        domain="text",
        plan=partial(plans.cache_plan, stream=stream),
        code_version=token_code_version(stream),
        deps=[DOCUMENTS[stream], llama_tokenizer],
        description=f"Tokens of every document in {plans.RELATIONS[stream]}, two bytes per token.",
        metadata=lambda cache: {"tokenizer": plans.TOKENIZER, "tokens_are": cache.form},
    )


fineweb_tokens, wikipedia_tokens, code_tokens = (_tokens(stream) for stream in ("fineweb", "wikipedia", "code"))
CACHES: Final[Mapping[str, dg.AssetsDefinition]] = {
    "fineweb": fineweb_tokens,
    "wikipedia": wikipedia_tokens,
    "code": code_tokens,
}
