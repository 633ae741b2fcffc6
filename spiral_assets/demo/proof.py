"""Compares what a killed and resumed run was given with what an uninterrupted run is given."""

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
    """What the comparison found. Figures count batches."""

    expected: int  # of an uninterrupted run
    run: int  # that the run as a whole is made of
    same_ids: int  # of them, with the identities, in order, of an uninterrupted run at the same place
    same_tensors: int  # of them, with equal tensors too, bit for bit
    as_planned: int  # of them, with the identities that arithmetic on the plan gives, which iterates nothing
    repeated: int  # delivered before the kill, after the checkpoint, and so once more
    repeated_alike: int  # of them, the same both times
    processes: int
    resumed_at: tuple[int, int]  # epoch and batch

    @property
    def exact(self) -> bool:
        """Whether the run as a whole saw exactly what an uninterrupted one sees."""
        counts = {self.expected, self.run, self.same_ids, self.same_tensors, self.as_planned}
        return len(counts) == 1 and self.repeated_alike == self.repeated


def prove(catalog: str, ledger: Path, stream: str, steps: int | None = None) -> Proof:
    """Read the ledger of a run, and iterate the same stream without a break.

    Args:
        catalog: folder of the catalog.
        ledger: of the run.
        stream: the saved stream that it trained from.
        steps: that the run should have made; None takes what it says itself.
    """
    run, repeated = _effective(_lines(ledger))
    second = next((line for line in run if line["pid"] != run[0]["pid"]), run[0])
    with spiral.connect(catalog).open_stream(stream, device="cpu", epoch=0) as opened:
        planned = [_listed(opened.ledger(line["batch"], line["epoch"])) for line in run]
        whole = list(islice(_uninterrupted(opened), run[0]["steps"] if steps is None else steps))
    pairs = [(line, other) for line, other in zip(run, whole, strict=False) if _place(line) == _place(other)]
    return Proof(
        expected=len(whole),
        run=len(run),
        same_ids=sum(line["ids"] == other["ids"] for line, other in pairs),
        same_tensors=sum(line["tensors"] == other["tensors"] for line, other in pairs),
        as_planned=sum(line["ids"] == ids for line, ids in zip(run, planned, strict=True)),
        repeated=len(repeated),
        repeated_alike=sum(one["ids"] == two["ids"] and one["tensors"] == two["tensors"] for one, two in repeated),
        processes=len({line["pid"] for line in run}),
        resumed_at=_place(second),
    )


def _lines(ledger: Path) -> list[Line]:
    """The whole lines: the one that the kill cut short has no end, or no sense."""
    found = []
    for text in ledger.read_text().splitlines():
        try:
            found.append(json.loads(text))
        except json.JSONDecodeError:
            continue
    return found


def _effective(lines: list[Line]) -> tuple[list[Line], list[tuple[Line, Line]]]:
    """The run as the model saw it: a resume takes back what was delivered after its checkpoint.

    Returns:
        the lines that count, and the pairs (taken back, delivered again).
    """
    counted: list[Line] = []
    taken_back: dict[tuple[int, int], Line] = {}
    repeated = []
    for line in lines:
        while counted and _place(counted[-1]) >= _place(line):
            old = counted.pop()
            taken_back[_place(old)] = old
        if _place(line) in taken_back:
            repeated.append((taken_back.pop(_place(line)), line))
        counted.append(line)
    return counted, repeated


def _listed(planned: list[Any]) -> list[list[str]]:
    """Identities as JSON keeps them."""
    return [list(each) if isinstance(each, tuple) else [each] for each in planned]


def _place(line: Line) -> tuple[int, int]:
    return line["epoch"], line["batch"]


def _uninterrupted(stream: spiral.PreparedStream) -> Iterator[Line]:
    """What a run without a break is given, batch by batch, epoch after epoch."""
    for epoch in count():
        for number, batch in enumerate(stream):
            yield {"epoch": epoch, "batch": number, "ids": identities(batch), "tensors": digest(batch)}
