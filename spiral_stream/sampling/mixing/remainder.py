"""Where each stream of a mixture continues when another plan takes over in the middle of an epoch.

The earlier plan left some uses of a stream undelivered: ranges, ascending. The plan that takes over numbers its own uses
from 0. Its first uses are those left over; the rest continue after the earlier plan's epoch. So no sample is repeated or
skipped, and every pass of a stream stays complete. Without a mixture, a use is a position of pass e, and use 0 is the first
of pass 0. Cost: a binary search in the ranges.
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
    """The uses of one stream: first the ranges ``left``, each (first, count), then every use from ``then`` on."""

    left: tuple[tuple[int, int], ...]
    then: int
    _firsts: Int64 = field(init=False, repr=False, compare=False)  # [R + 1] first use of each range, then `then`
    _begins: Int64 = field(init=False, repr=False, compare=False)  # [R + 1] own use at which each range begins

    def __post_init__(self) -> None:
        firsts = np.array([*(first for first, _ in self.left), self.then], dtype=np.int64)
        begins = np.cumsum([0, *(count for _, count in self.left)], dtype=np.int64)
        object.__setattr__(self, "_firsts", firsts)
        object.__setattr__(self, "_begins", begins)

    @property
    def count(self) -> int:
        """How many uses were left over. From this own use on, the uses of the stream are consecutive."""
        return int(self._begins[-1])

    def overtaken(self, rows: int) -> int:
        """Return how many uses were left over in passes (of ``rows`` uses each) before the last pass that was begun."""
        delivered = self.then  # one past the last use that was
        for first, count in reversed(self.left):
            if first + count < delivered:
                break
            delivered = first
        border = (delivered - 1) // rows * rows
        return sum(max(0, min(first + count, border) - first) for first, count in self.left)

    def uses(self, plan_uses: UInt64) -> UInt64:
        """Translate the plan's own uses to uses of the stream, shape [P] -> [P], uint64."""
        at = np.searchsorted(self._begins, plan_uses.astype(np.int64), side="right") - 1
        return (self._firsts[at] + (plan_uses.astype(np.int64) - self._begins[at])).astype(np.uint64)

    def plan_uses(self, uses: UInt64) -> Int64:
        """Translate back: the inverse of `uses`, or -1 for a use that was delivered before."""
        wanted = uses.astype(np.int64)
        at = np.searchsorted(self._firsts, wanted, side="right") - 1
        inside = np.where(at < 0, -1, wanted - self._firsts[at])
        counts = np.append(np.diff(self._begins), np.iinfo(np.int64).max)
        return np.where((at >= 0) & (inside < counts[at]), self._begins[at] + inside, -1)

    def ranges(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Translate own uses [begin, end) to ranges of uses of the stream, each (first, past the last)."""
        ends = [*self._begins[1:].tolist(), end]
        out = []
        for first, start, stop in zip(self._firsts.tolist(), self._begins.tolist(), ends, strict=True):
            low, high = max(begin, start), min(end, stop)
            if low < high:
                out.append((first + low - start, first + high - start))
        return out


def as_ranges(uses: Int64) -> list[tuple[int, int]]:
    """Return uses as ranges (first, count), ascending."""
    if not len(uses):
        return []
    ordered = np.sort(uses)
    cuts = np.flatnonzero(np.diff(ordered) != 1) + 1
    starts = np.concatenate([[0], cuts])
    counts = np.diff(np.append(starts, len(ordered)))
    return list(zip(ordered[starts].tolist(), counts.tolist(), strict=True))


def joined_ranges(parts: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Join ranges that are adjacent; ``parts`` ascend and do not overlap."""
    out: list[tuple[int, int]] = []
    for first, count in parts:
        if out and out[-1][0] + out[-1][1] == first:
            out[-1] = (out[-1][0], out[-1][1] + count)
        elif count:
            out.append((first, count))
    return tuple(out)
