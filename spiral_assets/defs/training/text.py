"""Trains on text: a process of its own, told where the stream is, resumed where it was killed."""

import sys

import dagster as dg
from pydantic import Field

from spiral_assets.defs.streams.text import text_stream
from spiral_assets.plans import text as plans
from spiral_assets.resources import PATIENT, CatalogResource, RunsResource


class TextTrainingConfig(dg.Config):
    """How long to train, and how often to keep the state."""

    steps: int = Field(default=plans.STEPS, description="Steps in all, those before a resume included.")
    save_every: int = Field(default=plans.SAVE_EVERY, description="Steps between checkpoints.")


@dg.asset(
    key=["models", "text_lm"],
    group_name="training",
    kinds={"pytorch", "huggingface"},
    owners=["team:training"],
    tags={"domain": "text"},
    deps=[text_stream],
    check_specs=[
        dg.AssetCheckSpec(
            "beats_chance",
            asset=["models", "text_lm"],
            description="The model predicts tokens better than by taking all for equally likely, by half a nat.",
        )
    ],
    retry_policy=dg.RetryPolicy(max_retries=2),
)
def text_lm(
    context: dg.AssetExecutionContext,
    config: TextTrainingConfig,
    catalog: CatalogResource,
    runs: RunsResource,
    pipes: dg.PipesSubprocessClient,
) -> dg.MaterializeResult:  # type: ignore[type-arg]  # with a check there are two outputs, which [None] denies
    """A small causal language model from the saved stream; a retry, or a re-executed run, goes on at the next batch."""
    command = [
        *(sys.executable, "-m", "spiral_assets.training", "text"),
        *("--folder", str(runs.folder(context)), "--catalog", catalog.uri, "--stream", plans.TRAIN),
        *("--tokenizer", plans.TOKENIZER, "--steps", str(config.steps), "--save-every", str(config.save_every)),
    ]
    return pipes.run(context=context, command=command, env=PATIENT).get_materialize_result()
