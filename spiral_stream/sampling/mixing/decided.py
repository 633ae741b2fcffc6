"""A mixture whose shares were decided in mid-run: from some position of an epoch on, other shares hold.

A *stretch* goes from one decision to the next. It begins with what each stream has left there: some uses that the positions
before did not take, then every use from one on. Its own samples are numbered from 0, in the order of positions, and run through
these uses in their order. So no use is lost or comes twice, and passes go on counting (docs/decisions/0082).

The rest of the epoch in which it begins is laid out as an epoch of that many positions; later epochs are whole ones. Everything
is a function of plan and decisions. Cost: a stretch takes about 1 ms to find where it begins; a position costs what it does in a
mixture, and a slice where positions are scattered.
"""

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.errors import PlanError
from spiral_stream.sampling.memo import memo
from spiral_stream.sampling.mixing.in_order import EpochInOrder
from spiral_stream.sampling.mixing.mixture import Mixture, StreamsLeft, apportion
from spiral_stream.sampling.mixing.slices import Epoch, Int64, slice_count, slice_size
from spiral_stream.sampling.order import LARGEST, UInt64
from spiral_stream.seeding import key

# K streams, P positions

_EPOCHS: Final = 4  # of a stretch, that are kept
_VERSION: Final = 1  # of how a stretch is laid out; states say so by the edit that they hold


@final
@dataclass(frozen=True, slots=True)
class Change:
    """From a position of an epoch on, the streams have these weights: whole numbers, not all 0."""

    epoch: int
    position: int
    weights: tuple[int, ...]

    @property
    def at(self) -> tuple[int, int]:
        """Epoch and position."""
        return self.epoch, self.position


@final
class DecidedStretch:
    """The positions from a change on.

    Args:
        seed: the plan's.
        total: positions of an epoch.
        change: where it begins, and the weights.
        left: what the streams have left there.
    """

    def __init__(self, seed: int, total: int, change: Change, left: StreamsLeft) -> None:
        self.change, self._total, self._then = change, total, left.then
        self._seeds = seed, key("decided mixture", _VERSION, seed, change.position) if change.position else seed
        first = apportion(total - change.position, change.weights)
        self._first, self._later = np.array(first), np.array(apportion(total, change.weights))
        self._ahead, self._counts = left.ahead, np.array([len(each) for each in left.ahead])
        self._joined = np.concatenate([*left.ahead, np.zeros(1, dtype=np.int64)])
        self._begins = np.cumsum(self._counts) - self._counts
        self.layout = memo(self._laid_out, _EPOCHS)

    def begin(self, epoch: int) -> int:
        """Return its first position in an epoch."""
        return self.change.position if epoch == self.change.epoch else 0

    def quotas(self, epoch: int) -> Int64:
        """Return how many samples each stream has in an epoch, if no other stretch begins in it; shape [K]."""
        return self._first if epoch == self.change.epoch else self._later

    def _laid_out(self, epoch: int) -> EpochInOrder:
        """An epoch's layout, from its first position on."""
        quotas, seed = self.quotas(epoch), self._seeds[epoch == self.change.epoch]
        slices = slice_count(self._total - self.begin(epoch), slice_size(len(quotas)))
        return EpochInOrder(Epoch(seed, epoch, quotas, slices))

    def before(self, epoch: int) -> Int64:
        """Return its samples of each stream before an epoch; shape [K]."""
        later = epoch - self.change.epoch - 1
        return np.zeros_like(self._first) if later < 0 else self._first + later * self._later

    def number_at(self, epoch: int, position: int) -> Int64:
        """Return its samples of each stream before a position of an epoch, if no other stretch began; shape [K]."""
        return self.before(epoch) + self.layout(epoch).taken(position - self.begin(epoch))

    def uses(self, streams: Int64, numbers: Int64) -> Int64:
        """Translate its own numbers to uses of the streams; shape [P] -> [P]."""
        behind = numbers - self._counts[streams]
        at = np.where(behind < 0, self._begins[streams] + numbers, len(self._joined) - 1)
        return np.where(behind < 0, self._joined[at], self._then[streams] + behind)

    def numbers(self, streams: Int64, uses: Int64) -> Int64:
        """Translate back: the inverse of `uses`, or -1 for a use that was taken before it began."""
        behind = uses - self._then[streams]
        out = np.where(behind < 0, -1, behind + self._counts[streams])
        for stream in np.unique(streams[behind < 0]).tolist():
            ahead = self._ahead[stream]
            if len(ahead):
                at = np.flatnonzero((streams == stream) & (behind < 0))
                found = np.minimum(np.searchsorted(ahead, uses[at]), len(ahead) - 1)
                out[at] = np.where(ahead[found] == uses[at], found, -1)
        return out

    def left(self, epoch: int, position: int) -> StreamsLeft:
        """Return what the streams have left at a position of an epoch."""
        taken = self.number_at(epoch, position)
        ahead = tuple(each[n:] for each, n in zip(self._ahead, taken.tolist(), strict=True))
        return StreamsLeft(ahead, self._then + np.maximum(taken - self._counts, 0))


@final
class DecidedMixture:
    """A mixture with its changes: the same questions, and the same answers before the first change. Thread-safe.

    Args:
        base: the mixture that the plan states.
        seed: the plan's.
        changes: at least one, ascending; each lies in an epoch that ``base`` has, and before the epoch's end.
        known: the same mixture with other changes; what both have in common is not found again.
    """

    def __init__(
        self, base: Mixture, seed: int, changes: Sequence[Change], known: "DecidedMixture | None" = None
    ) -> None:
        self.base, self.total, self.slices = base, base.total, base.slices
        self.changes = tuple(changes)
        self._begins = [change.at for change in changes]
        pairs = [] if known is None else zip(known.changes, changes, strict=False)
        common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        self.stretches: list[DecidedStretch] = [] if known is None else known.stretches[:common]
        for number, change in enumerate(changes[common:], common):
            self.stretches.append(DecidedStretch(seed, self.total, change, self._left(number - 1, *change.at)))

    def _left(self, number: int, epoch: int, position: int) -> StreamsLeft:
        return (self.base if number < 0 else self.stretches[number]).left(epoch, position)

    def _at(self, epoch: int, position: int) -> int:
        """The number of the stretch that holds a position; -1 before the first."""
        return bisect_right(self._begins, (epoch, position)) - 1

    def _parts(self, epoch: int) -> Iterator[tuple[DecidedStretch | None, int, int]]:
        """The stretches of an epoch, None before the first change, with their positions [begin, end)."""
        if epoch >= self._begins[0][0] and (epoch + 1) * self.total > LARGEST:
            msg = f"mix: epoch {epoch}, of {self.total} positions, goes past sample 2**62. Start a new run before it"
            raise PlanError(msg)
        at, begin = self._at(epoch, 0), 0
        while begin < self.total:
            there = at + 1 < len(self._begins) and self._begins[at + 1][0] == epoch
            end = self._begins[at + 1][1] if there else self.total
            yield (None if at < 0 else self.stretches[at]), begin, end
            at, begin = at + 1, end

    def split(self, epoch: int, positions: UInt64) -> tuple[NDArray[np.int32], UInt64]:
        """The stream at each position of an epoch, and which of its samples; as `Mixture.split` does."""
        if epoch < self._begins[0][0]:
            return self.base.split(epoch, positions)
        wanted = np.asarray(positions, dtype=np.uint64).astype(np.int64)
        if wanted.size and int(wanted.max()) >= self.total:
            return self.base.split(epoch, positions)  # which refuses it
        streams, uses = np.empty(wanted.shape, dtype=np.int64), np.empty(wanted.shape, dtype=np.int64)
        if not wanted.size:
            return streams.astype(np.int32), uses.astype(np.uint64)
        first, last = int(wanted.min()), int(wanted.max())
        for stretch, begin, end in self._parts(epoch):
            if end <= first or begin > last:
                continue
            at = np.flatnonzero((wanted >= begin) & (wanted < end))
            if not len(at):
                continue
            if stretch is None:
                streams[at], uses[at] = self.base.split(epoch, wanted[at].astype(np.uint64))
                continue
            owners, samples = stretch.layout(epoch).split(wanted[at] - stretch.begin(epoch))
            streams[at], uses[at] = owners, stretch.uses(owners, stretch.before(epoch)[owners] + samples)
        return streams.astype(np.int32), uses.astype(np.uint64)

    def join(self, epoch: int, streams: NDArray[np.int32], uses: UInt64) -> Int64:
        """The position of each use in an epoch, or -1; as `Mixture.join` does."""
        if epoch < self._begins[0][0]:
            return self.base.join(epoch, streams, uses)
        owners, wanted = np.asarray(streams, dtype=np.int64), np.asarray(uses, dtype=np.uint64).astype(np.int64)
        out = np.full(owners.shape, -1, dtype=np.int64)
        for stretch, begin, end in self._parts(epoch):
            if stretch is None:
                found = self.base.join(epoch, streams, uses)
            else:
                found = np.full(owners.shape, -1, dtype=np.int64)
                samples = stretch.numbers(owners, wanted) - stretch.before(epoch)[owners]
                at = np.flatnonzero((samples >= 0) & (samples < stretch.quotas(epoch)[owners]))
                found[at] = stretch.layout(epoch).join(owners[at], samples[at]) + stretch.begin(epoch)
            out = np.where((found >= begin) & (found < end), found, out)
        return out

    def quotas(self, epoch: int) -> UInt64:
        """Return how many samples of each stream an epoch has; shape [K], uint64, summing to ``total``."""
        if epoch < self._begins[0][0]:
            return self.base.quotas(epoch)
        return self.taken(epoch, self.total).astype(np.uint64)

    def taken(self, epoch: int, position: int) -> Int64:
        """Return how many samples of each stream come before a position in [0, total] of an epoch; shape [K], int64."""
        if epoch < self._begins[0][0]:
            return self.base.taken(epoch, position)
        out = np.zeros(len(self.stretches[0].quotas(epoch)), dtype=np.int64)
        for stretch, begin, end in self._parts(epoch):
            stop = min(end, position)
            if stretch is None:
                out += self.base.taken(epoch, stop)
            elif begin < stop:
                out += stretch.layout(epoch).taken(stop - begin)
        return out

    def span(self, epoch: int, stream: int) -> tuple[int, int]:
        """Return a range of uses that holds all those of a stream in an epoch, maybe with others."""
        if epoch < self._begins[0][0]:
            return self.base.span(epoch, stream)
        ranges = []
        for stretch, _, end in self._parts(epoch):
            if stretch is None:
                ranges.append(self.base.span(epoch, stream))
                continue
            numbers = np.array([stretch.before(epoch)[stream], stretch.number_at(epoch, end)[stream] - 1])
            if numbers[0] <= numbers[1]:
                first, last = stretch.uses(np.full(2, stream), numbers).tolist()
                ranges.append((first, last + 1))
        return min((first for first, _ in ranges), default=0), max((end for _, end in ranges), default=0)

    def left(self, epoch: int, position: int) -> StreamsLeft:
        """Return the uses that no position before one in [0, total) of an epoch has, nor an epoch before."""
        return self._left(self._at(epoch, position), epoch, position)

    def border(self, epoch: int, position: int) -> int:
        """Return the first slice border at or after a position in [0, total]; where shares change is one."""
        at = self._at(epoch, min(position, self.total - 1))
        end = self.total
        if at + 1 < len(self._begins) and self._begins[at + 1][0] == epoch:
            end = self._begins[at + 1][1]
        if at < 0:
            return min(self.base.border(epoch, position), end)
        stretch = self.stretches[at]
        begin = stretch.begin(epoch)
        return min(begin + stretch.layout(epoch).border(position - begin)[0], end)

    def ahead(self, epoch: int, position: int) -> NDArray[np.float64]:
        """Return how many samples each stream is ahead of its target at a slice border, counted from the last change."""
        at = self._at(epoch, min(position, self.total - 1))
        if at < 0:
            return self.base.ahead(epoch, position)
        layout, begin = self.stretches[at].layout(epoch), self.stretches[at].begin(epoch)
        return layout.ahead(position - begin, layout.taken(position - begin))

    def shares(self, epoch: int, position: int) -> NDArray[np.float64]:
        """Return the target share of each stream at a position in [0, total]; shape [K], float64, summing to 1."""
        at = self._at(epoch, min(position, self.total - 1))
        if at < 0:
            return self.base.shares(epoch, position)
        return self.stretches[at].layout(epoch).shares(position - self.stretches[at].begin(epoch))

    def mark(self, epoch: int) -> str:
        """Return what tells the epoch from the same one under other changes."""
        until = bisect_right(self._begins, (epoch, self.total))
        if not until:
            return ""
        held = [[*change.at, *map(str, change.weights)] for change in self.changes[:until]]
        return f"-{key('decided mixture', _VERSION, json.dumps(held)):016x}"

    def cuts(self, epoch: int) -> UInt64:
        """Return the positions of an epoch at which shares change; shape [C], uint64, ascending."""
        begin, end = (bisect_left(self._begins, (at, 0)) for at in (epoch, epoch + 1))
        return np.array([position for _, position in self._begins[begin:end]], dtype=np.uint64)


AnyMixture = Mixture | DecidedMixture
