"""Batches of a fixed number of samples: which positions of the epoch form batch g, by arithmetic alone.

Each lane yields its whole batches, and the global sequence takes one of each lane in turn (see `lanes`). The samples
that are left at the lanes' ends, in lane order, form the tail batches; only the last of these may be short. Lanes
differ by at most one batch, so everything is O(1), except for the tail, which looks up its samples in O(lanes). Nothing
here depends on the number of ranks; `tail` says which of these batches they deliver.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.arguments import check, integer, of_kind
from spiral_stream.batching import tail
from spiral_stream.batching.lanes import Lanes
from spiral_stream.batching.tail import PadPartial, Tail

UInt64 = NDArray[np.uint64]


@final
@dataclass(frozen=True)
class FixedBatches:
    """The batches of an epoch.

    Args:
        lanes: how the epoch's positions are divided.
        batch_size: samples per batch.
        last: the tail rule.

    Raises:
        PlanError: ``batch_size`` is not an integer of at least 1, or ``last`` is no tail rule.
    """

    lanes: Lanes
    batch_size: int
    last: Tail

    def __post_init__(self) -> None:
        tail = of_kind(Tail, "DropPartial(), KeepPartial() or PadPartial()")
        check(self, "collate", " is ", batch_size=integer(1), last=tail)

    @property
    def total(self) -> int:
        """Positions of the epoch."""
        return self.lanes.total

    @cached_property
    def formed(self) -> int:
        """Batches of the epoch, before ranks share them."""
        return tail.batches(self.last, self.lanes.total, self.batch_size)

    def positions(self, batch: int) -> UInt64:
        """Return the positions that form a batch.

        Args:
            batch: its number. With `PadPartial` there is no last one: batches past the end repeat positions from
                the epoch's start, and which ones depends on the number only.

        Returns:
            shape [B], uint64, each in [0, total); B is ``batch_size``, or less for the short batch of `KeepPartial`.

        Raises:
            IndexError: there is no such batch.
        """
        endless = isinstance(self.last, PadPartial) and self.lanes.total > 0
        if batch < 0 or (batch >= self.formed and not endless):
            msg = f"batch {batch} of an epoch of {self.formed}. Give a number in [0, {self.formed})"
            raise IndexError(msg)
        if batch < self._full_batches:
            begin = self._begin_of(batch)
            return np.arange(begin, begin + self.batch_size, dtype=np.uint64)
        begin = batch * self.batch_size  # as if all whole batches, then the rests, were laid end to end
        real = np.arange(min(begin, self.lanes.total), min(begin + self.batch_size, self.lanes.total), dtype=np.uint64)
        found = self._rest_positions(real)
        if not endless:
            return found
        fill = np.arange(begin + real.size, begin + self.batch_size, dtype=np.uint64) - np.uint64(self.lanes.total)
        return np.concatenate((found, fill % np.uint64(self.lanes.total)))

    def positions_of(self, batches: Sequence[int]) -> tuple[UInt64, list[int]]:
        """Return the positions of several batches, end to end, and how many each batch has; see `positions`."""
        if self.lanes.count == 1 and min(batches) >= 0 and max(batches) < self._full_batches:
            begins = np.array(batches, dtype=np.uint64) * np.uint64(self.batch_size)
            found: UInt64 = np.add.outer(begins, np.arange(self.batch_size, dtype=np.uint64))
            return found.reshape(-1), [self.batch_size] * len(batches)
        each = [self.positions(batch) for batch in batches]
        return np.concatenate(each), [len(some) for some in each]

    def filler(self, batch: int) -> NDArray[np.int64] | None:
        """Return the rows of a batch that repeat samples only to fill it with a value; None if no row does."""
        left = max(0, self.lanes.total - batch * self.batch_size)  # in the tail batches all samples lie end to end
        if left >= self.batch_size or not tail.fills_with_value(self.last):
            return None
        return np.arange(left, self.batch_size)

    def locate(self, position: int) -> int | None:
        """Return the batch that holds a position, or None if it is in the short batch that `DropPartial` drops.

        Raises:
            IndexError: the epoch has no such position.
        """
        if not 0 <= position < self.lanes.total:
            msg = f"position {position} of an epoch of {self.lanes.total}. Give one in [0, {self.lanes.total})"
            raise IndexError(msg)
        lane = self.lanes.lane_of(position)
        k, offset = divmod(position - self.lanes.begin(lane), self.batch_size)
        if k < self._rounds:
            return k * self.lanes.count + lane
        if k < self._rounds + self._extra(lane + 1) - self._extra(lane):
            return self._rounds * self.lanes.count + self._extra(lane)
        rests = self.lanes.begin(lane) - (self._rounds * lane + self._extra(lane)) * self.batch_size  # of lanes before
        batch = self._full_batches + (rests + offset) // self.batch_size
        return batch if batch < self.formed else None

    @cached_property
    def _rounds(self) -> int:
        """Whole batches that every lane has."""
        return self.lanes.total // self.lanes.count // self.batch_size

    @cached_property
    def _full_batches(self) -> int:
        """Whole batches of all lanes."""
        return self._rounds * self.lanes.count + self._extra(self.lanes.count)

    def _extra(self, lane: int) -> int:
        """How many lanes before this one have one whole batch more: longer ones, if that position completes it."""
        completes = (self.lanes.total // self.lanes.count + 1) % self.batch_size == 0
        return self.lanes.longer_before(lane) if completes else 0

    def _begin_of(self, batch: int) -> int:
        """The first position of a whole batch."""
        k, lane = divmod(batch, self.lanes.count)
        if k == self._rounds:
            lane = self.lanes.longer_lane(lane)
        return self.lanes.begin(lane) + k * self.batch_size

    def _rest_positions(self, virtual: UInt64) -> UInt64:
        """Positions of the rests, which are laid end to end behind the whole batches; shape [P] -> [P]."""
        if not virtual.size:
            return virtual
        starts, lanes = self.lanes.begins(), np.arange(self.lanes.count + 1, dtype=np.uint64)
        size, completes = self.lanes.total // self.lanes.count, self._extra(self.lanes.count) > 0
        extra = (starts - lanes * np.uint64(size)) * np.uint64(completes)
        batches = lanes * np.uint64(self._rounds) + extra
        rests = starts - batches * np.uint64(self.batch_size)  # rows of all rests before each lane
        offsets = virtual - np.uint64(self._full_batches * self.batch_size)
        lane = np.searchsorted(rests, offsets, side="right") - 1
        positions: UInt64 = starts[lane + 1] - (rests[lane + 1] - offsets)  # a lane's rest is its end
        return positions
