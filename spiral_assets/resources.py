"""Where a run finds the catalog, and what the image relation is made of."""

from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg

if TYPE_CHECKING:
    import spiral_stream as spiral


class CatalogResource(dg.ConfigurableResource):  # type: ignore[type-arg]  # yields itself
    """A catalog folder. Caches lie beside it, or under ``$SPIRAL_CACHE``."""

    uri: str = dg.EnvVar("SPIRAL_CATALOG")

    def open(self) -> "spiral.Catalog":
        """The catalog, made if it is not there."""
        import spiral_stream as spiral

        return spiral.connect(self.uri)


class ImagesResource(dg.ConfigurableResource):  # type: ignore[type-arg]  # yields itself
    """The images to register: drawn ones under ``root``, or a folder of class folders."""

    root: str = dg.EnvVar("SPIRAL_DATA_ROOT")
    folder: str = ""  # class folders of somebody's own images; empty draws some
    count: int = 3_000
    shards: int = 8

    @property
    def checkpoints(self) -> Path:
        """Where training keeps its state."""
        return Path(self.root) / "checkpoints"
