"""What a training run tells of itself while it runs: files in its folder, one per rank, which every process appends to.

    progress/rank-00000.jsonl    a line where a process begins, and a line per second of training

A line covers the steps since the line before it. A process that resumes begins at its checkpoint, so what an earlier
process did after that checkpoint counts no more: `read` returns the run as the model saw it, over all its processes.
A kill may leave half a line, which nobody reads.
"""

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

EVERY_S: Final = 1.0
FOLDER: Final = "progress"
RECORD: Final = "SPIRAL_RECORD"  # in the environment of a process: the name of the run that it records in the catalog
SPENT: Final = ("consumer_waited_s", "feeder_waited_s", "fetch_s", "transform_s")  # of a stream's metrics

Values = dict[str, Any]


@final
class ProgressFile:
    """The file of one rank, as one process appends to it.

    Args:
        folder: of the run.
        rank: of the process.
        every_s: seconds between two lines.
    """

    def __init__(self, folder: Path, rank: int, every_s: float = EVERY_S) -> None:
        path = folder / FOLDER / f"rank-{rank:05d}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a+b")
        if _ends_torn(path):
            self._file.write(b"\n")
        self._every_s = every_s
        self._last = time.monotonic()
        self._loss, self._steps, self._units = 0.0, 0, 0
        self._spent = dict.fromkeys(SPENT, 0.0)

    def begin(self, facts: Mapping[str, Any]) -> None:
        """Write the line of a process that begins; time before it does not count."""
        self._write({"begins": True, **facts})
        self._last = time.monotonic()

    def add(self, loss: float, units: int) -> bool:
        """Count a step. Return whether the next line is due."""
        self._loss, self._steps, self._units = self._loss + loss, self._steps + 1, self._units + units
        return time.monotonic() - self._last >= self._every_s

    def flush(self, step: int, position: Mapping[str, Any], metrics: Mapping[str, Any]) -> None:
        """Write a line of the steps since the last one, if there are any.

        Args:
            step: steps done so far.
            position: epoch and batch after them.
            metrics: of the stream; its totals, of which the line has what was added.
        """
        if not self._steps:
            return
        now = time.monotonic()
        spent = {name: float(metrics[name]) for name in SPENT}
        line = {
            "step": step,
            "epoch": position["epoch"],
            "batch": position["batch"],
            "steps": self._steps,
            "loss": self._loss / self._steps,
            "units": self._units,
            "seconds": round(now - self._last, 6),
            **{name: round(spent[name] - self._spent[name], 6) for name in SPENT},
        }
        self._write(line)
        self._last, self._spent, self._loss, self._steps, self._units = now, spent, 0.0, 0, 0

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, line: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(line).encode() + b"\n")
        self._file.flush()


def _ends_torn(path: Path) -> bool:
    with path.open("rb") as file:
        if not file.seek(0, os.SEEK_END):
            return False
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


@final
@dataclass(frozen=True)
class Progress:
    """A run as the model saw it, over all its processes.

    Attributes:
        begins: what each process said where it began, of rank 0.
        lines: those that count, by rank.
    """

    begins: Sequence[Values]
    lines: Mapping[int, Sequence[Values]]

    @property
    def main(self) -> Sequence[Values]:
        """The lines of rank 0."""
        return self.lines.get(0, ())

    @property
    def step(self) -> int:
        """Steps done."""
        return int(self.main[-1]["step"]) if self.main else 0

    @property
    def unit(self) -> str:
        """What `units` count: samples, tokens."""
        return str(self.begins[-1]["unit"]) if self.begins else "samples"

    def rate(self) -> float:
        """Return units per second of training, of all ranks; time in which no process ran does not count."""
        seconds = sum(line["seconds"] for line in self.main)
        return sum(line["units"] for rank in self.lines.values() for line in rank) / seconds if seconds else 0.0

    def waiting(self) -> tuple[float, str]:
        """Return which share of its time the rank that waited most spent waiting for batches, and what bounds the run.

        ``compute`` bounds it if batches waited for the model, as `metrics` of a stream says it; else ``data (fetch)`` or
        ``data (transform)``.
        """
        found = [(self._share(lines), lines) for lines in self.lines.values() if lines]
        if not found:
            return 0.0, "unknown: no step is done"
        share, lines = max(found, key=lambda each: each[0])
        waited, fed, fetched, transformed = (sum(line[name] for line in lines) for name in SPENT)
        if waited <= fed:
            return share, "compute"
        return share, "data (fetch)" if fetched > transformed else "data (transform)"

    @staticmethod
    def _share(lines: Sequence[Values]) -> float:
        seconds = sum(line["seconds"] for line in lines)
        return min(1.0, sum(line["consumer_waited_s"] for line in lines) / seconds) if seconds else 0.0

    def seen(self) -> list[Values]:
        """Return which samples the model saw, as values of JSON: enough to replay them from the plan.

        One part per stretch of one plan, one data version and one number of ranks: ``stream``, ``fingerprint``,
        ``data_versions``, ``run_seed``, ``world``, ``begin`` and ``end`` (epoch and batch), ``steps``.
        """
        parts: list[Values] = []
        for number, begun in enumerate(self.begins):
            until = self.begins[number + 1]["step"] if number + 1 < len(self.begins) else self.step
            last = next((line for line in reversed(self.main) if begun["step"] < line["step"] <= until), None)
            if last is None:
                continue
            same = {name: begun[name] for name in ("stream", "fingerprint", "data_versions", "run_seed", "world")}
            end, steps = [last["epoch"], last["batch"]], last["step"] - begun["step"]
            if parts and same == {name: parts[-1][name] for name in same}:
                parts[-1] |= {"end": end, "steps": parts[-1]["steps"] + steps}
            else:
                parts.append({**same, "begin": [begun["epoch"], begun["batch"]], "end": end, "steps": steps})
        return parts


def every_begin(folder: Path) -> list[Values]:
    """Return what the processes of rank 0 said where they began, also of those whose steps do not count.

    Args:
        folder: of the run.
    """
    path = folder / FOLDER / "rank-00000.jsonl"
    return [line for line in _finished_lines(path) if "begins" in line] if path.exists() else []


def read(folder: Path) -> Progress:
    """Return the progress of a run; empty if it told none.

    Args:
        folder: of the run.
    """
    begins: list[Values] = []
    lines: dict[int, list[Values]] = {}
    for path in sorted((folder / FOLDER).glob("rank-*.jsonl")):
        rank = int(path.stem.partition("-")[2])
        counted, lines[rank] = _counted(_finished_lines(path))
        begins = counted if rank == 0 else begins
    return Progress(begins, lines)


def _finished_lines(path: Path) -> Iterator[Values]:
    """Yield the lines that were written to their end."""
    for text in path.read_bytes().split(b"\n"):
        try:
            yield json.loads(text)
        except ValueError:
            continue


def _counted(every: Iterator[Values]) -> tuple[list[Values], list[Values]]:
    """Return where processes began, and the lines that count: a process that resumes discards what came after its checkpoint."""
    begins: list[Values] = []
    lines: list[Values] = []
    for line in every:
        if "begins" not in line:
            lines.append(line)
            continue
        while lines and lines[-1]["step"] > line["step"]:
            lines.pop()
        while begins and begins[-1]["step"] > line["step"]:
            begins.pop()
        begins.append(line)
    return begins, lines
