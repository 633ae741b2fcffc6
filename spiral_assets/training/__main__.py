"""Train a small model from a saved stream; resume from the checkpoint if there is one.

    python -m spiral_assets.training images --folder runs/one
    python -m spiral_assets.training text --folder runs/two
    python -m spiral_assets.training video --folder runs/three

Every delivered batch is recorded in ``ledger.jsonl`` in the folder. This proves that a resumed run saw exactly what
an uninterrupted run would have seen.
"""

# ruff: noqa: E402
from pathlib import Path
from typing import Annotated, Any

import typer

from spiral_assets import need

need("torch", "demo", "spiral_assets.training")  # the imports below would say it worse

import spiral_stream as spiral
from spiral_assets.plans import images as image_plans
from spiral_assets.plans import text as text_plans
from spiral_assets.plans import video as video_plans
from spiral_assets.training.loop import train
from spiral_assets.training.run import TrainingRun
from spiral_assets.training.score import Score, score

CHECKPOINTS_PER_EPOCH = 4
PLANS = (
    "spiral_assets.plans"  # a saved stream may name its functions, also where this package is installed as a library
)

Folder = Annotated[Path, typer.Option(help="Folder of the run: state, ledger, result.")]
CatalogFolder = Annotated[str | None, typer.Option(help="Folder or URI of the catalog.", envvar="SPIRAL_CATALOG")]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def images(
    folder: Folder,
    catalog: CatalogFolder = None,
    stream: Annotated[str, typer.Option(help="Saved stream to train from.")] = image_plans.TRAIN,
    validation: Annotated[str, typer.Option(help="Saved stream to validate on.")] = image_plans.VALIDATION,
    labels: Annotated[str, typer.Option(help="Relation of class names.")] = image_plans.LABELS,
    epochs: Annotated[
        int, typer.Option(min=1, help="Total epochs, including those before a resume.")
    ] = image_plans.EPOCHS,
    save_every: Annotated[int, typer.Option(min=0, help="Steps between checkpoints; 0 saves four per epoch.")] = 0,
) -> None:
    """Train a classifier of images."""
    from spiral_assets.training.images import Classifier

    opened = spiral.connect(catalog)
    classes = _classes(opened, labels, image_plans.LABEL)
    with opened.open_stream(stream, trust=PLANS, device="cpu") as batches:
        per_epoch = len(batches)
        if per_epoch == 0:
            msg = f"stream {stream!r} has fewer images than one batch. Register more, or save it with a smaller batch_size"
            raise typer.BadParameter(msg)
        batches.bind(epochs=epochs)
        learner, steps = Classifier(classes), epochs * per_epoch
        with TrainingRun(folder, batches, name=stream, steps=steps) as run:
            train(learner, run, steps, save_every or max(1, per_epoch // CHECKPOINTS_PER_EPOCH))
            with opened.open_stream(validation, trust=PLANS, device="cpu") as held_out:
                found = score(learner.model, held_out, "image")
            _judged(run, found, {"steps_per_epoch": per_epoch})


@app.command()
def text(
    folder: Folder,
    catalog: CatalogFolder = None,
    stream: Annotated[str, typer.Option(help="Saved stream to train from.")] = text_plans.TRAIN,
    tokenizer: Annotated[str, typer.Option(help="Registered tokenizer of the stream.")] = text_plans.TOKENIZER,
    steps: Annotated[int, typer.Option(min=1, help="Total steps, including those before a resume.")] = text_plans.STEPS,
    save_every: Annotated[int, typer.Option(min=1, help="Steps between checkpoints.")] = text_plans.SAVE_EVERY,
) -> None:
    """Train a causal language model."""
    from spiral_assets.training.text import Predictor, judge

    opened = spiral.connect(catalog)
    learner = Predictor(opened.tokenizer(tokenizer).vocab_size, text_plans.BUDGET)
    with (
        opened.open_stream(stream, trust=PLANS, device="cpu") as batches,
        TrainingRun(folder, batches, name=stream, steps=steps, unit=learner.UNIT) as run,
    ):
        train(learner, run, steps, save_every)
        with opened.open_stream(stream, trust=PLANS, device="cpu") as following:
            following.load_state_dict(batches.state_dict())
            found = judge(learner, following)  # on the batches that would come next
        facts = {
            "loss": round(found.loss, 4),
            "chance": round(found.chance, 4),
            "beats_chance": found.beats_chance,
            "weights": sum(weight.numel() for weight in learner.model.parameters()),
        }
        run.check("beats_chance", found.beats_chance, {"loss": facts["loss"], "chance": facts["chance"]})
        run.done(facts)


@app.command()
def video(
    folder: Folder,
    catalog: CatalogFolder = None,
    stream: Annotated[str, typer.Option(help="Saved stream to train from.")] = video_plans.TRAIN,
    validation: Annotated[str, typer.Option(help="Saved stream to validate on.")] = video_plans.VALIDATION,
    steps: Annotated[
        int, typer.Option(min=1, help="Total steps, including those before a resume.")
    ] = video_plans.STEPS,
    save_every: Annotated[int, typer.Option(min=1, help="Steps between checkpoints.")] = video_plans.SAVE_EVERY,
) -> None:
    """Train a classifier of how things move in clips."""
    from spiral_assets.training.video import MovementClassifier

    opened = spiral.connect(catalog)
    learner = MovementClassifier(_classes(opened, video_plans.LABELS, video_plans.LABEL))
    with (
        opened.open_stream(stream, trust=PLANS, device="cpu") as batches,
        TrainingRun(folder, batches, name=stream, steps=steps, unit=learner.UNIT) as run,
    ):
        train(learner, run, steps, save_every)
        with opened.open_stream(validation, trust=PLANS, device="cpu") as held_out:
            found = score(learner.model, held_out, "frames")
        _judged(run, found, {})


def _classes(catalog: spiral.Catalog, relation: str, column: str) -> int:
    """Return the number of classes; labels count from 0."""
    return int(catalog.table(relation).aggregate(last=(column, "max")).to_arrow()["last"][0].as_py()) + 1


def _judged(run: TrainingRun, found: Score, more: dict[str, Any]) -> None:
    """Report the accuracy of a classifier against chance."""
    facts = {
        "accuracy": round(found.accuracy, 4),
        "chance": round(found.chance, 4),
        "beats_chance": found.beats_chance,
        "validated_on": found.samples,
        **more,
    }
    run.check("beats_chance", found.beats_chance, {"accuracy": facts["accuracy"], "chance": facts["chance"]})
    run.done(facts)


if __name__ == "__main__":
    app()
