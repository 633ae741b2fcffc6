"""Where everything lies, in YAML."""

import dagster as dg
from pydantic import Field

from spiral_assets.components.face import Face
from spiral_assets.components.scaffolding import example
from spiral_assets.resources import standard_resources


@example(path="/data/catalog", root="/data")
class Catalog(Face):
    """Where the catalog and the checkpoints of a code location lie. One per location; its runs have one process.

    Examples:
        >>> defs = load('''
        ... type: spiral_assets.components.Catalog
        ... attributes: {path: catalog, root: .}
        ... ''')
        >>> sorted(defs.resources)
        ['catalog', 'pipes', 'runs']
    """

    path: str | None = Field(
        default=None,
        description="Folder or URI of the catalog; null is $SPIRAL_CATALOG. Caches lie under $SPIRAL_CACHE, or next to it.",
    )
    root: str | None = Field(
        default=None, description="Checkpoints lie in its folder checkpoints; null is $SPIRAL_DATA_ROOT."
    )

    def catalog_location(self) -> str | None:
        """Return where the catalog lies; None if the environment says it."""
        return self.path

    def definitions_of(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the resources and the executor."""
        del context
        return dg.Definitions(resources=standard_resources(self.path, self.root), executor=dg.in_process_executor)
