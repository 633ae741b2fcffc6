"""Batches between which rows are exchanged: those of each optimizer step, so that they cost about the same.

All batches of a step are drawn, and `batching.row_exchange` says which row goes where. So a batch stays a function of plan, data,
epoch and number; how many there are, and which samples a step has, does not change. Batches that `PadPartial` repeats, or fills
with a value, keep their rows.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Final, final

import numpy as np

from spiral_stream.batching.formation import Membership
from spiral_stream.batching.row_exchange import Int64, exchanged
from spiral_stream.errors import ResumeError
from spiral_stream.planner.binding.bindings import Bound
from spiral_stream.planner.state.saved_state import Anchor
from spiral_stream.runtime.columns.samples import Samples
from spiral_stream.runtime.numbering.batch_costs import BatchCosts
from spiral_stream.runtime.numbering.drawn import Drawn, joined
from spiral_stream.runtime.numbering.known_chapters import Known
from spiral_stream.runtime.numbering.numbering import BatchStore
from spiral_stream.sampling.memo import memo
from spiral_stream.sampling.order import UInt64

_STEPS: Final = 3  # whose batches are held


@final
class ExchangedBatches(BatchStore):
    """All batches of a plan, after rows were exchanged.

    Args:
        store: the batches as they are formed.
        step_batches: of a step.
        costs: what samples cost.
    """

    def __init__(self, store: BatchStore, step_batches: int, costs: BatchCosts) -> None:
        self.store, self.step_batches, self._costs = store, step_batches, costs
        self.last, self.limits, self.in_lanes = store.last, store.limits, store.in_lanes
        self._steps = memo(self._step, _STEPS)

    def by_lane(self) -> "ExchangedBatches":
        return ExchangedBatches(self.store.by_lane(), self.step_batches, self._costs)

    def border(self, number: int) -> int:
        """Return the first batch of the step that has a batch."""
        return number - number % self.step_batches

    # ---- how many there are: as many as before

    def exists(self, epoch: int, number: int) -> bool:
        return self.store.exists(epoch, number)

    def total(self, epoch: int) -> int:
        return self.store.total(epoch)

    def unknown(self, epoch: int) -> int:
        return self.store.unknown(epoch)

    def uncounted(self, epoch: int) -> int:
        return self.store.uncounted(epoch)

    def not_indexed(self, epoch: int) -> int:
        return self.store.not_indexed(epoch)

    def alike(self, drawn: Callable[[int], int]) -> bool:
        return self.store.alike(drawn)

    def ready(self, epoch: int, number: int) -> int:
        end = self.border(number) + self.step_batches
        if not self.store.exists(epoch, end - 1):
            return 0
        return end - number + self.store.ready(epoch, end) // self.step_batches * self.step_batches

    # ---- what they hold

    def draw(self, epoch: int, numbers: Sequence[int]) -> list[Drawn]:
        out = list[Drawn]()
        for number in numbers:
            first = max(0, self.border(number))
            step = self._steps(epoch, first)
            if number < first + len(step):
                held = step[number - first]
                out.append(Drawn(held.samples.only(held.samples.columns), held.membership, held.lost))
            else:  # the epoch has none: the store says so, or repeats one to fill a step
                out += self._repeated(epoch, number)
        return out

    def _repeated(self, epoch: int, number: int) -> list[Drawn]:
        (as_formed,) = self.store.draw(epoch, [number])
        (again,) = self.draw(epoch, [number % self.store.total(epoch)])
        filler = as_formed.membership.filler
        if filler is None:
            return [again]
        return [replace(again, membership=replace(again.membership, filler=np.arange(again.membership.rows)))]

    def _step(self, epoch: int, first: int) -> list[Drawn]:
        """The batches of a step that the epoch has, after the exchange."""
        count = self.step_batches
        if not self.store.exists(epoch, first + count - 1):
            count = bisect_left(range(count), x=True, key=lambda k: not self.store.exists(epoch, first + k))
        if not count:
            return []
        drawn = self.store.draw(epoch, range(first, first + count))
        fixed = [at for at, each in enumerate(drawn) if each.membership.filler is not None]
        some = [each for at, each in enumerate(drawn) if at not in fixed]
        if len(some) > 1:
            some = self._exchanged(epoch, some)
        left = iter(some)
        return [drawn[at] if at in fixed else next(left) for at in range(count)]

    def _exchanged(self, epoch: int, drawn: Sequence[Drawn]) -> list[Drawn]:
        sizes = np.array([each.membership.rows for each in drawn])
        formed, together = np.repeat(np.arange(len(drawn)), sizes), joined(drawn)
        packing = together.membership.packing
        row_of = np.arange(len(together.samples)) if packing is None else packing.rows
        part_costs = np.concatenate(self._costs.of_samples(epoch, drawn))
        costs = np.bincount(row_of, weights=part_costs, minlength=len(formed)).astype(np.float64)
        lengths = self._costs.longest(epoch, drawn)
        widths = None if lengths is None else np.maximum.reduceat(lengths, np.cumsum(sizes) - sizes)
        batch_of = exchanged(costs, formed, lengths, widths)
        return [_of_rows(together, np.flatnonzero(batch_of == at), row_of, each) for at, each in enumerate(drawn)]

    def find(self, epoch: int, stream: int, row: int) -> Iterator[int]:
        seen = -1
        for number in self.store.find(epoch, stream, row):
            first = self.border(number)
            if first == seen:
                continue
            seen = first
            for at, each in enumerate(self._steps(epoch, first)):
                rows = each.samples.stream_rows
                if ((np.asarray(rows.streams) == stream) & (rows.rows == np.uint64(row))).any():
                    yield first + at

    # ---- what a state says, and who goes on from one: by borders of steps

    def undelivered(self, epoch: int, number: int) -> tuple[UInt64, int]:
        if number != self.border(number):
            msg = (
                f"rebase: batch {number:,} lies inside a step of {self.step_batches:,} batches that exchange rows. Stop at a "
                "step's border"
            )
            raise ResumeError(msg)
        return self.store.undelivered(epoch, number)

    def begun(self, epoch: int, number: int) -> int | None:
        return self.store.begun(epoch, self.border(number))

    def next_chapter(self, epoch: int, number: int) -> tuple[int, int] | None:
        found = self.store.next_chapter(epoch, -(-number // self.step_batches) * self.step_batches)
        return found if found is not None and found[0] == self.border(found[0]) else None

    def anchors(self, epoch: int, number: int) -> list[Anchor] | None:
        return self.store.anchors(epoch, self.border(number))

    def anchor(self, epoch: int, anchors: Iterable[Anchor]) -> None:
        self.store.anchor(epoch, anchors)

    def possible(self, epoch: int, number: int, anchors: Iterable[Anchor]) -> list[Anchor]:
        return self.store.possible(epoch, self.border(number), anchors)

    @property
    def handed_on(self) -> tuple[Path, Known] | None:
        return self.store.handed_on

    def need_known(self, bound: Bound, workers: int, epoch: int) -> None:
        self.store.need_known(replace(bound, steps=None), workers, epoch)
        self._costs.need_known(bound, workers)

    def held(self, argument: str) -> AbstractContextManager[None]:
        return self.store.held(argument)


def _of_rows(together: Drawn, rows: Int64, row_of: Int64, formed: Drawn) -> Drawn:
    """Return a batch of some rows of several batches, as wide as it was formed."""
    at = np.flatnonzero(np.isin(row_of, rows))
    membership, packing = together.membership, together.membership.packing
    if packing is not None:
        packing = replace(packing.take(at), rows=np.searchsorted(rows, packing.rows[at]))
    lengths = None if membership.lengths is None else membership.lengths[..., at]
    shape = Membership(np.arange(len(at)), len(rows), formed.membership.width, lengths, packing)
    return Drawn(Samples.take(together.samples, at), shape, formed.lost)
