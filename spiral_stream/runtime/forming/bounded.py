"""The batches of a run with a fixed number of steps per epoch: ``bind(steps_per_epoch=...)``.

Every rank knows then where an epoch ends without knowing how many batches there are. With as many lanes as readers, or a
multiple, each rank forms the chapters of its own lanes alone (docs/decisions/0023, 0024): up to that step no lane has
ended, so batch g is batch ``g // lanes`` of lane ``g % lanes``.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import final

from spiral_stream.errors import StreamError
from spiral_stream.planner.binding.bindings import Bound
from spiral_stream.runtime.numbering.drawn import Drawn
from spiral_stream.runtime.numbering.numbering import BatchStore, CountLimits, Drawable, Numbering


def promised(numbering: Numbering, bound: Bound) -> Numbering:
    """Return the batches of a run: those of the steps that it takes, if it says how many."""
    return numbering if bound.steps is None else PromisedBatches(numbering.by_lane(), bound)


@final
class PromisedBatches(Numbering):
    """The first batches of each epoch.

    Args:
        batches: all that are delivered, looked for in their lanes (`Numbering.by_lane`).
        bound: the run's steps, ranks and merge.
    """

    def __init__(self, batches: Numbering, bound: Bound) -> None:
        assert bound.steps is not None
        self._all = batches
        self.last, self.skips = batches.last, batches.skips
        self._steps, self._group = bound.steps, bound.world_size * bound.merge
        self._count = bound.steps * self._group

    @property
    def every(self) -> Numbering:
        return self._all.every

    @property
    def store(self) -> BatchStore:
        return self._all.store

    @property
    def limits(self) -> CountLimits:  # type: ignore[override]  # a value elsewhere
        return CountLimits()

    def unknown(self, epoch: int) -> int:
        del epoch
        return 0

    def exists(self, epoch: int, number: int) -> bool:
        if not 0 <= number < self._count:
            return False
        if not self.store.in_lanes and not self._all.exists(epoch, number):
            raise self._too_many(epoch, number)
        return True

    def total(self, epoch: int) -> int:
        del epoch
        return self._count

    def alike(self, drawn: Callable[[int], int]) -> bool:
        del drawn
        return True

    @property
    def ahead(self) -> Drawable | None:
        return self._all.ahead

    def ready(self, epoch: int, number: int) -> int:
        return max(0, min(self._all.ready(epoch, number), self._count - number))

    def draw_several(self, epoch: int, numbers: Sequence[int]) -> list[Drawn]:
        try:
            return self._all.draw_several(epoch, numbers)
        except IndexError as error:
            number = next((each for each in numbers if not self._all.exists(epoch, each)), numbers[-1])
            if not 0 <= number < self._count:
                raise
            raise self._too_many(epoch, number) from error

    def _too_many(self, epoch: int, number: int) -> StreamError:
        return StreamError(
            f"iter: steps_per_epoch={self._steps:,} is bound, and epoch {epoch:,} has no batch {number:,}, which step "
            f"{number // self._group:,} needs. Bind at most {number // self._group:,} steps; or leave it out, and count the "
            "epoch with stream.materialize(lengths=True)"
        )

    def find(self, epoch: int, stream: int, row: int) -> Iterable[int]:
        return (number for number in self._all.find(epoch, stream, row) if number < self._count)
