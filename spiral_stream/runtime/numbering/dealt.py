"""Optimizer steps of a run, dealt to its ranks: which batch is delivered as which.

A run that binds ``step_batches`` counts what is delivered: an index says how many batches all ranks get before. Index and
batch differ inside an optimizer step only: the indices of a step hold a permutation of its batches (`sampling.dealing`),
which follows from what these cost. So each rank draws all batches of a step, reads the columns of the cost for them, and no
payload but its own.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, final

import numpy as np

from spiral_stream.cursor import Segment
from spiral_stream.runtime.columns.samples import Samples
from spiral_stream.runtime.numbering.batch_costs import BatchCosts
from spiral_stream.runtime.numbering.drawn import Drawn
from spiral_stream.runtime.numbering.numbering import Numbering
from spiral_stream.sampling.dealing import Float64, Int64, dealt, microsteps
from spiral_stream.sampling.memo import memo

_DRAWN: Final = 2  # steps whose samples are held: the present one, and the next one, which is drawn ahead
_DEALT: Final = 256  # steps whose deal is held
_NO_END: Final = 2**62  # batches before the end of all epochs


@final
@dataclass(frozen=True, eq=False)
class DealtStep:
    """One optimizer step.

    Attributes:
        first: its first batch, and its first index.
        order: shape [G]: the batch at each index; both are counted from ``first``.
        costs: shape [G], of the batches.
        samples: of all of them.
        segment: whose ranks share it.
        totals: what the step comes to, by expression.
    """

    first: int
    order: Int64
    costs: Float64
    samples: int
    segment: Segment
    totals: Mapping[str, float]

    @cached_property
    def per_rank(self) -> Float64:
        """What each rank works on in each microstep, in units of cost: shape [J, W]."""
        return microsteps(self.costs[self.order], self.segment.world_size, self.segment.merge)

    @cached_property
    def shadow(self) -> Float64:
        """The same without a deal: each rank takes the batches as they are numbered."""
        return microsteps(self.costs, self.segment.world_size, self.segment.merge)


@final
class Dealer:
    """Deals the optimizer steps of some segments of an epoch. Thread-safe.

    Args:
        batches: what is delivered, in order.
        costs: what batches cost; None where nothing is dealt by cost.
        segments: of the run, in one epoch.
        totals: what a step comes to, by expression.
    """

    def __init__(
        self,
        batches: Numbering,
        costs: BatchCosts | None,
        segments: Sequence[Segment],
        totals: Mapping[str, BatchCosts],
    ) -> None:
        self._batches, self._segments, self._totals = batches, segments, totals
        by_cost = any(each.deal is not None and each.deal.policy == "cost" for each in segments)
        self._costs = costs if costs is not None and (by_cost or costs.unknown() is None) else None
        self._drawn = memo(self._draw_step, _DRAWN)
        self._steps = memo(self._step, _DEALT)

    def bounds(self, index: int) -> range:
        """Return the indices of the optimizer step, or of the step, that has one of them."""
        at = self._at(index)
        segment = self._segments[at]
        first = max(0, segment.border(index))
        return range(first, min(first + segment.together, self._end(at)))

    def step(self, epoch: int, index: int) -> DealtStep | None:
        """Return the optimizer step that has an index; None where the run dealt none then, or has no cost.

        Raises:
            IndexError: the epoch has no such batch.
        """
        return self.any_step(epoch, index) if self._deals(index) and self._costs is not None else None

    def any_step(self, epoch: int, index: int) -> DealtStep:
        """Return the optimizer step that has an index, or the step where the run says no optimizer steps.

        Raises:
            IndexError: the epoch has no such batch.
        """
        return self._steps(epoch, self._at(index), self.bounds(index).start)

    def batch_at(self, epoch: int, index: int) -> int:
        """Return which batch is delivered at an index, counted by number."""
        found = self.step(epoch, index) if self._by_cost(index) else None
        return index if found is None else found.first + int(found.order[index - found.first])

    def batches_at(self, epoch: int, indices: Int64) -> Int64:
        """Return `batch_at` of several indices, ascending: shape [N] -> [N]."""
        out, at = indices.copy(), 0
        while at < len(indices):
            inside = self.bounds(int(indices[at]))
            stop = int(np.searchsorted(indices, inside.stop))
            if self._by_cost(int(indices[at])):
                found = self._steps(epoch, self._at(inside.start), inside.start)
                out[at:stop] = found.first + found.order[indices[at:stop] - found.first]
            at = stop
        return out

    def index_of(self, epoch: int, batch: int) -> int:
        """Return the index at which a batch is delivered: the inverse of `batch_at`."""
        found = self.step(epoch, batch) if self._by_cost(batch) else None
        return batch if found is None else found.first + int(np.flatnonzero(found.order == batch - found.first)[0])

    def draw(self, epoch: int, indices: Sequence[int]) -> list[Drawn]:
        """Return what is delivered at some indices, ascending, as `Numbering.draw` does for batches."""
        out, at = list[Drawn](), 0
        while at < len(indices):
            inside = self.bounds(indices[at])
            stop = bisect_left(indices, inside.stop, lo=at)
            if self._looks_at(indices[at]):
                step = self._steps(epoch, self._at(inside.start), inside.start)
                held = self._drawn(epoch, step.first, inside.stop - inside.start)
                chosen = (held[int(step.order[index - step.first])] for index in indices[at:stop])
                out += [Drawn(_apart(each.samples), each.membership, each.lost) for each in chosen]
            else:
                out += self._batches.draw(epoch, indices[at:stop])
            at = stop
        return out

    def _at(self, index: int) -> int:
        """The segment of an index."""
        firsts = [each.first_batch for each in self._segments]
        return max(0, bisect_left(firsts, index + 1) - 1)

    def _end(self, at: int) -> int:
        """The index after a segment's last one."""
        return self._segments[at + 1].first_batch if at + 1 < len(self._segments) else _NO_END

    def _deals(self, index: int) -> bool:
        return self._segments[self._at(index)].deal is not None

    def _looks_at(self, index: int) -> bool:
        """Whether the step of an index is drawn at once: for its deal, for what it comes to, or to say what ranks wait."""
        return bool(self._totals) or (self._deals(index) and self._costs is not None)

    def _by_cost(self, index: int) -> bool:
        deal = self._segments[self._at(index)].deal
        return deal is not None and deal.policy == "cost" and index >= self._segments[0].first_batch

    def _step(self, epoch: int, at: int, first: int) -> DealtStep:
        segment = self._segments[at]
        drawn = self._drawn(epoch, first, self.bounds(first).stop - first)
        deal = segment.deal
        known = self._costs is not None and deal is not None
        costs = self._costs.of(epoch, drawn) if self._costs is not None and known else np.zeros(len(drawn))
        policy, sizes = "order" if deal is None else deal.policy, [each.membership.size for each in drawn]
        order = dealt(costs, segment.world_size, segment.merge, policy, sizes)
        totals = {text: each.total(epoch, drawn) for text, each in self._totals.items()}
        return DealtStep(first, order, costs, sum(len(each.samples) for each in drawn), segment, totals)

    def _draw_step(self, epoch: int, first: int, count: int) -> list[Drawn]:
        """The batches of a step, as many as the epoch has."""
        try:
            return self._batches.draw(epoch, range(first, first + count))
        except IndexError:
            there = bisect_left(range(count), x=True, key=lambda k: not self._batches.exists(epoch, first + k))
            if not there:
                raise
            return self._batches.draw(epoch, range(first, first + there))


def _apart(samples: Samples) -> Samples:
    """The same samples, in an object that a batch may add its columns to; the step keeps none of them."""
    return samples.only(samples.columns)
