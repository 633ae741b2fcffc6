"""Train a small model from a saved stream; go on from the checkpoint if there is one.

    python -m spiral_assets.training images --folder runs/one
    python -m spiral_assets.training text --folder runs/two
    python -m spiral_assets.training video --folder runs/three

Every delivered batch is entered into ``ledger.jsonl`` in the folder: that is what proves that a resumed run
saw exactly what an uninterrupted one would have.
"""

from pathlib import Path
from typing import Annotated, Any

import typer

import spiral_stream as spiral
from spiral_assets.plans import images as image_plans
from spiral_assets.plans import text as text_plans
from spiral_assets.plans import video as video_plans
from spiral_assets.training.checkpoint import Checkpoint
from spiral_assets.training.loop import Training
from spiral_assets.training.reporting import Reporter, as_table, reporter
from spiral_assets.training.score import Score, score

CHECKPOINTS_AN_EPOCH = 4
PLANS = (
    "spiral_assets.plans"  # whose functions a saved stream may name, also where this package is installed as a library
)

Folder = Annotated[Path, typer.Option(help="Folder of the run: state, ledger, result.")]
CatalogFolder = Annotated[str | None, typer.Option(help="Folder of the catalog.", envvar="SPIRAL_CATALOG")]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def images(
    folder: Folder,
    catalog: CatalogFolder = None,
    stream: Annotated[str, typer.Option(help="Saved stream to train from.")] = image_plans.TRAIN,
    validation: Annotated[str, typer.Option(help="Saved stream to validate on.")] = image_plans.VALIDATION,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs in all.")] = image_plans.EPOCHS,
    save_every: Annotated[int, typer.Option(min=0, help="Steps between checkpoints; 0 saves four per epoch.")] = 0,
) -> None:
    """A classifier of images."""
    from spiral_assets.training.images import Classifier

    kept, opened = Checkpoint(folder), spiral.connect(catalog)
    classes = _classes(opened, image_plans.LABELS, image_plans.LABEL)
    with reporter() as report, kept.alone(report.log), opened.open_stream(stream, trust=PLANS, device="cpu") as batches:
        an_epoch = len(batches)
        if an_epoch == 0:
            msg = f"stream {stream!r} has fewer images than one batch; register more, or save it with a smaller batch_size"
            raise typer.BadParameter(msg)
        learner = Classifier(classes)
        every = save_every or max(1, an_epoch // CHECKPOINTS_AN_EPOCH)
        training = Training(learner, batches, kept, epochs * an_epoch, every)
        final = training.run(report)
        with opened.open_stream(validation, trust=PLANS, device="cpu") as held_out:
            found = score(learner.model, held_out, "image")
        _judged(report, training, final, found, {"steps_per_epoch": an_epoch})


@app.command()
def text(
    folder: Folder,
    catalog: CatalogFolder = None,
    stream: Annotated[str, typer.Option(help="Saved stream to train from.")] = text_plans.TRAIN,
    tokenizer: Annotated[str, typer.Option(help="Registered tokenizer of the stream.")] = text_plans.TOKENIZER,
    steps: Annotated[int, typer.Option(min=1, help="Steps in all.")] = text_plans.STEPS,
    save_every: Annotated[int, typer.Option(min=1, help="Steps between checkpoints.")] = text_plans.SAVE_EVERY,
) -> None:
    """A causal language model."""
    from spiral_assets.training.text import Predictor, judge

    kept, opened = Checkpoint(folder), spiral.connect(catalog)
    vocabulary = opened.tokenizer(tokenizer).vocab_size
    with reporter() as report, kept.alone(report.log), opened.open_stream(stream, trust=PLANS, device="cpu") as batches:
        learner = Predictor(vocabulary, text_plans.BUDGET)
        training = Training(learner, batches, kept, steps, save_every)
        final = training.run(report)
        found = judge(learner, batches)  # on what would come next
        facts = {
            "loss": round(found.loss, 4),
            "chance": round(found.chance, 4),
            "beats_chance": found.beats_chance,
            "weights": sum(weight.numel() for weight in learner.model.parameters()),
            **training.facts(),
        }
        report.check("beats_chance", found.beats_chance, {"loss": facts["loss"], "chance": facts["chance"]})
        _done(report, training, facts, final)


@app.command()
def video(
    folder: Folder,
    catalog: CatalogFolder = None,
    stream: Annotated[str, typer.Option(help="Saved stream to train from.")] = video_plans.TRAIN,
    validation: Annotated[str, typer.Option(help="Saved stream to validate on.")] = video_plans.VALIDATION,
    steps: Annotated[int, typer.Option(min=1, help="Steps in all.")] = video_plans.STEPS,
    save_every: Annotated[int, typer.Option(min=1, help="Steps between checkpoints.")] = video_plans.SAVE_EVERY,
) -> None:
    """A classifier of what moves in clips, and how."""
    from spiral_assets.training.video import MovementClassifier

    kept, opened = Checkpoint(folder), spiral.connect(catalog)
    classes = _classes(opened, video_plans.LABELS, video_plans.LABEL)
    with reporter() as report, kept.alone(report.log), opened.open_stream(stream, trust=PLANS, device="cpu") as batches:
        learner = MovementClassifier(classes)
        training = Training(learner, batches, kept, steps, save_every)
        final = training.run(report)
        with opened.open_stream(validation, trust=PLANS, device="cpu") as held_out:
            found = score(learner.model, held_out, "frames")
        _judged(report, training, final, found, {})


def _classes(catalog: spiral.Catalog, relation: str, column: str) -> int:
    """How many labels there are, from 0."""
    return int(catalog.table(relation).aggregate(last=(column, "max")).to_arrow()["last"][0].as_py()) + 1


def _judged(report: Reporter, training: Training, final: dict[str, Any], found: Score, more: dict[str, Any]) -> None:
    """Tell how a classifier did, against chance."""
    facts = {
        "accuracy": round(found.accuracy, 4),
        "chance": round(found.chance, 4),
        "beats_chance": found.beats_chance,
        "validated_on": found.samples,
        **more,
        **training.facts(),
    }
    report.check("beats_chance", found.beats_chance, {"accuracy": facts["accuracy"], "chance": facts["chance"]})
    _done(report, training, facts, final)


def _done(report: Reporter, training: Training, facts: dict[str, Any], final: dict[str, Any]) -> None:
    """Keep what came out, and tell it."""
    training.kept.keep_result({**facts, "progress": training.progress, "final_cursor": final})
    cursor = {"raw_value": final, "type": "json"}
    report.done({**facts, "progress": as_table(training.progress), "final_cursor": cursor})


if __name__ == "__main__":
    app()
