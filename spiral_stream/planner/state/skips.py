"""The record of what a run skips: batches, and samples from some batch on. The state keeps it (docs/decisions/0040).

Skipped batches keep their numbers, and a skipped sample leaves its place empty, so every other batch stays as it was.
A skip holds from where it was made. Batches before that place are what they were when the run delivered them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, final

import numpy as np

from spiral_stream.errors import ResumeError, StreamError, shown
from spiral_stream.sampling.mixing.remainder import Int64, LeftOver, as_ranges
from spiral_stream.sampling.order import LARGEST

MOST: Final = 10_000  # ranges of batches, and samples; a state stays below 1 MB

STAND_INS: Final = "stand_ins"
TABLES: Final = "tables"

Value = str | int | bytes


@final
@dataclass(frozen=True, slots=True, order=True)
class SkippedSample:
    """A sample that is delivered no more.

    ``since`` is the epoch and the first batch number without it. ``stream`` is empty if the plan mixes nothing.
    """

    since: tuple[int, int]
    stream: str
    identity: tuple[Value, ...]

    def to_json(self) -> list[Any]:
        """Return the sample as JSON values."""
        values = [{"hex": value.hex()} if isinstance(value, bytes) else value for value in self.identity]
        return [*self.since, self.stream, values]

    @classmethod
    def from_json(cls, data: Any) -> "SkippedSample":
        """Read `to_json` back.

        Raises:
            ValueError: it cannot be read, or a `TypeError`, or a `KeyError`.
        """
        epoch, number, stream, values = data
        _need(_integer(epoch) and _integer(number) and isinstance(stream, str) and isinstance(values, list) and values)
        identity = tuple(bytes.fromhex(value["hex"]) if isinstance(value, dict) else value for value in values)
        _need(all(type(value) in (str, int, bytes) for value in identity))
        return cls((epoch, number), stream, identity)


@final
@dataclass(frozen=True, slots=True)
class SkippedTable:
    """A table of samples that are delivered no more; the catalog has it under its digest. ``since`` as in `SkippedSample`."""

    since: tuple[int, int]
    rows: int
    digest: str

    def to_json(self) -> list[Any]:
        """Return it as JSON values."""
        return [*self.since, self.rows, self.digest]

    @classmethod
    def from_json(cls, data: Any) -> "SkippedTable":
        """Read `to_json` back.

        Raises:
            ValueError: it cannot be read, or a `TypeError`.
        """
        epoch, number, rows, digest = data
        _need(all(map(_integer, (epoch, number, rows))) and isinstance(digest, str))
        return cls((epoch, number), rows, digest)


@final
@dataclass(frozen=True, slots=True)
class Skips:
    """What a run skips: ranges (epoch, first batch, count), ascending and apart from each other, and samples, also by table.

    ``stand_ins`` says whether skipped samples stay out of batches that stand in for others too. States of earlier versions do
    not say it, and keep the batches that they had.
    """

    batches: tuple[tuple[int, int, int], ...] = ()
    samples: tuple[SkippedSample, ...] = ()
    stand_ins: bool = False
    tables: tuple[SkippedTable, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.batches) or self.lacks_samples

    @property
    def lacks_samples(self) -> bool:
        """Whether samples are skipped."""
        return bool(self.samples or self.tables)

    def remaining(self, epoch: int) -> LeftOver:
        """Return the batch numbers of an epoch that are not skipped, in their order."""
        ranges, at = [], 0
        for _, first, count in (each for each in self.batches if each[0] == epoch):
            ranges += [(at, first - at)] if first > at else []
            at = first + count
        return LeftOver(tuple(ranges), at)

    def numbers(self, epoch: int, delivered: Int64) -> Int64:
        """Return `number` of each: shape [N] -> [N], int64."""
        return self.remaining(epoch).uses(delivered.astype(np.uint64)).astype(np.int64)

    def number(self, epoch: int, delivered: int) -> int:
        """Return the number of the batch before which so many batches of an epoch were delivered."""
        return int(self.remaining(epoch).uses(np.array([delivered], dtype=np.uint64))[0]) if self.batches else delivered

    def delivered(self, epoch: int, number: int) -> int | None:
        """Return how many batches are delivered before one, by its number; None if it is skipped."""
        if number < 0 or not self.batches:
            return number
        at = int(self.remaining(epoch).plan_uses(np.array([number], dtype=np.uint64))[0])
        return None if at < 0 else at

    def after(self, epoch: int, number: int) -> bool:
        """Return whether batches from this place on are skipped."""
        return any((each[0], each[1] + each[2]) > (epoch, number) for each in self.batches)

    def with_batches(self, epoch: int, numbers: Int64) -> "Skips":
        """Return the record with more batches of an epoch.

        Raises:
            StreamError: it becomes too large.
        """
        there = [np.arange(first, first + count) for at, first, count in self.batches if at == epoch]
        joined = np.unique(np.concatenate([np.asarray(numbers, dtype=np.int64), *there]))
        here = [(epoch, first, count) for first, count in as_ranges(joined)]
        others = [each for each in self.batches if each[0] != epoch]
        return replace(self, batches=_small(sorted([*others, *here]), "ranges of batches"))

    def with_samples(self, since: tuple[int, int], samples: Sequence[tuple[str, tuple[Value, ...]]]) -> "Skips":
        """Return the record with more samples, each a stream's name and an identity.

        Raises:
            StreamError: it becomes too large.
        """
        there = {(each.stream, each.identity) for each in self.samples}
        new = [SkippedSample(since, *each) for each in dict.fromkeys(samples) if each not in there]
        left = _small([*self.samples, *new], "samples")
        return replace(self, samples=left, stand_ins=self.stand_ins or bool(new))

    def with_table(self, since: tuple[int, int], rows: int, digest: str) -> "Skips":
        """Return the record with a table of samples more, unless it has it.

        Raises:
            StreamError: it becomes too large.
        """
        if not rows or any(each.digest == digest for each in self.tables):
            return self
        tables = _small([*self.tables, SkippedTable(since, rows, digest)], "tables")
        return replace(self, tables=tables, stand_ins=True)

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON values."""
        return {
            "batches": [list(each) for each in self.batches],
            "samples": [each.to_json() for each in self.samples],
            **({STAND_INS: True} if self.stand_ins else {}),
            **({TABLES: [each.to_json() for each in self.tables]} if self.tables else {}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any] | None) -> "Skips":
        """Read `to_json` back.

        Raises:
            ResumeError: it cannot be read.
        """
        if data is None:
            return cls()
        try:
            batches = tuple((epoch, first, count) for epoch, first, count in data["batches"])
            _need(len(batches) <= MOST and all(_integer(n) for each in batches for n in each))
            ends = [(epoch, first + count) for epoch, first, count in batches]
            apart = all(end < (epoch, first) for end, (epoch, first, _) in zip(ends, batches[1:], strict=False))
            _need(apart and all(count for *_, count in batches))
            _need(len(data["samples"]) <= MOST and isinstance(data.get(STAND_INS, False), bool))
            samples = tuple(SkippedSample.from_json(each) for each in data["samples"])
            _need(len({(each.stream, each.identity) for each in samples}) == len(samples))
            _need(len(data.get(TABLES, ())) <= MOST)
            tables = tuple(SkippedTable.from_json(each) for each in data.get(TABLES, ()))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            msg = (
                f"resume: the state's skips cannot be read ({shown(error)}). Pass what state_dict() returned, unchanged"
            )
            raise ResumeError(msg) from error
        return cls(batches, samples, data.get(STAND_INS, False), tables)


NOTHING: Final = Skips()


def _small(items: list[Any], what: str) -> tuple[Any, ...]:
    if len(items) > MOST:
        msg = (
            f"skip: the state would list {len(items):,} {what}, and holds {MOST:,} at most. Give samples as "
            "a table: a relation, or an Arrow table; or leave rows out with .filter(...) before sample, and go on with "
            "new_stream.rebase(old_stream)"
        )
        raise StreamError(msg)
    return tuple(items)


def _integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST


def _need(holds: object) -> None:
    if not holds:
        msg = "it holds something other than batches and samples"
        raise ValueError(msg)
