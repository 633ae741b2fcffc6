"""Whether two rows of a relation have the same identity: the sorted runs of all shards are merged in bounded memory.

The space of hashes is cut into ranges that hold about a million rows each, whatever lies in them. The runs pass
through the bits of a range, one after another; who meets a bit that is set may have an equal hash, and only those are
sorted. Equal hashes are settled on the values: all of them up to `SETTLED` rows; after that the first and the last row
of a hash, and rows between them count as equal. So the verdict is exact, and the number of rows too up to there.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.derived import _runs

UInt64 = NDArray[np.uint64]
Int64 = NDArray[np.int64]
Values = Sequence[tuple[Any, ...]]

RANGE_ROWS: Final = 1 << 20
SETTLED: Final = 1 << 14
PART_ROWS: Final = 1 << 14  # new rows that are compared with all known ones at a time
_BITS_PER_ROW: Final = 32  # then 3 of 100 rows meet a bit of another row
_END: Final = 1 << 64


@final
@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """The hashes of one shard, ascending, and the rows that have them."""

    hashes: UInt64
    rows: Callable[[], NDArray[Any]]
    known: bool = False  # whether its identities differ from each other, and from those of other such runs


@final
@dataclass(frozen=True, slots=True)
class Repeats:
    """Identities that occur more than once."""

    first: int  # of the rows that share an identity: the first of all
    last: int  # the last row that has that identity
    extra: int  # rows whose identity an earlier row has


def _sound(_addresses: UInt64, _sizes: Int64) -> None:
    """Nothing to verify."""


def repeats(
    runs: Sequence[Run],
    ordinals_of: Callable[[Int64, UInt64], UInt64],
    values: Callable[[UInt64], Values],
    verify: Callable[[UInt64, Int64], None] = _sound,
) -> Repeats | None:
    """Find identities that occur more than once; None if every row has its own.

    Args:
        runs: one per shard.
        ordinals_of: shards and offsets there -> the numbers of rows, by which they are compared and told.
        values: numbers of rows -> their identities.
        verify: addresses and sizes in bytes of hashes of known runs: verifies them, just before they are read. All are.

    Raises:
        DamageError: a run is not what was written.
    """
    if all(run.known for run in runs):
        return None
    found = _Repeats(values)
    for low, high, begins, ends in _ranges(runs):
        some = _Range(runs, begins, ends, ordinals_of, verify)
        if some.fresh > 2 * RANGE_ROWS:  # all of one hash
            found.look(*some.sides(), some.members)
        else:
            found.settle(*some.groups(low, high))
    return None if found.first is None else Repeats(found.first, found.last, found.extra)


def _ranges(runs: Sequence[Run]) -> Iterator[tuple[int, int, Int64, Int64]]:
    """Cut the space of hashes: from, to, and the places in each run."""
    addresses = np.array([run.hashes.ctypes.data for run in runs], np.uint64)
    counts = np.array([len(run.hashes) for run in runs], np.int64)
    fresh = np.array([not run.known for run in runs])
    step = -(-_END * RANGE_ROWS // max(RANGE_ROWS, int(counts[fresh].sum())))
    low, begins = 0, np.zeros(len(runs), np.int64)
    while low < _END:
        high, ends = min(low + step, _END), counts
        while True:
            if high < _END:
                ends = begins.copy()
                _runs.cut(addresses, counts, high, ends)
            if high - low == 1 or int((ends - begins)[fresh].sum()) <= 2 * RANGE_ROWS:
                break
            high = low + (high - low) // 2
        yield low, high, begins, ends
        low, begins = high, ends


@final
class _Range:
    """The rows whose hashes lie in one range."""

    def __init__(
        self,
        runs: Sequence[Run],
        begins: Int64,
        ends: Int64,
        ordinals_of: Callable[[Int64, UInt64], UInt64],
        verify: Callable[[UInt64, Int64], None],
    ) -> None:
        self._runs, self._ordinals_of, self._verify = runs, ordinals_of, verify
        self._spans = [
            (k, at, min(at + RANGE_ROWS, end))  # a run that is known may be long
            for k, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True))
            for at in range(begin, end, RANGE_ROWS)
        ]
        self.fresh = sum(end - begin for k, begin, end in self._spans if not runs[k].known)

    def sides(self) -> tuple[int, int, int]:
        """Return the first row, the last, and how many there are, where all have one hash: rows ascend in each run."""
        sides = [self._rows(k, np.array([begin, end - 1])) for k, begin, end in self._spans]
        count = sum(end - begin for _, begin, end in self._spans)
        return int(min(each.min() for each in sides)), int(max(each.max() for each in sides)), count

    def members(self) -> Iterator[UInt64]:
        """Yield all rows, some at a time."""
        for k, begin, end in self._spans:
            for at in range(begin, end, SETTLED):
                yield self._rows(k, np.arange(at, min(at + SETTLED, end)))

    def groups(self, low: int, high: int) -> tuple[UInt64, Int64]:
        """Return the rows that share a hash, those of one hash together and ascending, and where each hash begins."""
        candidates = self._candidates(low, high) if self.fresh else []
        if not self.fresh:
            self._shares(self._spans, np.empty(0, np.uint64))
        of = np.concatenate([np.empty(0, np.uint64), *(self._runs[k].hashes[at] for k, at in candidates)])
        twice = _more_than_once(of)
        if not twice.any():
            return np.empty(0, np.uint64), np.zeros(1, np.int64)
        split = np.split(twice, np.cumsum([len(at) for _, at in candidates])[:-1])
        rows = np.concatenate([self._rows(k, at[mask]) for (k, at), mask in zip(candidates, split, strict=True)])
        of = of[twice]
        order = np.lexsort((rows, of))
        return rows[order], np.flatnonzero(np.diff(of[order], prepend=~of[order[0]], append=~of[order[-1]]))

    def _candidates(self, low: int, high: int) -> list[tuple[int, Int64]]:
        """Runs, and places in them whose hash may occur twice: of rows that are known only where a fresh one has it."""
        room = 1 << max(6, (self.fresh * _BITS_PER_ROW).bit_length())
        shift = max(0, (high - low - 1).bit_length() - room.bit_length() + 1)
        bits = np.zeros(room // 64, np.uint64)

        def met(span: tuple[int, int, int], *, fresh: bool) -> UInt64:
            hashes = self._hashes(span)
            out = np.empty(len(hashes), np.uint64)
            return out[: _runs.seen(hashes, low, shift, bits, out, fresh)].copy()

        fresh = [span for span in self._spans if not self._runs[span[0]].known]
        known = [span for span in self._spans if self._runs[span[0]].known]
        twice = [met(span, fresh=True) for span in fresh]
        every = _together([self._hashes(span) for span in fresh]) if known else np.empty(0, np.uint64)
        shared = [(span, _in(met(span, fresh=False), every)) for span in known] if self._shares(known, every) else []
        wanted = np.sort(np.concatenate([*twice, *(hashes for _, hashes in shared)]))
        pairs = [*((span, wanted) for span in fresh), *((span, hashes) for span, hashes in shared if len(hashes))]
        return [(span[0], span[1] + _hits(self._hashes(span), hashes)) for span, hashes in pairs]

    def _shares(self, known: Sequence[tuple[int, int, int]], every: UInt64) -> bool:
        """Whether a known row has one of some hashes: in parts that stay in the cache while they are verified and read."""
        addresses = np.array([self._runs[k].hashes.ctypes.data + begin * 8 for k, begin, _ in known], np.uint64)
        counts = np.array([end - begin for _, begin, end in known], np.int64)
        found, begins = 0, np.zeros(len(known), np.int64)
        for at in range(0, max(1, len(every)) if len(known) else 0, PART_ROWS):
            part, ends = every[at : at + PART_ROWS], counts
            if at + PART_ROWS < len(every):
                ends = begins.copy()
                _runs.cut(addresses, counts, int(every[at + PART_ROWS]), ends)
            starts = addresses + begins.astype(np.uint64) * np.uint64(8)
            self._verify(starts, (ends - begins) * 8)
            found += _runs.shared(starts, ends - begins, part)
            begins = ends
        return found > 0

    def _hashes(self, span: tuple[int, int, int]) -> UInt64:
        k, begin, end = span
        return self._runs[k].hashes[begin:end]

    def _rows(self, k: int, indices: Int64) -> UInt64:
        if not len(indices):
            return np.empty(0, np.uint64)
        return self._ordinals_of(np.full(len(indices), k, np.int64), self._runs[k].rows()[indices].astype(np.uint64))


def _together(runs: Sequence[UInt64]) -> UInt64:
    """Hashes of ascending runs, ascending; one fresh shard, which is common, is sorted as it is."""
    return runs[0] if len(runs) == 1 else np.sort(np.concatenate(runs))


def _hits(run: UInt64, wanted: UInt64) -> Int64:
    """Where a run has hashes of another run."""
    positions = np.empty(len(run), np.int64)
    return positions[: _runs.common(run, wanted, positions)].copy()


def _in(run: UInt64, wanted: UInt64) -> UInt64:
    found: UInt64 = run[_hits(run, wanted)]
    return found


def _more_than_once(hashes: UInt64) -> NDArray[np.bool_]:
    order = np.argsort(hashes)
    same = hashes[order][1:] == hashes[order][:-1]
    out = np.zeros(len(hashes), np.bool_)
    out[order[1:][same]] = True
    out[order[:-1][same]] = True
    return out


@final
class _Repeats:
    """The repeats so far."""

    def __init__(self, values: Callable[[UInt64], Values]) -> None:
        self._values, self._left = values, SETTLED
        self.first: int | None = None
        self.last, self.extra = -1, 0

    def settle(self, rows: UInt64, starts: Int64) -> None:
        """Tell equal values from equal hashes, in groups of rows that begin at ``starts``."""
        firsts, counts = rows[starts[:-1]], np.diff(starts)
        order = np.argsort(firsts)
        room = int(np.searchsorted(np.cumsum(counts[order]), self._left, side="right"))
        if room:
            groups = [rows[starts[k] : starts[k + 1]] for k in order[:room]]
            together = np.concatenate(groups)
            self._left -= len(together)
            values = iter(self._values(together))
            for group in groups:
                self._enter(_identities_of(zip(group.tolist(), values, strict=False)))
        for at, k in enumerate(order[room:].tolist(), room):
            if self.first is not None and int(firsts[k]) > self.first:
                self.extra += int((counts[order[at:]] - 1).sum())
                return
            group = rows[starts[k] : starts[k + 1]]
            self.look(int(group[0]), int(group[-1]), len(group), partial(iter, [group]))

    def look(self, first: int, last: int, count: int, members: Callable[[], Iterator[UInt64]]) -> None:
        """Settle one group of many rows."""
        if count > self._left:
            ends = self._values(np.array([first, last], np.uint64))
            if ends[0] == ends[1]:
                self._enter({ends[0]: (first, last, count)})
                return
        self._left = max(0, self._left - count)
        pairs = (zip(rows.tolist(), self._values(rows), strict=True) for rows in members())
        self._enter(_identities_of(pair for some in pairs for pair in some))

    def _enter(self, identities: "dict[tuple[Any, ...], tuple[int, int, int]]") -> None:
        for first, last, count in identities.values():
            if count > 1:
                self.extra += count - 1
                if self.first is None or first < self.first:
                    self.first, self.last = first, last


def _identities_of(rows: Any) -> dict[tuple[Any, ...], tuple[int, int, int]]:
    """First row, last row and number of rows of each identity."""
    out: dict[tuple[Any, ...], tuple[int, int, int]] = {}
    for row, value in rows:
        first, last, count = out.get(value, (row, row, 0))
        out[value] = (min(first, row), max(last, row), count + 1)
    return out
