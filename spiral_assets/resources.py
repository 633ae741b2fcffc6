"""Resources: the catalog, the data to register, and the folder of checkpoints."""

from pathlib import Path
from typing import TYPE_CHECKING, Final

import dagster as dg
from pydantic import Field

if TYPE_CHECKING:
    import spiral_stream as spiral
    from spiral_assets.corpora.images import DrawnImages
    from spiral_assets.corpora.texts import WrittenTexts
    from spiral_assets.corpora.videos import DrawnVideos

# OpenMP's threads spin while they wait. On shared cores, sleeping is 5 times as fast (two cores under load 3.5:
# 740 images/s instead of 145); on idle cores it is 25 % slower. The stream's own threads share the cores too.
PATIENT: Final = {"OMP_WAIT_POLICY": "PASSIVE"}


class CatalogResource(dg.ConfigurableResource):  # type: ignore[type-arg]  # yields itself
    """A catalog folder. Caches are stored under ``$SPIRAL_CACHE``, or next to the catalog."""

    uri: str = Field(default=dg.EnvVar("SPIRAL_CATALOG"), description="Folder of the catalog.")

    def open(self) -> "spiral.Catalog":
        """Open the catalog; create it if it does not exist."""
        import spiral_stream as spiral

        return spiral.connect(self.uri)


class ImagesResource(dg.ConfigurableResource):  # type: ignore[type-arg]  # yields itself
    """The images to register: drawn ones under ``root``, or your own folder with one subfolder per class."""

    root: str = Field(default=dg.EnvVar("SPIRAL_DATA_ROOT"), description="Folder of drawn images.")
    folder: str = Field(
        default="", description="Folder of your own images, one subfolder per class; empty draws images."
    )
    count: int = Field(default=3_000, description="Images to draw.")
    shards: int = Field(default=8, description="Storage shards of the drawn images.")

    def drawn(self) -> "DrawnImages":
        """Draw the images, or reuse those of an earlier run with the same settings."""
        from spiral_assets.corpora.images import write_image_relation

        return write_image_relation(Path(self.root) / "images", self.count, shards=self.shards, progress=False)


class TextsResource(dg.ConfigurableResource):  # type: ignore[type-arg]  # yields itself
    """The text to register, collected from this machine under ``root``."""

    root: str = Field(default=dg.EnvVar("SPIRAL_DATA_ROOT"), description="Folder of collected text.")
    characters: int = Field(default=4_000_000, description="Approximate characters per relation.")

    def collected(self) -> "WrittenTexts":
        """Collect the three relations, or reuse those of an earlier run with the same settings."""
        from spiral_assets.corpora.texts import write_text_relations

        return write_text_relations(Path(self.root) / "texts", self.characters, progress=False)

    @property
    def tokenizer(self) -> Path:
        """File for the tokenizer that is trained on this text."""
        return Path(self.root) / "tokenizer" / "tokenizer.json"


class VideosResource(dg.ConfigurableResource):  # type: ignore[type-arg]  # yields itself
    """The videos to register: drawn and encoded ones under ``root``."""

    root: str = Field(default=dg.EnvVar("SPIRAL_DATA_ROOT"), description="Folder of drawn videos.")
    count: int = Field(default=48, description="Videos to draw.")
    shards: int = Field(default=6, description="Storage shards of the video segments.")

    def drawn(self) -> "DrawnVideos":
        """Draw the videos, or reuse those of an earlier run with the same settings."""
        from spiral_assets.corpora.videos import write_video_relations

        return write_video_relations(Path(self.root) / "videos", self.count, shards=self.shards, progress=False)


class RunsResource(dg.ConfigurableResource):  # type: ignore[type-arg]  # yields itself
    """The folder of training checkpoints."""

    root: str = Field(default=dg.EnvVar("SPIRAL_DATA_ROOT"), description="Folder of checkpoints.")

    def folder(self, context: dg.AssetExecutionContext) -> Path:
        """Return the folder of a run. Retries and re-executions of a run share one folder."""
        return Path(self.root) / "checkpoints" / (context.run.root_run_id or context.run.run_id)
