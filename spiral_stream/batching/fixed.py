"""Batches of a fixed count: which positions of the epoch form batch g, by arithmetic alone.

The epoch's positions are cut into ``lanes`` slices, equal to one row. Each lane
yields whole batches, and the global sequence takes one of each lane in turn,
skipping lanes that have ended; the rests of all lanes, in lane order, form the
tail batches, of which only the last may be short. Slices differ by at most one
row, so lanes differ by at most one batch, and everything is O(1) but the tail,
which looks its rests up in O(lanes). Nothing here depends on the world size
except where the sequence ends.
"""

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.batching.formation import DropPartial, PadPartial, Tail
from spiral_stream.errors import PlanError, shown

UInt64 = NDArray[np.uint64]


@final
@dataclass(frozen=True, slots=True)
class FixedBatches:
    """The batches of an epoch of ``total`` positions."""

    total: int
    batch_size: int
    lanes: int
    last: Tail

    def __post_init__(self) -> None:
        for name, value, least in (
            ("total", self.total, 0),
            ("batch_size", self.batch_size, 1),
            ("lanes", self.lanes, 1),
        ):
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                msg = f"collate: {name} is {shown(value)}. Give an integer of at least {least}"
                raise PlanError(msg)
        if not isinstance(self.last, Tail):
            msg = f"collate: last is {shown(self.last)}. Give DropPartial(), KeepPartial() or PadPartial()"
            raise PlanError(msg)

    def count(self, world_size: int, merge: int = 1, first: int = 0) -> int:
        """The number at which the epoch's batches end, after the tail rule.

        Args:
            world_size: ranks that share the batches.
            merge: batches a rank concatenates at each step.
            first: the batch at which this world size took over; 0 for a whole epoch.
        """
        left = max(0, self.formed - first)
        group = world_size * merge
        if isinstance(self.last, DropPartial):
            return first + left // group * group
        if isinstance(self.last, PadPartial):
            return first - (-left // group) * group
        return first + left

    def steps(self, world_size: int, merge: int = 1, rank: int = 0, first: int = 0) -> int:
        """Steps that this rank makes from batch ``first`` to the end.

        All ranks make the same number, but for `KeepPartial`, where they may
        differ by one. Arguments are those of `count`.
        """
        groups = -(-(self.count(world_size, merge, first) - first) // merge)
        return max(0, -(-(groups - rank) // world_size))

    def rows_dropped(self, world_size: int, merge: int = 1) -> int:
        """Samples that no rank delivers in a whole epoch."""
        return max(0, self.total - self.count(world_size, merge) * self.batch_size) if self._drops else 0

    def positions(self, batch: int) -> UInt64:
        """The positions of the epoch that form a batch.

        Args:
            batch: its number. With `PadPartial` there is no last one: past the
                end come the epoch's positions from the start, at a place that
                depends on the number only.

        Returns:
            shape [B], uint64, each in [0, total); B is ``batch_size``, or less for the short batch of `KeepPartial`.

        Raises:
            IndexError: there is no such batch.
        """
        endless = isinstance(self.last, PadPartial) and self.total > 0
        if batch < 0 or (batch >= self.formed and not endless):
            msg = f"batch {batch} of an epoch of {self.formed}; give a number in [0, {self.formed})"
            raise IndexError(msg)
        if batch < self._whole:
            begin = self._begin_of(batch)
            return np.arange(begin, begin + self.batch_size, dtype=np.uint64)
        begin = batch * self.batch_size  # as if all whole batches, then the rests, were laid end to end
        real = np.arange(min(begin, self.total), min(begin + self.batch_size, self.total), dtype=np.uint64)
        found = self._rest_positions(real)
        if not endless:
            return found
        fill = np.arange(begin + real.size, begin + self.batch_size, dtype=np.uint64) - np.uint64(self.total)
        return np.concatenate((found, fill % np.uint64(self.total)))

    def locate(self, position: int) -> int | None:
        """The batch that holds a position of the epoch, or None where the tail rule drops it.

        Raises:
            IndexError: the epoch has no such position.
        """
        if not 0 <= position < self.total:
            msg = f"position {position} of an epoch of {self.total}; give one in [0, {self.total})"
            raise IndexError(msg)
        # The lane's slice begins at total * lane // lanes: the last lane whose begin is not past the position.
        lane = ((position + 1) * self.lanes - 1) // self.total
        k, offset = divmod(position - self._start(lane), self.batch_size)
        if k < self._rounds:
            return k * self.lanes + lane
        if k < self._rounds + self._longer(lane + 1) - self._longer(lane):
            return self._rounds * self.lanes + self._longer(lane)
        begin = self._whole * self.batch_size + self._start(lane) - self._batches_before(lane) * self.batch_size
        batch = (begin + offset) // self.batch_size
        return batch if batch < self.formed else None

    @property
    def _drops(self) -> bool:
        return isinstance(self.last, DropPartial)

    @property
    def formed(self) -> int:
        """Batches before the rules on steps: the short one is dropped or counts."""
        return self.total // self.batch_size if self._drops else -(-self.total // self.batch_size)

    @property
    def _rounds(self) -> int:
        """Whole batches that every lane has."""
        return self.total // self.lanes // self.batch_size

    @property
    def _whole(self) -> int:
        """Whole batches of all lanes."""
        return self._rounds * self.lanes + self._longer(self.lanes)

    def _start(self, lane: int) -> int:
        return self.total * lane // self.lanes

    def _longer(self, lane: int) -> int:
        """How many lanes before this one have a batch more than `_rounds`."""
        shortest, extra = divmod(self.total, self.lanes)
        return extra * lane // self.lanes if (shortest + 1) % self.batch_size == 0 else 0

    def _batches_before(self, lane: int) -> int:
        return self._rounds * lane + self._longer(lane)

    def _begin_of(self, batch: int) -> int:
        """The first position of a whole batch of a lane."""
        k, lane = divmod(batch, self.lanes)
        if k == self._rounds:
            # The n-th longer lane is the first before whose end n + 1 of them lie.
            lane = -(-(lane + 1) * self.lanes // (self.total % self.lanes)) - 1
        return self._start(lane) + k * self.batch_size

    def _rest_positions(self, virtual: UInt64) -> UInt64:
        """Positions of the rests, which are laid end to end behind the whole batches; shape [P] -> [P]."""
        if not virtual.size:
            return virtual
        lanes = np.arange(self.lanes + 1, dtype=np.uint64)
        width, extra = divmod(self.total, self.lanes)
        starts = lanes * np.uint64(width) + lanes * np.uint64(extra) // np.uint64(self.lanes)
        longer = lanes * np.uint64(extra) // np.uint64(self.lanes) * np.uint64((width + 1) % self.batch_size == 0)
        batches = lanes * np.uint64(self._rounds) + longer
        rests = starts - batches * np.uint64(self.batch_size)  # rows of all rests before each lane
        offsets = virtual - np.uint64(self._whole * self.batch_size)
        lane = np.searchsorted(rests, offsets, side="right") - 1
        positions: UInt64 = starts[lane + 1] - (rests[lane + 1] - offsets)  # a lane's rest is its end
        return positions
