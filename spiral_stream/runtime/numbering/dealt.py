"""Optimizer steps of a run, dealt to its ranks: which batch stands at which place of delivery.

A run that binds ``step_batches`` counts delivery in places. Place and batch differ inside an optimizer step only: a step's
places hold a permutation of its batches (`sampling.dealing`), which follows from what these cost. So each rank draws all
batches of a step, reads the columns of the cost for them, and no payload but its own.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, final

import numpy as np

from spiral_stream.cursor import Segment
from spiral_stream.runtime.columns.samples import Samples
from spiral_stream.runtime.numbering.drawn import Drawn
from spiral_stream.runtime.numbering.numbering import Numbering
from spiral_stream.sampling.dealing import Float64, Int64, dealt, microsteps
from spiral_stream.sampling.memo import memo

_DRAWN: Final = 2  # steps whose samples are held: the present one, and the next one, which is drawn ahead
_DEALT: Final = 256  # steps whose deal is held
_WHOLE: Final = 2**62  # batches before the end of all epochs

Costs = Callable[[int, Sequence[Drawn]], Float64]


@final
@dataclass(frozen=True, eq=False)
class DealtStep:
    """One optimizer step.

    Attributes:
        first: its first batch, which is its first place too.
        order: shape [G]: the batch at each place, counted from ``first``.
        costs: shape [G], of the batches.
        samples: of all of them.
        segment: whose ranks share it.
    """

    first: int
    order: Int64
    costs: Float64
    samples: int
    segment: Segment

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
    """

    def __init__(self, batches: Numbering, costs: Costs | None, segments: Sequence[Segment]) -> None:
        self._batches, self._costs, self._segments = batches, costs, segments
        self._drawn = memo(self._draw_step, _DRAWN)
        self._steps = memo(self._step, _DEALT)

    def bounds(self, place: int) -> range:
        """Return the places of the optimizer step, or of the step, that has a place."""
        at = self._at(place)
        segment = self._segments[at]
        first = segment.border(place)
        return range(first, min(first + segment.together, self._end(at)))

    def step(self, epoch: int, place: int) -> DealtStep | None:
        """Return the optimizer step that has a place; None where the run dealt none then, or has no cost.

        Raises:
            IndexError: the epoch has no such batch.
        """
        if not self._deals(place) or self._costs is None:
            return None
        return self._steps(epoch, self._at(place), self.bounds(place).start)

    def batch_at(self, epoch: int, place: int) -> int:
        """Return which batch stands at a place, both counted by delivery."""
        found = self.step(epoch, place) if self._by_cost(place) else None
        return place if found is None else found.first + int(found.order[place - found.first])

    def batches_at(self, epoch: int, places: Int64) -> Int64:
        """Return `batch_at` of several places, ascending: shape [N] -> [N]."""
        out, at = places.copy(), 0
        while at < len(places):
            inside = self.bounds(int(places[at]))
            stop = int(np.searchsorted(places, inside.stop))
            if self._by_cost(int(places[at])):
                found = self._steps(epoch, self._at(inside.start), inside.start)
                out[at:stop] = found.first + found.order[places[at:stop] - found.first]
            at = stop
        return out

    def place_of(self, epoch: int, batch: int) -> int:
        """Return at which place a batch stands: the inverse of `batch_at`."""
        found = self.step(epoch, batch) if self._by_cost(batch) else None
        return batch if found is None else found.first + int(np.flatnonzero(found.order == batch - found.first)[0])

    def draw(self, epoch: int, places: Sequence[int]) -> list[Drawn]:
        """Return what stands at some places, ascending, as `Numbering.draw` does for batches."""
        out, at = list[Drawn](), 0
        while at < len(places):
            inside = self.bounds(places[at])
            stop = bisect_left(places, inside.stop, lo=at)
            if self._by_cost(places[at]):
                step = self._steps(epoch, self._at(inside.start), inside.start)
                held = self._drawn(epoch, step.first, step.segment.together)
                chosen = (held[int(step.order[place - step.first])] for place in places[at:stop])
                out += [Drawn(_apart(each.samples), each.membership, each.lost) for each in chosen]
            else:
                out += self._batches.draw(epoch, places[at:stop])
            at = stop
        return out

    def _at(self, place: int) -> int:
        """The segment of a place."""
        firsts = [each.first_batch for each in self._segments]
        return max(0, bisect_left(firsts, place + 1) - 1)

    def _end(self, at: int) -> int:
        """The place after a segment's last one."""
        return self._segments[at + 1].first_batch if at + 1 < len(self._segments) else _WHOLE

    def _deals(self, place: int) -> bool:
        return self._segments[self._at(place)].deal is not None

    def _by_cost(self, place: int) -> bool:
        deal = self._segments[self._at(place)].deal
        return deal is not None and deal.policy == "cost" and place >= self._segments[0].first_batch

    def _step(self, epoch: int, at: int, first: int) -> DealtStep:
        segment = self._segments[at]
        assert segment.deal is not None
        assert self._costs is not None
        drawn = self._drawn(epoch, first, segment.together)
        costs = self._costs(epoch, drawn)
        order = dealt(costs, segment.world_size, segment.merge, segment.deal.policy)
        return DealtStep(first, order, costs, sum(len(each.samples) for each in drawn), segment)

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
