"""The training job: a process of its own, told where the stream is, resumed where it was killed."""

import sys

import dagster as dg

from spiral_assets import plans
from spiral_assets.defs.streams.assets import images_stream
from spiral_assets.resources import CatalogResource, ImagesResource


class TrainingConfig(dg.Config):
    """How long to train, and how often to keep the state."""

    epochs: int = 8
    save_every: int = 20
    fresh: bool = False  # forget the checkpoint of an earlier run


@dg.asset(
    key=["models", "images_cnn"],
    group_name="training",
    kinds={"pytorch"},
    owners=["team:training"],
    tags={"domain": "images"},
    deps=[images_stream],
    retry_policy=dg.RetryPolicy(max_retries=2),
)
def images_cnn(
    context: dg.AssetExecutionContext,
    config: TrainingConfig,
    catalog: CatalogResource,
    images: ImagesResource,
    pipes: dg.PipesSubprocessClient,
) -> dg.MaterializeResult[None]:
    """A small network trained from the saved stream; a retry goes on at the exact next batch."""
    fresh = ["--fresh"] if config.fresh and context.retry_number == 0 else []
    command = [
        *(sys.executable, "-m", "spiral_assets.training", "--catalog", catalog.uri, "--stream", plans.TRAIN),
        *("--validation", plans.VALIDATION, "--checkpoints", str(images.checkpoints)),
        *("--epochs", str(config.epochs), "--save-every", str(config.save_every), *fresh),
    ]
    return pipes.run(context=context, command=command).get_materialize_result()
