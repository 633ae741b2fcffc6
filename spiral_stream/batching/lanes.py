"""How an epoch's positions are divided into lanes, and in which order the lanes deliver their batches.

The positions ``range(total)`` are cut into ``count`` consecutive slices whose sizes differ by at most one. Batches are
formed inside a lane. The global sequence takes one batch of each lane in turn and skips lanes that have ended
(docs/decisions/0024).

Everything here is arithmetic on integers and costs O(1), except where it returns or takes one number per lane.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.arguments import integer


@final
@dataclass(frozen=True, slots=True)
class Lanes:
    """The lanes of an epoch.

    Args:
        total: positions of the epoch, 0 or more.
        count: lanes, 1 or more. There may be more lanes than positions; then some are empty.

    Raises:
        PlanError: an argument is no such integer.
    """

    total: int
    count: int

    def __post_init__(self) -> None:
        integer(0).need("collate: total is ", self.total)
        integer(1).need("collate: lanes is ", self.count)

    # ---- positions

    def begin(self, lane: int) -> int:
        """Return the first position of a lane; ``begin(count)`` is ``total``."""
        return self.total * lane // self.count

    def begins(self) -> NDArray[np.uint64]:
        """Return `begin` of every lane, and ``total`` at the end; shape [count + 1], uint64."""
        lanes = np.arange(self.count + 1, dtype=np.uint64)
        size, longer = divmod(self.total, self.count)  # total * lane may not fit into 64 bits
        begins: NDArray[np.uint64] = lanes * np.uint64(size) + lanes * np.uint64(longer) // np.uint64(self.count)
        return begins

    def lane_of(self, position: int) -> int:
        """Return the lane that holds a position in [0, total): the last one that begins at or before it."""
        return ((position + 1) * self.count - 1) // self.total

    def longer_before(self, lane: int) -> int:
        """Return how many lanes before this one have a position more than the shortest."""
        return self.begin(lane) - self.total // self.count * lane

    def longer_lane(self, nth: int) -> int:
        """Return the ``nth`` lane, from 0, that has a position more than the shortest."""
        return -(-(nth + 1) * self.count // (self.total % self.count)) - 1

    def chapter_count(self, lane: int, span: int) -> int:
        """Return how many chapters of ``span`` positions a lane has: at least one, which is empty in an empty lane."""
        return max(1, -(-(self.begin(lane + 1) - self.begin(lane)) // span))

    # ---- batches

    def before(self, lane: int, number: int) -> int:
        """Return how many batches of a lane come before batch ``number`` of the epoch, provided that no lane has ended."""
        return max(0, (number - lane + self.count - 1) // self.count)

    def turn(self, number: int, totals: Sequence[int]) -> tuple[int, int] | None:
        """Return the lane of a batch and its number in that lane.

        Args:
            number: of the batch in the epoch, from 0.
            totals: batches of each lane.

        Returns:
            None if the epoch has no more than ``number`` batches.
        """
        begin = before = 0
        active = len(totals)
        for end, ending in sorted(Counter(totals).items()):  # up to this round the same lanes take turns
            size = (end - before) * active
            if number < begin + size:
                rounds, in_round = divmod(number - begin, active)
                return [lane for lane, total in enumerate(totals) if total >= end][in_round], before + rounds
            begin, before, active = begin + size, end, active - ending
        return None

    def number(self, lane: int, k: int, totals: Sequence[int]) -> int:
        """Return the epoch's number of batch ``k`` of a lane: the inverse of `turn`."""
        return sum(min(total, k) for total in totals) + sum(total > k for total in totals[:lane])
