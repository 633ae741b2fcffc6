"""Train on text in a process of its own, which resumes where it was killed."""

import dagster as dg
from pydantic import Field

from spiral_assets.assets import training_asset
from spiral_assets.defs.streams.text import text_stream
from spiral_assets.plans import text as plans


class TextTrainingConfig(dg.Config):
    """How long to train, and how often to save a checkpoint."""

    steps: int = Field(default=plans.STEPS, description="Total steps, including those before a resume.")
    save_every: int = Field(default=plans.SAVE_EVERY, description="Steps between checkpoints.")


text_lm = training_asset(
    "text_lm",
    "text",
    TextTrainingConfig,
    deps=[text_stream],
    description="A small causal language model trained from the saved stream. A retry, or a re-executed run, resumes at "
    "the next batch.",
    check="The model predicts tokens better than a uniform guess over the vocabulary, by half a nat.",
    kinds=frozenset({"pytorch", "huggingface"}),
)
