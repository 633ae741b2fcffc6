"""Simulate a node cache: which ranges it fetches, and which again, when files are read in a given order.

Pages are kept by file, as `storage.node_cache.file` keeps them: what is missing is fetched, and when there is no room,
the files used longest ago go whole, until a 32nd of the limit is free. While the cache is nearly full, a file that was
removed before is kept again when its debt is due (`storage.node_cache.eviction`); until then exactly what is asked for
comes. One thread that asks in this order fetches exactly this. Cost: 5 us per ask.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.storage.node_cache.eviction import FULL, SLACK, needed, owed
from spiral_stream.storage.node_cache.file import PAGE, pages_of
from spiral_stream.storage.ranges import GAP_BYTES, READ_BYTES

Extent = tuple[int, int]  # the first one (a byte, a page), and the one after the last


@dataclass(slots=True)
class _File:
    size: int  # bytes; 0 where nobody knows them
    here: NDArray[np.bool_]  # its pages
    taken: int = 0  # bytes on the disk


@final
class Evicting:
    """A node cache in which nothing lies but what is counted here.

    Args:
        limit_bytes: what it may take.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._files: OrderedDict[str, _File] = OrderedDict()  # used longest ago first
        self._debts: dict[str, int] = {}  # of files that were removed
        self._readmitted = set[str]()  # of these, what is kept again
        self._used = 0
        self.fetched = 0  # bytes
        self.again = 0  # bytes of these that are of files removed before
        self.requests = 0

    @property
    def dropped(self) -> bool:
        """Whether anything was removed for others."""
        return bool(self._debts)

    def ask(self, uri: str, size: int, ranges: Sequence[Extent]) -> None:
        """Ask for some bytes of a file.

        Args:
            uri: of the file.
            size: its bytes; 0 where nobody knows them.
            ranges: of bytes, ascending by where they begin.
        """
        before, file = self.fetched, self._files.pop(uri, None)
        pages = [pages_of(begin, end) for begin, end in ranges]
        last = -(-size // PAGE) or max(stop for _, stop in pages)
        here = np.zeros(last, dtype=np.bool_) if file is None else file.here
        if len(here) < last:  # of a file whose size nobody knows
            here = np.concatenate([here, np.zeros(last - len(here), dtype=np.bool_)])
        missing = [run for first, stop in pages for run in _missing(here, first, min(stop, last))]
        if missing and self._used >= self._limit * FULL and not self._keeps(uri, size, ranges):
            for begin, end in _joined(ranges, GAP_BYTES):
                self.requests += 1
                self.fetched += end - begin
        elif missing:
            file = _File(size, here) if file is None else file
            file.here = here
            for first, stop in _joined(missing, GAP_BYTES // PAGE):
                self._fetch(file, first, stop)
        if file is not None:
            self._files[uri] = file
        self.again += self.fetched - before if uri in self._debts else 0

    def _fetch(self, file: _File, first: int, stop: int) -> None:
        more = stop - first - int(np.count_nonzero(file.here[first:stop]))
        count = more * PAGE - (max(0, stop * PAGE - file.size) if file.size else 0)
        need = needed(len(file.here), more, is_new=not file.taken)
        if self._used + need > self._limit:
            self._make_room(self._limit - self._limit // SLACK - need)
        file.here[first:stop] = True
        file.taken += need
        self._used += need
        self.fetched += count
        self.requests += -(-count // READ_BYTES)

    def _make_room(self, goal: int) -> None:
        while self._used > goal and self._files:
            uri, gone = self._files.popitem(last=False)
            self._debts.setdefault(uri, 0)
            self._readmitted.discard(uri)
            self._used -= gone.taken

    def _keeps(self, uri: str, size: int, ranges: Sequence[Extent]) -> bool:
        if uri not in self._debts or uri in self._readmitted:
            return True
        self._debts[uri], due = owed(uri, self._debts[uri], sum(end - begin for begin, end in ranges), size)
        if due:
            self._readmitted.add(uri)
        return due


def _missing(here: NDArray[np.bool_], first: int, stop: int) -> list[Extent]:
    """Return the runs of pages that are not here."""
    some = here[first:stop]
    if not some.any():
        return [(first, stop)]
    edges = np.flatnonzero(np.diff(np.concatenate([[True], some, [True]]))) + first
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def _joined(ranges: Sequence[Extent], gap: int) -> list[Extent]:
    """Join ranges, ascending by where they begin, that overlap or lie nearer than a gap."""
    out: list[Extent] = []
    for begin, end in ranges:
        if out and begin - out[-1][1] < gap:
            out[-1] = (out[-1][0], max(out[-1][1], end))
        else:
            out.append((begin, end))
    return out
