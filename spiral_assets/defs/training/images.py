"""Trains on images: a process of its own, told where the stream is, resumed where it was killed."""

import sys

import dagster as dg
from pydantic import Field

from spiral_assets.defs.streams.images import images_stream
from spiral_assets.plans import images as plans
from spiral_assets.resources import PATIENT, CatalogResource, RunsResource


class TrainingConfig(dg.Config):
    """How long to train, and how often to keep the state."""

    epochs: int = Field(default=plans.EPOCHS, description="Epochs in all, those before a resume included.")
    save_every: int = Field(default=0, description="Steps between checkpoints; 0 keeps four an epoch.")


@dg.asset(
    key=["models", "images_cnn"],
    group_name="training",
    kinds={"pytorch"},
    owners=["team:training"],
    tags={"domain": "images"},
    deps=[images_stream],
    check_specs=[
        dg.AssetCheckSpec(
            "beats_chance",
            asset=["models", "images_cnn"],
            description="The network answers better than the most frequent class, by three standard deviations.",
        )
    ],
    retry_policy=dg.RetryPolicy(max_retries=2),
)
def images_cnn(
    context: dg.AssetExecutionContext,
    config: TrainingConfig,
    catalog: CatalogResource,
    runs: RunsResource,
    pipes: dg.PipesSubprocessClient,
) -> dg.MaterializeResult:  # type: ignore[type-arg]  # with a check there are two outputs, which [None] denies
    """A small network trained from the saved stream; a retry, or a re-executed run, goes on at the exact next batch."""
    save_every = ["--save-every", str(config.save_every)] if config.save_every else []
    command = [
        *(sys.executable, "-m", "spiral_assets.training", "images"),
        *("--folder", str(runs.folder(context)), "--catalog", catalog.uri, "--stream", plans.TRAIN),
        *("--validation", plans.VALIDATION, "--epochs", str(config.epochs), *save_every),
    ]
    return pipes.run(context=context, command=command, env=PATIENT).get_materialize_result()
