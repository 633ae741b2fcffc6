"""Where a run finds the catalog, and what the image relation is made of."""

from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg
from pydantic import Field

if TYPE_CHECKING:
    import spiral_stream as spiral
    from spiral_assets.demo.images import DrawnImages


class CatalogResource(dg.ConfigurableResource):  # type: ignore[type-arg]  # yields itself
    """A catalog folder. Caches lie under ``$SPIRAL_CACHE``, else beside it."""

    uri: str = Field(default=dg.EnvVar("SPIRAL_CATALOG"), description="Folder of the catalog.")

    def open(self) -> "spiral.Catalog":
        """The catalog, made if it is not there."""
        import spiral_stream as spiral

        return spiral.connect(self.uri)


class ImagesResource(dg.ConfigurableResource):  # type: ignore[type-arg]  # yields itself
    """The images to register: drawn ones under ``root``, or a folder of class folders."""

    root: str = Field(default=dg.EnvVar("SPIRAL_DATA_ROOT"), description="Folder of drawn images and checkpoints.")
    folder: str = Field(default="", description="Class folders of your own images; empty draws some.")
    count: int = Field(default=3_000, description="Images to draw.")
    shards: int = Field(default=8, description="Storage shards of the drawn images.")

    def drawn(self) -> "DrawnImages":
        """The drawn images; what is there already as asked is kept."""
        from spiral_assets.demo.images import write_image_relation

        return write_image_relation(Path(self.root) / "images", self.count, shards=self.shards, progress=False)

    @property
    def checkpoints(self) -> Path:
        """Where training keeps its state, a folder a run."""
        return Path(self.root) / "checkpoints"
