"""Train on images in a process of its own, which resumes where it was killed."""

import dagster as dg
from pydantic import Field

from spiral_assets.assets import training_asset
from spiral_assets.defs.streams.images import images_stream
from spiral_assets.plans import images as plans


class TrainingConfig(dg.Config):
    """How long to train, and how often to save a checkpoint."""

    epochs: int = Field(default=plans.EPOCHS, description="Total epochs, including those before a resume.")
    save_every: int = Field(default=0, description="Steps between checkpoints; 0 saves four per epoch.")


images_cnn = training_asset(
    "images_cnn",
    "images",
    TrainingConfig,
    deps=[images_stream],
    description="A small network trained from the saved stream. A retry, or a re-executed run, resumes at the next batch.",
    check="The network is more accurate than always naming the most frequent class, by three standard deviations.",
)
