"""Where everything lies, in YAML."""

from collections.abc import Iterator
from typing import Literal

import dagster as dg
from pydantic import Field

from spiral_assets.components.face import Face
from spiral_assets.components.scaffolding import example
from spiral_assets.conventions import RESOURCE
from spiral_assets.reading.positions import Wrong
from spiral_assets.resources import standard_resources


@example(path="/data/catalog", root="/data")
class Catalog(Face):
    """Where a catalog and its checkpoints lie. A second one of a location has a name; runs have one process.

    Examples:
        >>> defs = load('''
        ... type: spiral_assets.components.Catalog
        ... attributes: {path: catalog, root: .}
        ... ''')
        >>> sorted(defs.resources)
        ['catalog', 'pipes', 'runs']
    """

    name: str = Field(
        default=RESOURCE, description="Components name it (catalog: ...), where a location has several catalogs."
    )
    path: str | None = Field(
        default=None,
        description="Folder or URI of the catalog; null is $SPIRAL_CATALOG. Caches lie under $SPIRAL_CACHE, or next to it.",
    )
    lancedb: Literal["read", "write"] | None = Field(
        default=None,
        description="Whether assets of yours may ask for lancedb, a LanceDBResource: to read its tables, or to write them too.",
    )
    root: str | None = Field(
        default=None, description="Checkpoints lie in its folder checkpoints; null is $SPIRAL_DATA_ROOT."
    )

    def wrong(self) -> Iterator[Wrong]:
        """Yield what is wrong in the attributes."""
        if not self.name.isidentifier():
            yield Wrong(("name",), f"{self.name!r} is no key of a resource: letters, digits and _ only. Rename it")

    def catalog_location(self) -> str | None:
        """Return where the catalog lies; None if the environment says it."""
        return self.path

    def definitions_of(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the resources and the executor."""
        del context
        return dg.Definitions(
            resources=standard_resources(self.path, self.root, self.name, self.lancedb), executor=dg.in_process_executor
        )
