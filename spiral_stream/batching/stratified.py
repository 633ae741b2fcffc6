"""Which samples share a batch when every batch holds each stream's share, and samples of similar length.

Each stream's samples are sorted on their own. Merged by the place at which its share calls for each sample, they form one
sequence of quantiles, and cutting it by the limits gives the sizes of the batches. In the order of delivery, the batches
are then dealt whole samples of each stream, earliest deadline first: unit i of stream k is due when its target
``share_k * delivered - ahead_k`` reaches i + 1, and may not come before the target passes i (the just-in-time rounding of
Steiner and Yeomans 1993). No stream is ever a whole sample off. A stream's samples fill its places from short to long.

The samples that a batch is dealt are not exactly those that its size was cut for. If a batch breaks a limit, sizes are
cut again with the costs of the samples dealt. If one still breaks a limit, it is cut into two batches, delivered one
after the other, and everything is dealt anew.

The input is a shuffle (`sampling.mixing.slices`), so a stream may come late, and the others wait for it in the pool;
`smallest_window` says how many. In a smaller window the pool may be full before the stream comes. Then one batch goes
without it, and its samples are dealt first when they come, so it is never further behind than its supply (version 2;
only for windows that `is_sure` does not vouch for). Where samples are counted, that batch is a whole one, as all are.
Cost, of a window of 8,192 in three streams: 2 ms, and 30 us per batch. With many streams a window holds few samples of
each, so quantiles are coarse and batches pad more: give a larger window.
"""

from dataclasses import dataclass
from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.batching.budget import BatchLimits
from spiral_stream.batching.cutting import even_end, is_full, run_ends
from spiral_stream.batching.emission import emission_order
from spiral_stream.batching.formation import Composition, Int64, Setting
from spiral_stream.batching.grouping import Grouping, Pool, targets
from spiral_stream.seeding import key

Float64 = NDArray[np.float64]

_CUTS: Final = 2  # times that sizes are cut; more gained no budget in 3 streams, and lost some in 1,000
_HORIZON: Final = 4  # samples per stream; by then those that lag behind have caught up
_FOLLOWS: Final = 2.0  # samples; a stream that is further off its share did not get its supply by shares
_SURE: Final = 1e-12  # the chance that a window which `is_sure` vouches for is too small
_EPOCHS: Final = 10_000  # in which the smallest window may break the promise once
_EXACT: Final = 1e-9  # a value this near to a whole number counts as that number: shares are rounded fractions

# S samples, K streams, J batches


def smallest_window(shares: Float64, positions: float, slices: float, batch_size: int | None) -> int:
    """Return the smallest window in which no stream is a whole sample off its share, except once in 10,000 epochs.

    While stream k is late by D samples, all samples since its share called for them wait: ``D / share_k``. Inside a slice,
    D is the largest fall of a bridge of hypergeometric steps; it exceeds d with chance ``exp(-2 d**2 / (positions * share *
    (1 - share)))``. At slice borders no stream is late, so at most a slice waits.

    Args:
        shares: shape [K], float64, summing to 1.
        positions: positions of a slice.
        slices: slices of an epoch.
        batch_size: samples per batch; None under a budget.
    """
    return _held(shares, positions, 1 / (_EPOCHS * max(1.0, slices) * max(1, len(shares)))) + (batch_size or 1)


def is_sure(window_size: int, shares: Float64, positions: float, batch_size: int | None) -> bool:
    """Return whether a window never fills up with samples that wait for a late stream; arguments as `smallest_window`."""
    return (_held(shares, positions, _SURE) + (batch_size or 0)) * 8 <= window_size * 7  # an eighth of it is kept free


def _held(shares: Float64, positions: float, chance: float) -> int:
    """The most samples that wait, except with the given chance per slice and stream."""
    some = shares[shares > 0]
    bridge = np.sqrt(positions * (1 - some) / some * np.log(1 / chance) / 2) + 1 / some
    return int(np.ceil(np.minimum(bridge, positions).max(initial=0.0))) + _HORIZON * len(some)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """How many samples each stream is due: ``slopes * s - leads`` after s samples from here, and no more than it has."""

    slopes: Float64
    leads: Float64
    supply: Int64

    def most(self, delivered: int) -> Int64:
        """Return how many samples of each stream may have been delivered; shape [K]."""
        up = np.ceil(self.slopes * delivered - self.leads - _EXACT)
        return np.minimum(np.maximum(up, 0.0).astype(np.int64), self.supply)

    def can_go_on(self, delivered: int) -> bool:
        """Return whether streams that lag behind can catch up in time, if supply is no limit from here on."""
        horizon = delivered + _HORIZON * len(self.slopes)
        have = self.most(delivered)
        due = np.maximum(np.floor(self.slopes * horizon - self.leads + _EXACT).astype(np.int64) - have, 0)
        streams = np.repeat(np.arange(len(due)), due)
        nth = np.arange(1, len(streams) + 1) - np.repeat(np.cumsum(due) - due, due)
        ends = np.ceil(((have + self.leads)[streams] + nth) / self.slopes[streams] - _EXACT)
        return bool((np.sort(ends) >= delivered + np.arange(1, len(ends) + 1)).all())


def deal(sizes: Int64, line: Line) -> Int64:
    """Return how many samples of each stream every batch gets.

    Args:
        sizes: shape [J], samples per batch, in the order of delivery; their sum is at most `_Ranked.reach`.
        line: how many samples each stream is due.

    Returns:
        shape [J, K], int64; rows sum to the sizes.
    """
    count = len(line.slopes)
    with np.errstate(divide="ignore"):
        periods = 1.0 / line.slopes
    dealt = np.zeros(count, dtype=np.int64)
    out_JK = np.empty((len(sizes), count), dtype=np.int64)
    numbers = np.arange(count)
    for j, (size, end) in enumerate(zip(sizes.tolist(), np.cumsum(sizes).tolist(), strict=True)):
        free = np.maximum(line.most(end) - dealt, 0)
        if int(free.sum()) < size:  # a share was rounded on the very border
            free = line.supply - dealt
        streams = np.repeat(numbers, free)
        nth = np.arange(1, len(streams) + 1) - np.repeat(np.cumsum(free) - free, free)
        due = (dealt + line.leads)[streams] + nth
        first = np.argsort(due * periods[streams], kind="stable")[:size]
        out_JK[j] = np.bincount(streams[first], minlength=count)
        dealt += out_JK[j]
    return out_JK


@final
class StratifiedGrouping(Grouping):
    """Every batch holds each stream's share."""

    def __init__(self, composition: Composition, limits: BatchLimits, setting: Setting, cost_group: int) -> None:
        self._shares, self._ahead_at_start = targets(composition, setting)
        self._counts = np.zeros(len(self._shares), dtype=np.int64)
        self._limits = limits
        self._scarce, self._counted = setting.scarce, limits.only_counts
        self.leaves = self._counted
        self._key = setting.key
        self._group = cost_group
        self._window = -1

    def turn(self, shares: Float64) -> None:
        self._ahead_at_start = self._ahead()
        self._counts[:] = 0
        self._shares = shares

    def note(self, streams: NDArray[np.int32]) -> None:
        self._counts += np.bincount(streams, minlength=len(self._counts))

    def group(self, pool: Pool, patience: int, *, final: bool) -> list[Int64]:
        self._window += 1
        size = len(pool.streams)
        ranked = _Ranked(pool, len(self._shares))
        if not final:
            line = Line(self._shares, self._ahead(), ranked.supply)
            reach = ranked.reach(line)
            tried = []
            for hold in (True,) if self._counted else (True, False):
                tried.append(self._formed(ranked, line, reach, hold=hold, even=False))
                if size - sum(map(len, tried[-1])) <= patience:
                    return self._accounted(pool, tried[-1])
            if self._scarce:
                some = next(filter(None, tried), None)
                late = some or self._formed(ranked, line, self._due(size - patience), hold=False, even=False)
                return self._accounted(pool, late)
        # The whole pool by its own shares: the last of the chapter, or supply that does not follow the targets.
        ahead = self._ahead()
        if not final or np.abs(ahead).max(initial=0.0) >= _FOLLOWS or (ranked.supply + ahead).min(initial=0.0) < 0:
            ahead = np.zeros(len(self._shares))
        supply_line = Line(
            (ranked.supply + ahead) / max(1, size), ahead, ranked.supply
        )  # from where it stands to all of it
        batches = (
            self._full_batches(pool, supply_line)
            if self._counted
            else self._formed(ranked, supply_line, size, hold=False, even=True)
        )
        self._counts[:] = 0
        self._ahead_at_start[:] = 0.0
        return batches

    def _full_batches(self, pool: Pool, line: Line) -> list[Int64]:
        """Batches of counted samples of a whole pool; of each stream, the last to join fill none and wait."""
        given = line.supply - self._waiting(line.supply, len(pool.streams) % (self._limits.batch_size or 1))
        joined = np.lexsort((pool.samples, pool.streams))
        nth = np.arange(len(joined)) - (np.cumsum(line.supply) - line.supply)[pool.streams[joined]]
        mine = np.sort(joined[nth < given[pool.streams[joined]]])
        lengths = None if pool.lengths is None else pool.lengths[mine]
        part = Pool(pool.streams[mine], pool.samples[mine], lengths, tuple(cost[mine] for cost in pool.costs))
        ranked = _Ranked(part, len(self._shares))
        full_line = Line(line.slopes, line.leads, ranked.supply)
        return [mine[batch] for batch in self._formed(ranked, full_line, len(mine), hold=False, even=False)]

    def _waiting(self, supply: Int64, left: int) -> Int64:
        """How many samples of each stream wait, of ``left`` that fill no batch; shape [K].

        Each stream waits with its part of the chapter, rounded up or down by the chapter's key: else the same stream would
        lose a sample in every chapter, and have too many at the lane's end.
        """
        ends = np.cumsum(self._counts + supply)
        total = max(1, int(ends[-1]))
        waits = np.diff((ends * left + key("rest", self._key) % total) // total, prepend=0)
        waits = np.minimum(waits, supply)
        order = np.argsort(waits - supply, kind="stable")  # those with the most samples make up for the others
        more = np.minimum(np.cumsum((supply - waits)[order]), left - int(waits.sum()))
        waits[order] += np.diff(more, prepend=0)
        return waits

    def _due(self, crowded: int) -> int:
        """How many samples go without a late stream: one batch if samples are counted, else those that crowd the pool."""
        limits = self._limits
        return limits.batch_size if self._counted and limits.batch_size is not None else max(1, crowded)

    def _ahead(self) -> Float64:
        ahead: Float64 = self._ahead_at_start + self._counts - self._shares * int(self._counts.sum())
        return ahead

    def _accounted(self, pool: Pool, batches: list[Int64]) -> list[Int64]:
        if batches:
            self.note(pool.streams[np.concatenate(batches)])
        return batches

    def _formed(self, ranked: "_Ranked", line: Line, reach: int, *, hold: bool, even: bool) -> list[Int64]:
        """Batches of the first ``reach`` samples by quantile, in the order of delivery."""
        merged = ranked.merged(line)[:reach]
        lengths, costs = ranked.costs(merged)
        for left in range(_CUTS - 1, -1, -1):
            ends = run_ends(len(merged), lengths, costs, self._limits)
            if even:
                ends = even_end(ends, lengths, costs, self._limits)
            elif hold and len(ends) > 1 and not is_full(int(ends[-2]), int(ends[-1]), lengths, costs, self._limits):
                ends = ends[:-1]
            sizes = np.diff(ends)
            dealt = self._dealt(ranked, line, sizes, np.ones_like(sizes))
            if not left or not dealt.broken.size:
                break
            lengths, costs = self._raised(lengths, costs, *ranked.costs(dealt.members), sizes)
        parts = np.ones_like(sizes)
        while dealt.broken.size:
            parts[dealt.broken] = np.minimum(2 * parts[dealt.broken], sizes[dealt.broken])
            dealt = self._dealt(ranked, line, sizes, parts)
        return dealt.batches

    def _raised(
        self,
        lengths: Int64 | None,
        costs: tuple[Int64, ...],
        real_lengths: Int64 | None,
        real_costs: tuple[Int64, ...],
        sizes: Int64,
    ) -> tuple[Int64 | None, tuple[Int64, ...]]:
        """Foreseen lengths and costs [S], raised to what the batches of these sizes were dealt."""
        if lengths is not None and real_lengths is not None:
            if self._limits.padded:
                longest = np.maximum.reduceat(real_lengths, np.cumsum(sizes) - sizes)
                lengths = np.maximum(lengths, _padded(np.repeat(longest, sizes), len(lengths)))
            else:
                lengths = _with_surplus(lengths, real_lengths, sizes)
        return lengths, tuple(_with_surplus(*pair, sizes) for pair in zip(costs, real_costs, strict=True))

    def _dealt(self, ranked: "_Ranked", line: Line, wanted: Int64, parts: Int64) -> "_Dealt":
        """Deal samples to batches of the wanted sizes, each cut into parts that are delivered one after the other."""
        order = emission_order(len(wanted), self._group, self._key, self._window)
        of = np.repeat(np.arange(len(wanted)), parts)
        firsts = np.cumsum(parts) - parts
        sizes = wanted[of] // parts[of]
        sizes += np.arange(len(of)) - firsts[of] < wanted[of] % parts[of]
        delivered = _spread(firsts[order], parts[order])
        counts_JK = np.empty((len(sizes), len(line.slopes)), dtype=np.int64)
        counts_JK[delivered] = deal(sizes[delivered], line)
        members = ranked.members(counts_JK)
        return _Dealt(members, sizes, delivered, of[~ranked.hold(members, sizes, self._limits)])


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Dealt:
    """The samples of batches that may break a limit."""

    members: Int64  # [S] batch after batch, by quantile
    sizes: Int64  # [J]
    delivered: Int64  # [J] which batch comes at each place
    broken: Int64  # wanted batches of which a part breaks a limit

    @property
    def batches(self) -> list[Int64]:
        """The members of each batch, in the order of delivery."""
        members = np.split(self.members, np.cumsum(self.sizes)[:-1])
        return [members[j] for j in self.delivered]


@final
class _Ranked:
    """A pool's samples, sorted by stream, then by key."""

    def __init__(self, pool: Pool, streams: int) -> None:
        self._pool = pool
        self._samples = np.argsort(pool.streams, kind="stable")
        self._streams = pool.streams[self._samples]
        self.supply: Int64 = np.bincount(pool.streams, minlength=streams).astype(np.int64)
        self._firsts = np.cumsum(self.supply) - self.supply
        self._ranks = np.arange(len(self._samples)) - self._firsts[self._streams]

    def merged(self, line: Line) -> Int64:
        """Return the samples of the pool in the order in which they are due; shape [S]."""
        return self._samples[np.argsort(self._when(line, 0.5), kind="stable")]

    def reach(self, line: Line) -> int:
        """Return the most samples that can be delivered so that no stream is a whole sample off, then or later.

        No stream may lack a sample that is due, not all may be too far ahead, and those that lag behind must
        be able to catch up with the next window.
        """
        wanted = line.slopes > 0
        if not wanted.any():
            return 0
        released = np.sort(self._when(line, _EXACT))
        early = np.flatnonzero(released >= np.arange(1, len(released) + 1))
        ends = (line.supply[wanted] + 1 + line.leads[wanted]) / line.slopes[wanted]
        reach = min(int(early[0]) if early.size else len(released), int(np.ceil(ends.min() - _EXACT)) - 1)
        while reach > 0 and not line.can_go_on(reach):
            reach -= 1
        return max(0, reach)

    def _when(self, line: Line, part: float) -> NDArray[np.float64]:
        """How many samples are delivered when ``part`` of each sample here is due; shape [S]."""
        slopes = line.slopes[self._streams]
        out = np.full(len(slopes), np.inf)
        np.divide(self._ranks + part + line.leads[self._streams], slopes, out=out, where=slopes > 0)
        return out

    def costs(self, members: Int64) -> tuple[Int64 | None, tuple[Int64, ...]]:
        """Return lengths and costs of samples of the pool."""
        pool = self._pool
        return None if pool.lengths is None else pool.lengths[members], tuple(cost[members] for cost in pool.costs)

    def members(self, counts_JK: Int64) -> Int64:
        """Return samples of the pool, batch after batch, ascending in each; batches take each stream's samples in turn."""
        batches = np.repeat(np.tile(np.arange(len(counts_JK)), counts_JK.shape[1]), counts_JK.T.ravel())
        samples = self._samples[_spread(self._firsts, counts_JK.sum(axis=0))]
        return samples[np.lexsort((samples, batches))]

    def hold(self, members: Int64, sizes: Int64, limits: BatchLimits) -> NDArray[np.bool_]:
        """Return whether each batch keeps to the limits; ``members`` as `members` returns them."""
        starts = np.cumsum(sizes) - sizes
        lengths, costs = self.costs(members)
        return limits.hold(
            sizes,
            None if lengths is None else np.maximum.reduceat(lengths, starts),
            None if lengths is None else np.add.reduceat(lengths, starts),
            tuple(np.add.reduceat(cost, starts) for cost in costs),
        )


def _spread(firsts: Int64, counts: Int64) -> Int64:
    """The ranges of ``counts`` numbers from each of ``firsts``, end to end."""
    starts = np.cumsum(counts) - counts
    return np.repeat(firsts - starts, counts) + np.arange(int(counts.sum()))


def _padded(values: Int64, size: int) -> Int64:
    """``values`` and zeros behind them."""
    return np.pad(values, (0, size - len(values)))


def _with_surplus(foreseen: Int64, real: Int64, sizes: Int64) -> Int64:
    """Foreseen costs, plus each batch's excess over them, spread over its samples."""
    starts = np.cumsum(sizes) - sizes
    above = np.add.reduceat(real, starts) - np.add.reduceat(foreseen[: len(real)], starts)
    return foreseen + _padded(np.repeat(-(-np.maximum(above, 0) // sizes), sizes), len(foreseen))
