"""The batches that a run delivers: those of its plan, after its edits.

A run skips batches and samples (docs/decisions/0040), and may promise how many steps an epoch has: ``bind(steps_per_epoch=)``.
It counts the batches that it delivers, so places, steps and tail rules need not know what is skipped. Here such a count
becomes the number of a batch. A batch is formed with all of its samples; those that are skipped leave it then. Where a run
deals optimizer steps (`dealt`), an index counts what is delivered, and the deal says which batch comes at each.

Every rank knows where an epoch of promised steps ends without knowing how many batches there are. With as many lanes as
readers, or a multiple, each rank forms the chapters of its own lanes alone (docs/decisions/0023, 0024): up to that step no
lane has ended, so batch g is batch ``g // lanes`` of lane ``g % lanes``.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from types import MappingProxyType
from typing import Any, cast, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.cursor import Segment
from spiral_stream.errors import StreamError
from spiral_stream.planner.binding.bindings import Bound
from spiral_stream.planner.stages import Stages
from spiral_stream.planner.state.skips import SkippedSample, Skips
from spiral_stream.runtime.numbering.batch_costs import BatchCosts
from spiral_stream.runtime.numbering.dealt import Dealer, DealtStep
from spiral_stream.runtime.numbering.drawn import Drawn, part_of
from spiral_stream.runtime.numbering.numbering import BatchStore, CountLimits, Numbering
from spiral_stream.runtime.numbering.random_access import found_rows
from spiral_stream.runtime.numbering.skipped_tables import matched
from spiral_stream.sampling.epoch import StreamRows
from spiral_stream.sampling.order import UInt64

Int64 = NDArray[np.int64]


@final
class RunBatches(Numbering):
    """What is left of all batches of a plan.

    Args:
        store: all of them.
        skips: what is skipped of them.
        stages: the lowered plan.
        costs: what batches cost; None if the plan does not say.
        totals: what a step comes to, by expression.
        tables: those of `Skips.tables`.

    Attributes:
        limits: what is refused because counting batches would take long.
        whole: whether the run delivers all of them.
        end: batches of an epoch, if the run promised how many steps it has.
        group: batches of such a step.
        dealer: deals optimizer steps; None where batches are delivered as they are numbered.
        steps: knows what steps come to; None where nobody asks.
    """

    def __init__(
        self,
        store: BatchStore,
        skips: Skips,
        stages: Stages,
        costs: BatchCosts | None = None,
        totals: Mapping[str, BatchCosts] = MappingProxyType({}),
        tables: Sequence[pa.Table] = (),
    ) -> None:
        self.store, self.last, self.limits, self.skips = store, store.last, store.limits, skips
        self.costs, self.totals = costs, totals
        self.dealer, self.steps = cast("Dealer | None", None), cast("Dealer | None", None)
        self.whole = not skips
        self.end: int | None = None
        self.group = 1
        self._streams = len(stages.streams)
        rows = [_rows(stages, sample) for sample in skips.samples]
        begun = [each.since for each in skips.samples]
        for skipped, table in zip(skips.tables, tables, strict=True):
            rows += [(k, found.rows) for k, found in enumerate(matched(stages, table))]
            begun += [skipped.since] * len(stages.streams)
        keys = np.concatenate([np.empty(0, dtype=np.uint64), *(self._keys(k, found) for k, found in rows)])
        since = np.repeat(np.array(begun, dtype=np.int64).reshape(-1, 2), [len(found) for _, found in rows], 0)
        order = np.lexsort((since[:, 1], since[:, 0], keys))
        first = np.append(True, keys[order][1:] != keys[order][:-1])[
            : len(keys)
        ]  # a row is skipped since the first of its places
        self._masked, self._since = keys[order][first], since[order][first]

    def over(self, store: BatchStore) -> "RunBatches":
        """Return what is left of the same batches in another store."""
        out = copy(self)
        out.store = store
        return out

    def promised(self, bound: Bound) -> "RunBatches":
        """Return the batches of the steps that a run takes in an epoch, looked for in their lanes, if it says how many."""
        if bound.steps is None:
            return self
        out = self.over(self.store.by_lane())
        out.whole, out.group = False, bound.world_size * bound.merge
        out.end, out.limits = bound.steps * out.group, CountLimits()
        return out

    def dealt(self, segments: Sequence[Segment]) -> "RunBatches":
        """Return the same batches as the ranks of a run get them, by the index of delivery.

        Args:
            segments: of the run, in one epoch.
        """
        dealt = any(each.deal is not None for each in segments)
        if not dealt and not self.totals:
            return self
        out = copy(self)
        out.dealer = out.steps = Dealer(self, self.costs, segments, self.totals)
        return out

    @property
    def left(self) -> Numbering:
        """Whom a pass asks for batches: the store itself, where the run delivers all of them as they are numbered."""
        return self.store if self.whole and self.dealer is None else self

    # ---- indices of delivery, batches as they are counted, and their numbers

    def batch_at(self, epoch: int, index: int) -> int:
        """Return which batch, as the run counts them, is delivered at an index."""
        return index if self.dealer is None else self.dealer.batch_at(epoch, index)

    def index_of(self, epoch: int, batch: int) -> int:
        """Return the index at which a batch is delivered, as the run counts batches."""
        return batch if self.dealer is None else self.dealer.index_of(epoch, batch)

    def number(self, epoch: int, index: int) -> int:
        """Return the number of the batch that is delivered at an index, as `ledger` takes it."""
        return self.skips.number(epoch, self.batch_at(epoch, index))

    def numbers(self, epoch: int, indices: Int64) -> Int64:
        """Return `number` of several indices: shape [N] -> [N]."""
        if self.dealer is not None:
            indices = self.dealer.batches_at(epoch, indices)
        return self.skips.numbers(epoch, indices)

    def step_totals(self, epoch: int, index: int) -> Mapping[str, float]:
        """Return what the step of a batch comes to, by expression."""
        assert self.steps is not None
        return self.steps.any_step(epoch, index).totals

    def step(self, epoch: int, index: int) -> DealtStep | None:
        """Return the optimizer step that has an index; None where the run says none, or the plan no cost."""
        return None if self.dealer is None else self.dealer.step(epoch, index)

    # ---- how many there are

    def exists(self, epoch: int, number: int) -> bool:
        if self.end is None:
            return self._is_there(epoch, number)
        if not 0 <= number < self.end:
            return False
        if not self.store.in_lanes and not self._is_there(epoch, number):
            raise self._too_many(epoch, number)
        return True

    def _is_there(self, epoch: int, number: int) -> bool:
        return number >= 0 and self.store.exists(epoch, self.skips.number(epoch, number))

    def total(self, epoch: int) -> int:
        return self._before(epoch, self.store.total(epoch)) if self.end is None else self.end

    def need_known(self, bound: Bound, workers: int, epoch: int) -> None:
        """Refuse several readers if each would have to compute anew who shares a batch, or what a batch costs.

        Raises:
            BindError: says what decides it, and the ways out.
        """
        self.store.need_known(bound, workers, epoch)
        by_cost = self.costs is not None and bound.deal is not None and bound.deal.policy == "cost"
        for each in (*([self.costs] if by_cost else ()), *self.totals.values()):
            assert each is not None
            each.need_known(bound, workers)

    def unknown(self, epoch: int) -> int:
        """Return how many chapters of the epoch `total` has to form first, as `BatchStore.unknown` does."""
        return self.store.unknown(epoch) if self.end is None else 0

    def alike(self, drawn: Callable[[int], int]) -> bool:
        """Return whether it is known without counting that all epochs have equally many batches.

        Args:
            drawn: which epoch's order an epoch has.
        """
        known = self.end is not None or (not self.skips and self.store.alike(drawn))
        return known or drawn(0) == drawn(1)

    def ready(self, epoch: int, number: int) -> int:
        if self.dealer is not None:
            inside = self.dealer.bounds(number)
            if not self.exists(epoch, inside.stop - 1):
                return 0
            more = self.undealt().ready(epoch, inside.stop)
            return inside.stop - number + more // len(inside) * len(inside)
        at = self.skips.number(epoch, number)
        stop = self._before(epoch, at + self.store.ready(epoch, at))
        return max(0, (stop if self.end is None else min(stop, self.end)) - number)

    def _before(self, epoch: int, end: int) -> int:
        """How many batches before one of the store are left."""
        if not self.skips.batches:
            return end
        is_left = self.skips.remaining(epoch)
        left = [(first, first + count) for first, count in is_left.left] + [(is_left.then, end)]
        return sum(max(0, min(stop, end) - first) for first, stop in left)

    # ---- what they hold

    def draw(self, epoch: int, numbers: Sequence[int]) -> list[Drawn]:
        if self.dealer is not None:
            return self.dealer.draw(epoch, numbers)
        named = [self.skips.number(epoch, each) if each >= 0 else each for each in numbers] if self.skips else numbers
        try:
            drawn = self.store.draw(epoch, named)
        except IndexError as error:
            lacking = next((each for each in numbers if not self._is_there(epoch, each)), numbers[-1])
            if self.end is None or not 0 <= lacking < self.end:
                raise
            raise self._too_many(epoch, lacking) from error
        if not len(self._masked):
            return drawn
        return [self._left(each, epoch, number) for each, number in zip(drawn, named, strict=True)]

    def standing_in(self, epoch: int, number: int, delivered_as: int) -> Drawn:
        """Return the samples of a batch that is delivered in place of another, of which nothing can be read.

        A batch from before a skip may stand in for one after it: then its skipped samples stay out too. States of earlier
        versions, whose record does not say so, deliver what they did.

        Args:
            epoch: the epoch.
            number: the batch, as the run counts them.
            delivered_as: the one that it stands in for, counted likewise.
        """
        (drawn,) = self.undealt().draw(epoch, [number])
        if not self.skips.stand_ins or delivered_as <= number:
            return drawn
        return self._left(drawn, epoch, self.skips.number(epoch, delivered_as))

    def undealt(self) -> "RunBatches":
        """Return the same batches as they are counted."""
        if self.dealer is None:
            return self
        out = copy(self)
        out.dealer = None
        return out

    def find(self, epoch: int, stream: int, row: int) -> Iterator[int]:
        one = np.array([stream], dtype=np.int32), np.array([row], dtype=np.uint64)
        samples = StreamRows(*one, np.zeros(1, dtype=np.uint64))
        for number in self.store.find(epoch, stream, row):
            at = self.skips.delivered(epoch, number)
            if at is None or self._skipped(samples, epoch, number).any():
                continue
            if self.end is None or at < self.end:
                yield at

    def _left(self, drawn: Drawn, epoch: int, number: int) -> Drawn:
        left = np.flatnonzero(~self._skipped(drawn.samples.stream_rows, epoch, number))
        if len(left) == len(drawn.samples):
            return drawn
        return Drawn(drawn.samples.take(left), part_of(drawn.membership, left), drawn.lost)

    def _skipped(self, stream_rows: StreamRows, epoch: int, number: int) -> NDArray[np.bool_]:
        """Which samples of a batch are skipped: shape [S]."""
        if not len(self._masked):
            return np.zeros(len(stream_rows), dtype=np.bool_)
        keys = self._keys(stream_rows.streams, stream_rows.rows)
        at = np.minimum(self._masked.searchsorted(keys), len(self._masked) - 1)
        epochs, numbers = self._since[at, 0], self._since[at, 1]
        begun = (epochs < epoch) | ((epochs == epoch) & (numbers <= number))
        out: NDArray[np.bool_] = (self._masked[at] == keys) & begun
        return out

    def _keys(self, streams: Any, rows: UInt64) -> UInt64:
        """One number per row of all streams, [R] -> [R]: rows are below 2**62 over all streams."""
        return rows * np.uint64(self._streams) + np.asarray(streams).astype(np.uint64)

    def _too_many(self, epoch: int, number: int) -> StreamError:
        assert self.end is not None
        step = number // self.group
        return StreamError(
            f"iter: steps_per_epoch={self.end // self.group:,} is bound, and epoch {epoch:,} has no batch {number:,}, "
            f"which step {step:,} needs. Bind at most {step:,} steps; or leave it out, and count the epoch with "
            "stream.materialize(lengths=True)"
        )


def _rows(stages: Stages, sample: SkippedSample) -> tuple[int, UInt64]:
    named = (sample.stream, *sample.identity) if sample.stream else sample.identity
    try:
        return found_rows(stages, named, "resume")
    except KeyError:  # gone since, at a rebase; it is skipped again when it comes back
        return 0, np.empty(0, dtype=np.uint64)
