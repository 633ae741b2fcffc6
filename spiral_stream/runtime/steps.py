"""Which batches a rank delivers at each step, and whether the epoch has a further step.

A pass walks the steps ahead of the loop (`due`, in the feeder), so the end is known one step early. A step is delivered
only if its batches exist (docs/decisions/0023). The place after the last step is the start of the next epoch
(docs/decisions/0018).
"""

from collections.abc import Iterator
from itertools import count
from typing import final

from spiral_stream.cursor import Cursor, Segment
from spiral_stream.errors import ResumeError, SpiralError
from spiral_stream.planner.bind import Bound
from spiral_stream.runtime.numbering import Numbering


@final
class Steps:
    """The steps of an epoch for one rank.

    Args:
        numbering: which batches there are.
        epoch: the epoch whose order is drawn.
        start: where the steps begin, after `Cursor.enter` with the run's world size and merge.
        rank: the rank that reads.
    """

    def __init__(self, numbering: Numbering, epoch: int, start: Cursor, rank: int) -> None:
        self.numbering, self.epoch, self.start, self.rank = numbering, epoch, start, rank
        self._ends: int | None = None  # the first step that `due` found missing

    def at(self, step: int) -> range | None:
        """Return the batch numbers of the rank at a step; None if it has none."""
        return delivered_at(self.numbering, self.epoch, self.start.segments[-1], step, self.rank)

    def there(self, step: int) -> bool:
        """Return whether any rank has a batch at a step. Only under `KeepPartial` ranks differ, and rank 0 never has fewer."""
        return delivered_at(self.numbering, self.epoch, self.start.segments[-1], step, 0) is not None

    def due(self, worker: int, workers: int) -> Iterator[range]:
        """Yield the batch numbers of every ``workers``-th step from the ``worker``-th on, to the end of the epoch."""
        for step in count(self.start.step + worker, workers):
            numbers = self.at(step)
            if numbers is None:
                self._ends = step
                return
            yield numbers

    def ended(self, step: int) -> bool:
        """Return whether the feeder has found that the rank has no step from this one on. Forms nothing."""
        return self._ends is not None and self._ends <= step

    def over(self, step: int, *, for_all: bool = False) -> bool:
        """Return whether the rank, or all ranks, have no step from this one on. An error means no: the loop will raise it."""
        try:
            return not self.there(step) if for_all else self.at(step) is None
        except SpiralError:
            return False


def delivered_at(numbering: Numbering, epoch: int, segment: Segment, step: int, rank: int) -> range | None:
    """Return the batch numbers that a rank delivers at a step of a segment; None if its steps have ended."""
    return numbering.admits(epoch, segment.first(step), segment.group, segment.batches(step, rank))


def entered(numbering: Numbering, epoch: int, cursor: Cursor, bound: Bound) -> Cursor:
    """Return where a pass starts: at the cursor, or at the next epoch if no rank has a further step in this one.

    Args:
        numbering: which batches there are.
        epoch: the epoch whose order is drawn there.
        cursor: where the run stands.
        bound: the run's world size and merge.

    Raises:
        ResumeError: the cursor lies after the end of its epoch.
    """
    start = cursor.enter(bound.world_size, bound.merge)
    if start.batch == 0 or Steps(numbering, epoch, start, bound.rank).there(start.step):
        return start
    need_inside(numbering, epoch, cursor)
    return start.next_epoch().enter(bound.world_size, bound.merge)


def need_inside(numbering: Numbering, epoch: int, cursor: Cursor) -> None:
    """Refuse a place whose last step the epoch does not have.

    Raises:
        ResumeError: says how many batches there are.
    """
    last = cursor.last_step()
    if last is not None and delivered_at(numbering, epoch, last[1], last[0], 0) is None:
        msg = (
            f"resume: batch {cursor.batch} lies beyond the end of epoch {cursor.epoch}, which has {numbering.total(epoch)} "
            "batches. Pass what state_dict() returned, or the number of batches that the loop has had, unchanged"
        )
        raise ResumeError(msg)
