"""Compares what a killed and resumed run was given with what an uninterrupted run is given."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import spiral_stream as spiral
from spiral_assets import plans


@final
@dataclass(frozen=True, slots=True)
class Proof:
    """What the comparison found."""

    batches: int  # of the whole run
    equal: int  # of them, with the identities of an uninterrupted run, in order
    before: int  # delivered by the killed process and kept by its checkpoint
    resumed_pid: int
    resumed_epoch: int
    resumed_batch: int
    complete: bool  # the resumed process began at the checkpoint and delivered every batch from there, once

    @property
    def exact(self) -> bool:
        """Whether the run as a whole saw exactly what an uninterrupted one would."""
        return self.complete and self.equal == self.batches


def prove(catalog: str, folder: Path, epochs: int, show: Callable[[str], None]) -> Proof:
    """Read the ledger of a run, and iterate the same stream uninterrupted.

    Args:
        catalog: folder of the catalog.
        folder: where the run kept its ledger.
        epochs: how many it trained.
        show: gets EXPLAIN DATA of the stream.
    """
    lines = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
    claim = json.loads((folder / "process.json").read_text())
    start = (claim["epoch"], claim["batch"])
    first = [line for line in lines if line["pid"] != claim["pid"] and (line["epoch"], line["batch"]) < start]
    second = [line for line in lines if line["pid"] == claim["pid"]]
    run = first + second
    with spiral.connect(catalog).open_stream(plans.TRAIN, device="cpu", epoch=0) as stream:
        steps = len(stream)
        expected = [(epoch, batch) for epoch in range(epochs) for batch in range(steps)]
        whole = _uninterrupted(stream, epochs)
        show(str(stream.explain(analyze=True)))
    equal = sum(line["ids"] == ids for line, ids in zip(run, whole, strict=False))
    places = [(line["epoch"], line["batch"]) for line in run]
    return Proof(len(expected), equal, len(first), claim["pid"], *start, places == expected)


def _uninterrupted(stream: spiral.PreparedStream, epochs: int) -> list[Any]:
    found = []
    while stream.epoch < epochs:
        found += [batch["sample_id"] for batch in stream]
    return found
