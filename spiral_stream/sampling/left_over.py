"""Where each stream of a mixture goes on when another plan takes over in mid-epoch.

An earlier plan left some uses of a stream undelivered: ranges, ascending. The plan that
takes over numbers its own uses from 0: the first of them are those that were left, the
rest go on after the earlier plan's epoch. So no sample is repeated or skipped, and every
pass of a stream stays whole. Cost: a binary search in the ranges.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.sampling.order import UInt64

Int64 = NDArray[np.int64]


@final
@dataclass(frozen=True, slots=True)
class LeftOver:
    """One stream's uses: those in ``left``, (first, count) each, and then all from ``then`` on."""

    left: tuple[tuple[int, int], ...]
    then: int
    _firsts: Int64 = field(init=False, repr=False, compare=False)  # [R + 1] first use of each range, and of the rest
    _begins: Int64 = field(init=False, repr=False, compare=False)  # [R + 1] own use at which each begins

    def __post_init__(self) -> None:
        firsts = np.array([*(first for first, _ in self.left), self.then], dtype=np.int64)
        begins = np.cumsum([0, *(count for _, count in self.left)], dtype=np.int64)
        object.__setattr__(self, "_firsts", firsts)
        object.__setattr__(self, "_begins", begins)

    @property
    def count(self) -> int:
        """How many uses were left: from this own use on they follow one another."""
        return int(self._begins[-1])

    def overtaken(self, rows: int) -> int:
        """How many uses were left of passes, of ``rows`` uses each, before the last one that was begun."""
        delivered = self.then  # one past the last use that was
        for first, count in reversed(self.left):
            if first + count < delivered:
                break
            delivered = first
        border = (delivered - 1) // rows * rows
        return sum(max(0, min(first + count, border) - first) for first, count in self.left)

    def uses(self, own: UInt64) -> UInt64:
        """The stream's uses behind the plan's own, shape [P] -> [P], uint64."""
        at = np.searchsorted(self._begins, own.astype(np.int64), side="right") - 1
        return (self._firsts[at] + (own.astype(np.int64) - self._begins[at])).astype(np.uint64)

    def own(self, uses: UInt64) -> Int64:
        """The inverse of `uses`; -1 for a use that was delivered before."""
        wanted = uses.astype(np.int64)
        at = np.searchsorted(self._firsts, wanted, side="right") - 1
        inside = np.where(at < 0, -1, wanted - self._firsts[at])
        counts = np.append(np.diff(self._begins), np.iinfo(np.int64).max)
        return np.where((at >= 0) & (inside < counts[at]), self._begins[at] + inside, -1)

    def ranges(self, begin: int, end: int) -> list[tuple[int, int]]:
        """The uses behind own uses [begin, end), as (first, past the last)."""
        ends = [*self._begins[1:].tolist(), end]
        out = []
        for first, start, stop in zip(self._firsts.tolist(), self._begins.tolist(), ends, strict=True):
            low, high = max(begin, start), min(end, stop)
            if low < high:
                out.append((first + low - start, first + high - start))
        return out


def as_ranges(uses: Int64) -> list[tuple[int, int]]:
    """Uses as (first, count) ranges, ascending."""
    if not len(uses):
        return []
    ordered = np.sort(uses)
    cuts = np.flatnonzero(np.diff(ordered) != 1) + 1
    starts = np.concatenate([[0], cuts])
    counts = np.diff(np.append(starts, len(ordered)))
    return list(zip(ordered[starts].tolist(), counts.tolist(), strict=True))


def joined_ranges(parts: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Ranges that follow one another made one; ``parts`` ascend and do not overlap."""
    out: list[tuple[int, int]] = []
    for first, count in parts:
        if out and out[-1][0] + out[-1][1] == first:
            out[-1] = (out[-1][0], out[-1][1] + count)
        elif count:
            out.append((first, count))
    return tuple(out)
