"""The text relations of the catalog, one per stream of the mixture."""

from collections.abc import Mapping
from typing import Final

import dagster as dg

from spiral_assets.plans import text as plans
from spiral_assets.registration import register
from spiral_assets.resources import CatalogResource, TextsResource


def _documents(stream: str, description: str) -> dg.AssetsDefinition:
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
        return register(catalog.open(), plans.RELATIONS[stream], source, plans.DESCRIPTIONS)

    return documents


fineweb_documents = _documents("fineweb", "Descriptions and READMEs of installed packages: the demo's web pages.")
wikipedia_documents = _documents(
    "wikipedia", "Help topics and docstrings of the standard library: the demo's articles."
)
code_documents = _documents("code", "Source code of the standard library, one row per function, class or short file.")
DOCUMENTS: Final[Mapping[str, dg.AssetsDefinition]] = {
    "fineweb": fineweb_documents,
    "wikipedia": wikipedia_documents,
    "code": code_documents,
}
