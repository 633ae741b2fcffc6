"""Where a run finds the catalog, what its relations are made of, and where training keeps its state."""

from pathlib import Path
from typing import TYPE_CHECKING, Final

import dagster as dg
from pydantic import Field

if TYPE_CHECKING:
    import spiral_stream as spiral
    from spiral_assets.corpora.images import DrawnImages
    from spiral_assets.corpora.texts import WrittenTexts
    from spiral_assets.corpora.videos import DrawnVideos

# OpenMP's threads spin while they wait; where the cores are shared, with the stream's own threads too, sleeping is
# 5 times as fast (two cores under load 3.5: 740 images/s instead of 145), and 25 % slower where they are idle.
PATIENT: Final = {"OMP_WAIT_POLICY": "PASSIVE"}


class CatalogResource(dg.ConfigurableResource):  # type: ignore[type-arg]  # yields itself
    """A catalog folder. Caches lie under ``$SPIRAL_CACHE``, else beside it."""

    uri: str = Field(default=dg.EnvVar("SPIRAL_CATALOG"), description="Folder of the catalog.")

    def open(self) -> "spiral.Catalog":
        """The catalog, made if it is not there."""
        import spiral_stream as spiral

        return spiral.connect(self.uri)


class ImagesResource(dg.ConfigurableResource):  # type: ignore[type-arg]  # yields itself
    """The images to register: drawn ones under ``root``, or a folder of class folders."""

    root: str = Field(default=dg.EnvVar("SPIRAL_DATA_ROOT"), description="Folder of drawn images.")
    folder: str = Field(default="", description="Class folders of your own images; empty draws some.")
    count: int = Field(default=3_000, description="Images to draw.")
    shards: int = Field(default=8, description="Storage shards of the drawn images.")

    def drawn(self) -> "DrawnImages":
        """The drawn images; what is there already as asked is kept."""
        from spiral_assets.corpora.images import write_image_relation

        return write_image_relation(Path(self.root) / "images", self.count, shards=self.shards, progress=False)


class TextsResource(dg.ConfigurableResource):  # type: ignore[type-arg]  # yields itself
    """The text to register: what this machine has, collected under ``root``."""

    root: str = Field(default=dg.EnvVar("SPIRAL_DATA_ROOT"), description="Folder of collected text.")
    characters: int = Field(default=4_000_000, description="Characters a relation, about.")

    def collected(self) -> "WrittenTexts":
        """The three relations; what is there already as asked is kept."""
        from spiral_assets.corpora.texts import write_text_relations

        return write_text_relations(Path(self.root) / "texts", self.characters, progress=False)

    @property
    def tokenizer(self) -> Path:
        """Where the tokenizer that is trained on them is written."""
        return Path(self.root) / "tokenizer" / "tokenizer.json"


class VideosResource(dg.ConfigurableResource):  # type: ignore[type-arg]  # yields itself
    """The videos to register: drawn and encoded ones under ``root``."""

    root: str = Field(default=dg.EnvVar("SPIRAL_DATA_ROOT"), description="Folder of drawn videos.")
    count: int = Field(default=48, description="Videos to draw.")
    shards: int = Field(default=6, description="Storage shards of their segments.")

    def drawn(self) -> "DrawnVideos":
        """The drawn videos; what is there already as asked is kept."""
        from spiral_assets.corpora.videos import write_video_relations

        return write_video_relations(Path(self.root) / "videos", self.count, shards=self.shards, progress=False)


class RunsResource(dg.ConfigurableResource):  # type: ignore[type-arg]  # yields itself
    """Where training keeps its state."""

    root: str = Field(default=dg.EnvVar("SPIRAL_DATA_ROOT"), description="Folder of checkpoints.")

    def folder(self, context: dg.AssetExecutionContext) -> Path:
        """That of a run: a retry, or a re-executed run, has the same."""
        return Path(self.root) / "checkpoints" / (context.run.root_run_id or context.run.run_id)
