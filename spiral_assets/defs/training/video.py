"""Train on video in a process of its own, which resumes where it was killed."""

import dagster as dg
from pydantic import Field

from spiral_assets.assets import training_asset
from spiral_assets.defs.streams.video import video_stream
from spiral_assets.plans import video as plans


class VideoTrainingConfig(dg.Config):
    """How long to train, and how often to save a checkpoint."""

    steps: int = Field(default=plans.STEPS, description="Total steps, including those before a resume.")
    save_every: int = Field(default=plans.SAVE_EVERY, description="Steps between checkpoints.")


video_cnn = training_asset(
    "video_cnn",
    "video",
    VideoTrainingConfig,
    deps=[video_stream],
    description="A small network that learns how things move, trained from the saved stream. A retry, or a re-executed "
    "run, resumes at the next batch.",
    check="The network is more accurate than always naming the most frequent class, by three standard deviations.",
)
