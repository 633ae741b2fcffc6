"""Simulate a node cache: which ranges it fetches, and which again, when files are read in a given order.

Blocks are kept by file, as `storage.node_cache.cache` keeps them: what is missing is fetched block by block, and when
there is no room, the files used longest ago go whole, until a 32nd of the limit is free. While the cache is nearly
full, a file that was removed before is kept again when its debt is due (`storage.node_cache.eviction`); until then
exactly what is asked for comes. Nobody is asked to hold anything, so files go as soon as others need their room. One
thread that asks in this order fetches exactly this. Cost: 4 us per ask, and 0.1 us per block.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

from spiral_stream.storage.node_cache.eviction import FULL, SLACK, owed
from spiral_stream.storage.node_cache.file import BLOCK
from spiral_stream.storage.ranges import GAP_BYTES, READ_BYTES

_PAGE: Final = 4096

Extent = tuple[int, int]  # the first one (a byte, a block), and the one after the last


@dataclass(slots=True)
class _File:
    size: int  # bytes; 0 where nobody knows them
    held: set[int]  # blocks
    taken: int = _PAGE  # bytes on the disk, a page of sums included


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
        held = file.held if file is not None else frozenset[int]()
        wanted = {block for begin, end in ranges for block in range(begin // BLOCK, -(-end // BLOCK))}
        missing = sorted(wanted - held)
        if missing and self._used >= self._limit * FULL and not self._keeps(uri, size, ranges):
            for begin, end in _joined(ranges, GAP_BYTES):
                self.requests += 1
                self.fetched += end - begin
        elif missing:
            if file is None:
                file = _File(size, set())
                self._used += file.taken
            for first, stop in _joined([(block, block + 1) for block in missing], 0):
                self._fetch(file, first, stop)
        if file is not None:
            self._files[uri] = file
        self.again += self.fetched - before if uri in self._debts else 0

    def _fetch(self, file: _File, first: int, stop: int) -> None:
        count = (stop - first) * BLOCK
        if file.size:
            count -= max(0, stop * BLOCK - file.size)
        if self._used + count + 2 * _PAGE > self._limit:
            self._make_room(self._limit - self._limit // SLACK - count - 2 * _PAGE)
        file.held.update(range(first, stop))
        file.taken += -(-count // _PAGE) * _PAGE
        self._used += -(-count // _PAGE) * _PAGE
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


def _joined(ranges: Sequence[Extent], gap: int) -> list[Extent]:
    """Join neighbours; those of blocks only where nothing is between them."""
    out: list[Extent] = []
    for begin, end in ranges:
        if out and (begin - out[-1][1] < gap if gap else begin == out[-1][1]):
            out[-1] = (out[-1][0], max(out[-1][1], end))
        else:
            out.append((begin, end))
    return out
