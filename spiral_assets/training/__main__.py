"""Train a small network from a saved stream; go on from the checkpoint if there is one.

    python -m spiral_assets.training --catalog demo/catalog --stream images-train --validation images-validation

Every delivered batch is entered into ``ledger.jsonl`` beside the checkpoint: epoch, batch number, identities,
process. That is what proves that a resumed run saw exactly what an uninterrupted one would have.
"""

import json
import os
import time
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

import spiral_stream as spiral
from spiral_assets.training.checkpoint import Checkpoint
from spiral_assets.training.reporting import reporter


def network(classes: int) -> torch.nn.Module:
    """Four convolutions and a linear layer: 80,000 weights, for images of 64 x 64."""

    def block(before: int, after: int) -> list[torch.nn.Module]:
        convolution = torch.nn.Conv2d(before, after, 3, stride=2, padding=1)
        return [convolution, torch.nn.BatchNorm2d(after), torch.nn.ReLU()]

    blocks = [layer for pair in ((3, 16), (16, 32), (32, 64), (64, 96)) for layer in block(*pair)]
    pool = [torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(96, classes)]
    return torch.nn.Sequential(*blocks, *pool)


def accuracy(model: torch.nn.Module, stream: spiral.PreparedStream) -> float:
    """Share of right answers over the whole validation stream."""
    model.eval()
    right, total = 0, 0
    with torch.no_grad():
        for batch in stream:
            right += int((model(batch["image"]).argmax(1) == batch["label"]).sum())
            total += len(batch["label"])
    model.train()
    return right / max(1, total)


def train(
    catalog: Annotated[str, typer.Option(help="Folder of the catalog.")],
    stream: Annotated[str, typer.Option(help="Saved stream to train from.")],
    validation: Annotated[str, typer.Option(help="Saved stream to validate on.")],
    checkpoints: Annotated[Path, typer.Option(help="Folder of the state and the ledger.")],
    epochs: Annotated[int, typer.Option(help="Epochs in all.")] = 8,
    save_every: Annotated[int, typer.Option(help="Steps between checkpoints.")] = 20,
    fresh: Annotated[bool, typer.Option(help="Forget an earlier run.")] = False,
) -> None:
    """Train, checkpoint, report."""
    torch.manual_seed(0)
    kept = Checkpoint(checkpoints)
    if fresh:
        kept.clear()
    opened = spiral.connect(catalog)
    classes = opened.sql('select max(label_id) + 1 as n from "vision.imagenet_labels"').to_arrow()["n"][0].as_py()
    model = network(int(classes))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-2)
    with reporter() as report, opened.open_stream(stream, device="cpu") as batches:
        resumed = kept.load(model, optimizer, batches)
        cursor = batches.state_dict()
        report.log(
            f"process {os.getpid()}: {'resumed' if resumed else 'begun'} at epoch {cursor['epoch']}, batch {cursor['batch']}"
        )
        kept.claim(cursor)
        begun, steps, samples = time.monotonic(), 0, 0
        while batches.epoch < epochs:
            for batch in batches:
                loss = torch.nn.functional.cross_entropy(model(batch["image"]), batch["label"])
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
                optimizer.step()
                steps, samples = steps + 1, samples + len(batch["label"])
                state = batches.state_dict()
                kept.enter(state, batch["sample_id"])
                if steps % save_every == 0:
                    kept.save(model, optimizer, state)
                    report.log(f"epoch {state['epoch']}, batch {state['batch']}: loss {loss.item():.3f}")
        seconds = time.monotonic() - begun
        final = batches.state_dict()
        kept.save(model, optimizer, final)
        metrics = batches.metrics()
        with opened.open_stream(validation, device="cpu") as held_out:
            share = accuracy(model, held_out)
        facts: dict[str, Any] = {
            "accuracy": round(share, 4),
            "chance": round(1 / int(classes), 4),
            "steps": steps,
            "samples_per_s": round(samples / seconds, 1),
            "cache_hit_rate": metrics["cache_hit_rate"],
            "consumer_waited_s": round(metrics["consumer_waited_s"], 3),
            "bound_by": metrics["bound_by"],
            "resumed": resumed,
            "final_cursor": json.dumps(final),
        }
        (checkpoints / "result.json").write_text(json.dumps(facts, indent=2))
        report.done(facts)


if __name__ == "__main__":
    typer.run(train)
