"""Train a small network from a saved stream; go on from the checkpoint if there is one.

    python -m spiral_assets.training --folder runs/one

Every delivered batch is entered into ``ledger.jsonl`` in the folder: that is what proves that a resumed run
saw exactly what an uninterrupted one would have.
"""

import os
import time
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

import spiral_stream as spiral
from spiral_assets import plans
from spiral_assets.training.checkpoint import Checkpoint
from spiral_assets.training.network import Score, network, score
from spiral_assets.training.reporting import Reporter, reporter

CHECKPOINTS_AN_EPOCH = 4
LEARNING_RATE = 2e-3


class Training:
    """A model, its optimizer, and the stream they are fed from."""

    def __init__(self, stream: spiral.PreparedStream, classes: int, kept: Checkpoint, save_every: int | None) -> None:
        torch.manual_seed(0)
        self.model = network(classes)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=LEARNING_RATE, weight_decay=1e-2)
        self.kept = kept
        self.stream = stream
        self.steps = len(stream)  # of a whole epoch
        self.save_every = save_every or max(1, self.steps // CHECKPOINTS_AN_EPOCH)
        self.epochs: list[dict[str, Any]] = []  # of this process

    def epoch(self, report: Reporter) -> None:
        """Train from the cursor to the end of its epoch."""
        number, begun, samples, losses = self.stream.epoch, time.monotonic(), 0, list[float]()
        for batch in self.stream:
            losses.append(self._step(batch["image"], batch["label"]))
            samples += len(batch["label"])
            state = self.stream.state_dict()
            self.kept.enter(state, batch, self.steps)
            if state["batch"] % self.save_every == 0:
                self.kept.save(self.model, self.optimizer, state)
                report.log(f"epoch {number}, batch {state['batch']}/{self.steps}: loss {losses[-1]:.3f}")
        rate = samples / (time.monotonic() - begun)
        loss = sum(losses) / max(1, len(losses))
        self.epochs.append({"epoch": number, "steps": len(losses), "loss": round(loss, 4), "samples/s": round(rate, 1)})

    def _step(self, images: torch.Tensor, labels: torch.Tensor) -> float:
        loss = torch.nn.functional.cross_entropy(self.model(images), labels)
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.optimizer.step()
        return loss.item()


def main(
    folder: Annotated[Path, typer.Option(help="Folder of the run: state, ledger, result.")],
    catalog: Annotated[str | None, typer.Option(help="Folder of the catalog.", envvar="SPIRAL_CATALOG")] = None,
    stream: Annotated[str, typer.Option(help="Saved stream to train from.")] = plans.TRAIN,
    validation: Annotated[str, typer.Option(help="Saved stream to validate on.")] = plans.VALIDATION,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs in all.")] = 8,
    save_every: Annotated[
        int | None, typer.Option(min=1, help="Batches between checkpoints; else four an epoch.")
    ] = None,
) -> None:
    """Train, checkpoint, report."""
    kept, opened = Checkpoint(folder), spiral.connect(catalog)
    labels = opened.table(plans.LABELS).aggregate(last=(plans.LABEL, "max")).to_arrow()["last"][0].as_py()
    with reporter() as report, kept.alone(report.log), opened.open_stream(stream, device="cpu") as batches:
        training = Training(batches, int(labels) + 1, kept, save_every)
        if training.steps == 0:
            msg = f"stream {stream!r} has fewer images than one batch; register more, or save it with a smaller batch_size"
            raise typer.BadParameter(msg)
        resumed = kept.load(training.model, training.optimizer, batches)
        state = batches.state_dict()
        report.log(
            f"process {os.getpid()} {'resumes' if resumed else 'begins'} at epoch {state['epoch']}, batch {state['batch']}"
        )
        while batches.epoch < epochs:
            training.epoch(report)
        final = batches.state_dict()
        kept.save(training.model, training.optimizer, final)
        with opened.open_stream(validation, device="cpu") as held_out:
            found = score(training.model, held_out)
        facts = _facts(training, found, batches.metrics(), resumed)
        kept.keep_result({**facts, "epochs": training.epochs, "final_cursor": final})
        report.check("beats_chance", found.beats_chance, {"accuracy": facts["accuracy"], "chance": facts["chance"]})
        report.done({**facts, "epochs": _table(training.epochs), "final_cursor": {"raw_value": final, "type": "json"}})


def _facts(training: Training, found: Score, metrics: dict[str, Any], resumed: bool) -> dict[str, Any]:
    steps = sum(epoch["steps"] for epoch in training.epochs)
    rates = sorted(epoch["samples/s"] for epoch in training.epochs)
    return {
        "accuracy": round(found.accuracy, 4),
        "chance": round(found.chance, 4),
        "beats_chance": found.beats_chance,
        "validated_on": found.samples,
        "steps_of_this_process": steps,
        "steps_per_epoch": training.steps,
        "samples_per_s": rates[len(rates) // 2] if rates else 0.0,
        "cache_hit_rate": 0.0 if metrics["cache_hit_rate"] is None else round(metrics["cache_hit_rate"], 4),
        "waited_for_data_s": round(metrics["consumer_waited_s"], 3),
        "bound_by": metrics["bound_by"],
        "resumed": resumed,
        "checkpoint": str(training.kept.folder.resolve()),
    }


def _table(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Rows as the table of Dagster Pipes; a run that had nothing left to train has none."""
    if not rows:
        return {"raw_value": "nothing was left to train", "type": "text"}
    schema = [{"name": name, "type": type(value).__name__} for name, value in rows[0].items()]
    return {"raw_value": {"records": rows, "schema": schema}, "type": "table"}


if __name__ == "__main__":
    typer.run(main)
