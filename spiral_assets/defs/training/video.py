"""Trains on video: a process of its own, told where the stream is, resumed where it was killed."""

import sys

import dagster as dg
from pydantic import Field

from spiral_assets.defs.streams.video import video_stream
from spiral_assets.plans import video as plans
from spiral_assets.resources import PATIENT, CatalogResource, RunsResource


class VideoTrainingConfig(dg.Config):
    """How long to train, and how often to keep the state."""

    steps: int = Field(default=plans.STEPS, description="Steps in all, those before a resume included.")
    save_every: int = Field(default=plans.SAVE_EVERY, description="Steps between checkpoints.")


@dg.asset(
    key=["models", "video_cnn"],
    group_name="training",
    kinds={"pytorch"},
    owners=["team:training"],
    tags={"domain": "video"},
    deps=[video_stream],
    check_specs=[
        dg.AssetCheckSpec(
            "beats_chance",
            asset=["models", "video_cnn"],
            description="The network answers better than the most frequent class, by three standard deviations.",
        )
    ],
    retry_policy=dg.RetryPolicy(max_retries=2),
)
def video_cnn(
    context: dg.AssetExecutionContext,
    config: VideoTrainingConfig,
    catalog: CatalogResource,
    runs: RunsResource,
    pipes: dg.PipesSubprocessClient,
) -> dg.MaterializeResult:  # type: ignore[type-arg]  # with a check there are two outputs, which [None] denies
    """A small network that learns movement from the saved stream; a retry, or a re-executed run, goes on at the next batch."""
    command = [
        *(sys.executable, "-m", "spiral_assets.training", "video"),
        *("--folder", str(runs.folder(context)), "--catalog", catalog.uri, "--stream", plans.TRAIN),
        *("--validation", plans.VALIDATION, "--steps", str(config.steps), "--save-every", str(config.save_every)),
    ]
    return pipes.run(context=context, command=command, env=PATIENT).get_materialize_result()
