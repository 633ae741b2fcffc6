"""Compare the batches of a killed and resumed run with those of an uninterrupted run."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any, final

import spiral_stream as spiral
from spiral_assets.training.checkpoint import digest, identities

Line = dict[str, Any]


@final
@dataclass(frozen=True, slots=True)
class Proof:
    """Result of the comparison. Figures count batches."""

    expected: int  # in an uninterrupted run
    run: int  # in the killed and resumed run
    same_ids: int  # with the same identities, in order, as the uninterrupted run
    same_tensors: int  # with the same tensors, bit for bit
    as_planned: int  # with the identities that the plan predicts without iterating
    repeated: int  # delivered between the checkpoint and the kill, and again after the resume
    repeated_alike: int  # repeated batches that were the same both times
    processes: int
    resumed_at: tuple[int, int]  # epoch and batch

    @property
    def exact(self) -> bool:
        """Whether the killed run saw exactly the batches of an uninterrupted run."""
        counts = {self.expected, self.run, self.same_ids, self.same_tensors, self.as_planned}
        return len(counts) == 1 and self.repeated_alike == self.repeated


def prove(catalog: str, ledger: Path, stream: str, steps: int | None = None) -> Proof:
    """Read the ledger of a run, and iterate the same stream without interruption.

    Args:
        catalog: folder of the catalog.
        ledger: the ``ledger.jsonl`` of the run.
        stream: the saved stream that it trained from.
        steps: expected steps of the run; None takes the number in its ledger.
    """
    run, repeated = _effective(_lines(ledger))
    second = next((line for line in run if line["pid"] != run[0]["pid"]), run[0])
    with spiral.connect(catalog).open_stream(stream, device="cpu", epoch=0) as opened:
        planned = [_listed(opened.ledger(line["batch"], line["epoch"])) for line in run]
        uninterrupted = list(islice(_uninterrupted(opened), run[0]["steps"] if steps is None else steps))
    pairs = [
        (line, other) for line, other in zip(run, uninterrupted, strict=False) if _position(line) == _position(other)
    ]
    return Proof(
        expected=len(uninterrupted),
        run=len(run),
        same_ids=sum(line["ids"] == other["ids"] for line, other in pairs),
        same_tensors=sum(line["tensors"] == other["tensors"] for line, other in pairs),
        as_planned=sum(line["ids"] == ids for line, ids in zip(run, planned, strict=True)),
        repeated=len(repeated),
        repeated_alike=sum(one["ids"] == two["ids"] and one["tensors"] == two["tensors"] for one, two in repeated),
        processes=len({line["pid"] for line in run}),
        resumed_at=_position(second),
    )


def _lines(ledger: Path) -> list[Line]:
    """Return the complete lines; the kill may have cut one short."""
    found = []
    for text in ledger.read_text().splitlines():
        try:
            found.append(json.loads(text))
        except json.JSONDecodeError:
            continue
    return found


def _effective(lines: list[Line]) -> tuple[list[Line], list[tuple[Line, Line]]]:
    """Return the run as the model saw it: a resume discards what was delivered after its checkpoint.

    Returns:
        the lines that count, and the pairs (discarded, delivered again).
    """
    counted: list[Line] = []
    discarded: dict[tuple[int, int], Line] = {}
    repeated = []
    for line in lines:
        while counted and _position(counted[-1]) >= _position(line):
            old = counted.pop()
            discarded[_position(old)] = old
        if _position(line) in discarded:
            repeated.append((discarded.pop(_position(line)), line))
        counted.append(line)
    return counted, repeated


def _listed(planned: list[Any]) -> list[list[str]]:
    """Return identities in the form of the JSON ledger."""
    return [list(each) if isinstance(each, tuple) else [each] for each in planned]


def _position(line: Line) -> tuple[int, int]:
    return line["epoch"], line["batch"]


def _uninterrupted(stream: spiral.PreparedStream) -> Iterator[Line]:
    """Yield the batches of an uninterrupted run, epoch after epoch."""
    for epoch in count():
        for number, batch in enumerate(stream):
            yield {"epoch": epoch, "batch": number, "ids": identities(batch), "tensors": digest(batch)}
