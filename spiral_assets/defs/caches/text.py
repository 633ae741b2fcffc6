"""The token caches, one a relation: built shard by shard, rebuilt where the text or the tokenizer changed."""

from collections.abc import Mapping
from typing import Final

import dagster as dg

from spiral_assets.caching import built, complete
from spiral_assets.defs.relations.text import code_documents, fineweb_documents, wikipedia_documents
from spiral_assets.defs.tokenizers.text import llama_tokenizer
from spiral_assets.plans import text as plans
from spiral_assets.resources import CatalogResource

RELATIONS: Final = {"fineweb": fineweb_documents, "wikipedia": wikipedia_documents, "code": code_documents}


def _tokens(stream: str) -> dg.AssetsDefinition:
    """The cache of one relation. Its code version is the recipe; which tokenizer it was, its data version says."""

    @dg.asset(
        key=["caches", f"{stream}_tokens"],
        group_name="caches",
        kinds={"lance"},
        owners=["team:data"],
        tags={"domain": "text"},
        description=f"The tokens of every document of {plans.RELATIONS[stream]}, in two bytes each.",
        code_version=plans.cache_code_version(stream),
        deps=[RELATIONS[stream], llama_tokenizer],
        pool="decode",
    )
    def tokens(context: dg.AssetExecutionContext, catalog: CatalogResource) -> dg.MaterializeResult[None]:
        with plans.cache_plan(catalog.open(), stream).to_numpy() as every:
            (cache,) = every.caches()
            return built(context, every, {"tokenizer": plans.TOKENIZER, "tokens_are": cache.form})

    return tokens


def _complete(asset: dg.AssetsDefinition, stream: str) -> dg.AssetChecksDefinition:
    @dg.asset_check(asset=asset, blocking=True, description="Every row of the relation, as it is now, is in the cache.")
    def cache_is_complete(catalog: CatalogResource) -> dg.AssetCheckResult:
        with plans.cache_plan(catalog.open(), stream).to_numpy() as every:
            return complete(every)

    return cache_is_complete


fineweb_tokens, wikipedia_tokens, code_tokens = _tokens("fineweb"), _tokens("wikipedia"), _tokens("code")
CACHES: Final[Mapping[str, dg.AssetsDefinition]] = {
    "fineweb": fineweb_tokens,
    "wikipedia": wikipedia_tokens,
    "code": code_tokens,
}
fineweb_is_complete = _complete(fineweb_tokens, "fineweb")
wikipedia_is_complete = _complete(wikipedia_tokens, "wikipedia")
code_is_complete = _complete(code_tokens, "code")
