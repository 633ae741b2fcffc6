"""The text relations of the catalog, and what must hold of them before anything is built on them."""

from collections.abc import Sequence

import dagster as dg

from spiral_assets.plans import text as plans
from spiral_assets.registration import as_declared, registered, unique
from spiral_assets.resources import CatalogResource, TextsResource


def _documents(stream: str, description: str) -> dg.AssetsDefinition:
    """The relation of one stream of the mixture."""

    @dg.asset(
        key=["catalog", *plans.RELATIONS[stream].split(".")],
        group_name="catalog",
        kinds={"lance"},
        owners=["team:data"],
        tags={"domain": "text"},
        description=description,
    )
    def documents(catalog: CatalogResource, texts: TextsResource) -> dg.MaterializeResult[None]:
        import spiral_stream as spiral

        source = spiral.Lance(texts.collected().uris[stream])
        return registered(catalog.open(), plans.RELATIONS[stream], source, plans.DESCRIPTIONS)

    return documents


def _checks(stream: str, asset: dg.AssetsDefinition) -> Sequence[dg.AssetChecksDefinition]:
    """Those that stop what is built on it."""
    relation = plans.RELATIONS[stream]

    @dg.asset_check(
        asset=asset,
        blocking=True,
        description="Every identity stands once: one that is two rows cannot be found again.",
    )
    def identity_is_unique(catalog: CatalogResource) -> dg.AssetCheckResult:
        return unique(catalog.open(), relation)

    @dg.asset_check(
        asset=asset, blocking=True, description="The columns have the types that the plans were written for."
    )
    def schema_is_as_declared(catalog: CatalogResource) -> dg.AssetCheckResult:
        return as_declared(catalog.open(), relation, plans.DECLARED[stream])

    return [identity_is_unique, schema_is_as_declared]


fineweb_documents = _documents("fineweb", "What installed packages say of themselves: the demo's web pages.")
wikipedia_documents = _documents(
    "wikipedia", "Help topics and docstrings of the standard library: the demo's articles."
)
code_documents = _documents("code", "Source of the standard library, by function and class.")

fineweb_identity, fineweb_schema = _checks("fineweb", fineweb_documents)
wikipedia_identity, wikipedia_schema = _checks("wikipedia", wikipedia_documents)
code_identity, code_schema = _checks("code", code_documents)
