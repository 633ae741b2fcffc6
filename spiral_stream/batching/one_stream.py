"""Which samples share a batch when each batch holds one stream, and in which order the streams take turns.

Each stream's samples are cut into batches by the limits. Units of ``batches`` neighbouring batches are shuffled within
their stream and then merged: the next unit is the one that would be finished first if every stream ran at its share
(weighted fair queueing, Demers, Keshav and Shenker 1989), so a stream is off its target by about a unit. Samples that do
not fill a unit wait. Cost: 3 us per stream, 20 us per stream that has a batch, and 10 us per batch.

Without a budget, every unit has exactly ``batches`` batches of ``batch_size`` samples, so steps of that many batches hold
one stream from the first chapter to the last. What a stream has left at a chapter's end waits for the lane's end, and what
it has left there for the epoch's: there it makes a last unit of short batches of equal size. `DropPartial` leaves it out,
and `PadPartial` fills it with samples of the same stream.
"""

import heapq
from typing import final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.batching.budget import BatchLimits
from spiral_stream.batching.composition import OneStream
from spiral_stream.batching.cutting import even_end, is_full, run_ends
from spiral_stream.batching.emission import emission_order
from spiral_stream.batching.formation import Int64, Setting
from spiral_stream.batching.grouping import Grouping, Pool, targets
from spiral_stream.batching.tail import DropPartial, PadPartial
from spiral_stream.errors import PlanError

# S samples, K streams


def least_window(streams: int, batches: int, batch_size: int) -> int:
    """Return the smallest window in which some stream always has a whole unit: ``batches`` batches of counted samples."""
    return streams * (batches * batch_size - 1) + 1


def need_room(window_size: int, streams: int, batches: int, batch_size: int) -> None:
    """Refuse a window in which every stream may wait for more samples while none has a whole unit.

    Raises:
        PlanError: says the smallest window that has room.
    """
    least = least_window(streams, batches, batch_size)
    if window_size < least:
        steps = f"steps of {batches:,} batches" if batches > 1 else "batches"
        msg = (
            f"collate: OneStream with window_size={window_size:,}: {streams:,} streams may wait with {least - 1:,} samples for "
            f"whole {steps} of {batch_size:,}, so that none can be made. Give formation=WindowedBucket(window_size={least:,}) or "
            "more, a smaller batch_size, or a budget"
        )
        raise PlanError(msg)


@final
class OneStreamGrouping(Grouping):
    """Every batch, and every unit of batches, holds one stream."""

    def __init__(
        self, composition: OneStream, limits: BatchLimits, setting: Setting, cost_group: int, window_size: int
    ) -> None:
        self._shares, self._counts = targets(composition, setting)  # floats: they begin with what each stream was ahead
        self._unit = composition.batches
        self._limits = limits
        self._last, self._ends = setting.last, setting.ends
        self._rows = composition.batches * (limits.batch_size or 0) if limits.only_counts else 0
        self.leaves = self.settles = bool(self._rows)
        if self._rows:
            need_room(window_size, len(self._shares), composition.batches, limits.batch_size or 1)
        self._key = setting.key
        self._group = max(1, cost_group // composition.batches)
        self._window = -1

    def note(self, streams: NDArray[np.int32]) -> None:
        self._counts += np.bincount(streams, minlength=len(self._counts))

    def group(self, pool: Pool, patience: int, *, final: bool) -> list[Int64]:
        self._window += 1
        order = np.argsort(pool.streams, kind="stable")
        sizes = np.bincount(pool.streams, minlength=len(self._shares))
        members = np.split(order, np.cumsum(sizes)[:-1])
        if final and self._rows and not self._ends:  # the last of each stream to join wait, whatever their keys
            members = [self._full_units(pool, mine) for mine in members]
            sizes = np.array([len(mine) for mine in members])
        cuttable = np.ones(len(sizes), dtype=np.bool_) if final else self._cuttable(pool, order, sizes)
        if final and self._rows and self._ends and isinstance(self._last, PadPartial):
            members = [self._padded(mine) for mine in members]
            sizes = np.array([len(mine) for mine in members])
        none = np.zeros(1, dtype=np.int64)
        runs = [self._runs(pool, mine, final=final) if cuttable[k] else none for k, mine in enumerate(members)]
        left = sizes - np.array([int(ends[-1]) for ends in runs])
        for k in np.argsort(-left, kind="stable"):  # the stream nearest to a whole batch goes first
            if self._rows or int(left.sum()) <= patience:  # counted samples wait: the window has room (`least_window`)
                break
            runs[k], left[k] = self._runs(pool, members[k], final=True), 0
        units = self._merged([self._units(ends, k) for k, ends in enumerate(runs)])
        if self._rows and final and self._ends:
            units = _aligned(units, self._unit)
        return [members[k][start:stop] for k, unit in units for start, stop in unit]

    def _cuttable(self, pool: Pool, order: Int64, sizes: Int64) -> NDArray[np.bool_]:
        """Which streams have at least a full batch; shape [K]. Saves cutting each of many streams for nothing."""
        out = sizes > 0
        some = sizes[out]
        starts = np.cumsum(some) - some
        lengths = None if pool.lengths is None else pool.lengths[order]
        out[out] = ~self._limits.hold(
            some + 1,
            None if lengths is None else np.maximum(np.maximum.reduceat(lengths, starts), 1),
            None if lengths is None else np.add.reduceat(lengths, starts) + 1,
            tuple(np.add.reduceat(cost[order], starts) + 1 for cost in pool.costs),
        )
        return out

    def _padded(self, members: Int64) -> Int64:
        """A stream's samples, with some repeated to complete its last unit."""
        return np.concatenate((members, np.resize(members, -len(members) % self._rows))) if len(members) else members

    def _full_units(self, pool: Pool, members: Int64) -> Int64:
        """Those of a stream's samples, first come, that fill whole units."""
        joined = np.argsort(pool.samples[members], kind="stable")
        return members[np.sort(joined[: len(members) // self._rows * self._rows])]

    def _runs(self, pool: Pool, members: Int64, *, final: bool) -> Int64:
        """Ends of the batches of one stream: of whole units, or of all its samples at the end or if the pool is full."""
        if final and self._rows:
            return _counted(len(members), self._unit, self._rows, drops=isinstance(self._last, DropPartial))
        lengths = None if pool.lengths is None else pool.lengths[members]
        costs = tuple(cost[members] for cost in pool.costs)
        ends = run_ends(len(members), lengths, costs, self._limits)
        if final:
            return _filled(even_end(ends, lengths, costs, self._limits), self._unit)
        if len(ends) > 1 and not is_full(int(ends[-2]), int(ends[-1]), lengths, costs, self._limits):
            ends = ends[:-1]
        return ends[: (len(ends) - 1) // self._unit * self._unit + 1]

    def _units(self, ends: Int64, stream: int) -> list[list[tuple[int, int]]]:
        """(start, stop) of each batch, unit by unit, in random order; a unit of too few batches comes last."""
        if len(ends) == 1:
            return []
        batches = list(zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True))
        full = len(batches) // self._unit
        if self._rows:  # short batches are not shuffled: they come last
            full = next((u for u in range(full) if ends[(u + 1) * self._unit] < (u + 1) * self._rows), full)
        drawn = emission_order(full, self._group, self._key, self._window, stream).tolist()
        units = [batches[u * self._unit : (u + 1) * self._unit] for u in drawn]
        rest = batches[full * self._unit :]
        return [*units, *(rest[at : at + self._unit] for at in range(0, len(rest), self._unit))]

    def _merged(self, units: list[list[list[tuple[int, int]]]]) -> list[tuple[int, list[tuple[int, int]]]]:
        """The units of all streams with their stream, in the order of delivery."""
        queue = [(self._finish(k, mine[0]), k, 0) for k, mine in enumerate(units) if mine]
        heapq.heapify(queue)
        out = []
        while queue:
            _, k, u = heapq.heappop(queue)
            out.append((k, units[k][u]))
            self._counts[k] += _rows(units[k][u])
            if u + 1 < len(units[k]):
                heapq.heappush(queue, (self._finish(k, units[k][u + 1]), k, u + 1))
        return out

    def _finish(self, stream: int, unit: list[tuple[int, int]]) -> tuple[bool, bool, float]:
        """The merge key of a unit: how many samples of all streams are delivered when the stream's share calls for its end.

        Units of too few batches come last, so that no other unit is split over two steps; units of short batches come before.
        """
        share = float(self._shares[stream])
        end = (float(self._counts[stream]) + _rows(unit)) / share if share > 0 else np.inf
        return (len(unit) < self._unit, _rows(unit) < self._rows, end)


def _counted(size: int, unit: int, rows: int, *, drops: bool) -> Int64:
    """Ends of the batches of ``size`` samples: whole units of ``rows`` samples, and a last unit of short batches.

    If fewer samples are left than a unit has batches, they are shared out with those of the unit before, if both together
    are enough for two units.
    """
    full, rest = divmod(size, rows)
    short = 0 if drops or not rest else unit
    if 0 < rest < short:
        shared = full > 0 and rest + rows >= 2 * unit  # batches of one sample cannot be cut any smaller
        full, rest, short = (full - 1, rest + rows, 2 * unit) if shared else (full, rest, rest)
    ends = np.arange(full * unit + 1, dtype=np.int64) * (rows // unit)
    return np.concatenate((ends, ends[-1] + rest * np.arange(1, short + 1, dtype=np.int64) // max(1, short)))


def _aligned(units: list[tuple[int, list[tuple[int, int]]]], unit: int) -> list[tuple[int, list[tuple[int, int]]]]:
    """Halve batches at the end until they fill whole steps, so that the next chapter begins a step too.

    This is needed only if a stream has fewer samples left than a unit has batches. Then a step mixes streams.
    """
    begin = next((at for at, (_, batches) in enumerate(units) if len(batches) < unit), len(units))
    full, loose = units[:begin], units[begin:]
    lacks = -sum(len(batches) for _, batches in loose) % unit
    spares = [sum(stop - start - 1 for start, stop in batches) for _, batches in full]
    enough = [at for at, more in enumerate(spares) if more >= lacks][-1:] or [
        at for at, more in enumerate(spares) if more
    ]
    if lacks:
        loose = [*(full[at] for at in enough), *loose]
        full = [each for at, each in enumerate(full) if at not in enough]
    tail = [(k, batch) for k, batches in loose for batch in batches]
    for _ in range(lacks):
        at = max(range(len(tail)), key=lambda i: tail[i][1][1] - tail[i][1][0])
        k, (start, stop) = tail[at]
        if stop - start == 1:
            break
        tail[at : at + 1] = [(k, (start, (start + stop) // 2)), (k, ((start + stop) // 2, stop))]
    return [*full, *((k, [batch]) for k, batch in tail)]


def _rows(unit: list[tuple[int, int]]) -> int:
    return sum(stop - start for start, stop in unit)


def _filled(ends: Int64, unit: int) -> Int64:
    """Halve the largest batches until they make up whole units, as long as there are samples."""
    while (len(ends) - 1) % unit and int(np.diff(ends).max()) > 1:
        largest = int(np.argmax(np.diff(ends)))
        ends = np.insert(ends, largest + 1, (ends[largest] + ends[largest + 1]) // 2)
    return ends
