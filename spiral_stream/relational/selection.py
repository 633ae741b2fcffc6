"""Which rows of a relation survive, by number and by address.

Surviving rows are numbered 0, 1, ... in the order of their logical ordinals. Each storage shard has a piece in the
smallest of three forms (`derived.kinds.selected_rows`); how many rows it keeps is in the roster, so opening reads one file. A
shard is mapped when a row of it is first asked for, and selected from in native code: 20 us per 1,024 rows of a bitmap.
For a joined relation only the matching row of each survivor is kept.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.derived import _gather
from spiral_stream.derived.kinds.gather import located
from spiral_stream.derived.kinds.selected_rows import ALL, BITMAP, BLOCK, OFFSETS
from spiral_stream.derived.pieces import Pieces
from spiral_stream.errors import CacheError, DamageError, warn
from spiral_stream.integrity.seal import MENDED
from spiral_stream.relational import _select

UInt64 = NDArray[np.uint64]
Int64 = NDArray[np.int64]
Work = Callable[..., tuple[int, int]]  # a function of `_select`

_CLOSED: Final = 3  # in the table of `_select`: a shard that is not mapped yet
_BY_ROW: Final = 4  # there, added to the form of a shard whose words are verified row by row
LARGE: Final = 4 << 20  # bytes of words that are not verified as a whole: those of 32 M rows


@final
class Selection:
    """The rows that survive. Reading is thread-safe."""

    def __init__(
        self,
        shard_starts: UInt64,
        pieces: Pieces | None,
        rights: Sequence[np.dtype[Any]] = (),
        mend: Callable[[], Pieces] | None = None,
    ) -> None:
        """Read the counts of the shards; nothing is mapped.

        Args:
            shard_starts: shape [S + 1], uint64: first logical ordinal of each shard, and the end.
            pieces: of the shards, as `derived.kinds.selected_rows` encodes them; None keeps every row.
            rights: the type of the matching rows of each joined relation, which lie in ``right0``, ``right1``, ...
            mend: makes the pieces that were damaged again; None leaves that to the next stream.

        Raises:
            CacheError: the pieces are of shards of another size.
        """
        starts = np.ascontiguousarray(shard_starts, dtype=np.uint64)
        rows = np.diff(starts)
        self.shard_starts = starts
        self.counts: UInt64 = rows if pieces is None else pieces.summary["count"].astype(np.uint64)  # [S]
        self._pieces, self._rights, self._mend = pieces, tuple(rights), mend
        self._before: list[Pieces] = []  # whose memory other threads may still read
        self._firsts = cumulated(self.counts)
        forms = np.full(len(rows), ALL, np.uint64) if pieces is None else pieces.summary["form"].astype(np.uint64)
        self._forms, self._all = forms, bool((forms == ALL).all())
        if pieces is not None and not (pieces.summary["rows"].astype(np.uint64) == rows).all():
            msg = "selection: its pieces are of shards of another size. Register the relation again"
            raise CacheError(msg)
        self._table = np.zeros((len(rows), 4), np.uint64)  # form, address of offsets or words, of ranks, blocks
        self._table[:, 0] = np.where(forms == ALL, ALL, _CLOSED)
        self._table[:, 3] = -(-rows.astype(np.int64) // BLOCK)
        self._stamps = np.zeros(0, np.uint64)  # an address in each file that is in use
        self._lock = threading.Lock()

    @property
    def has_all_rows(self) -> bool:
        """Whether every row survives, so that a surviving row is its ordinal."""
        return self._all

    @property
    def total(self) -> int:
        """Surviving rows."""
        return int(self._firsts[-1])

    def ordinals(self, rows: UInt64) -> UInt64:
        """Return the ordinals of surviving rows.

        Args:
            rows: shape [P], uint64, each below ``total``.

        Returns:
            shape [P], uint64: logical ordinals in the relation.
        """
        return rows if self._all else self._run(_select.select, self._firsts, rows)

    def rows(self, ordinals: UInt64) -> tuple[UInt64, NDArray[np.bool_]]:
        """Return the inverse of `ordinals`.

        Args:
            ordinals: shape [P], uint64: logical ordinals.

        Returns:
            shape [P], uint64: the row each ordinal is, or would come before; and
            shape [P], bool: whether it survives.
        """
        found = self.ranks(ordinals)
        inside = found < self.total
        hits = np.zeros(len(found), np.bool_)
        hits[inside] = self.ordinals(found[inside]) == ordinals[inside]
        return found, hits

    def ranks(self, ordinals: UInt64) -> UInt64:
        """Shape [P] -> [P], uint64: the survivors before each logical ordinal (which may be the end)."""
        ends = ordinals >= self.shard_starts[-1]
        if self._all:
            return np.where(ends, np.uint64(self.total), ordinals)
        if not ends.any():
            return self._run(_select.rank, self.shard_starts, ordinals)
        out = np.full(len(ordinals), self.total, np.uint64)
        out[~ends] = self._run(_select.rank, self.shard_starts, ordinals[~ends])
        return out

    def unit_counts(self, group_starts: UInt64) -> UInt64:
        """Survivors of each piece of storage.

        Args:
            group_starts: shape [G + 1], uint64, ascending logical ordinals, the end last.

        Returns:
            shape [G], uint64.
        """
        at = np.searchsorted(self.shard_starts, group_starts)  # most often groups begin where shards do
        known = self.shard_starts[at] == group_starts
        out = self._firsts[at]
        out[~known] = self.ranks(group_starts[~known])
        return np.diff(out)

    def right(self, k: int, rows: UInt64) -> Int64:
        """Shape [P] -> [P], int64: the row of the k-th joined relation that matches each survivor, -1 for none."""
        if not len(rows):
            return np.zeros(0, np.int64)
        return self._mending(lambda: self._right(k, rows))

    def _right(self, k: int, rows: UInt64) -> Int64:
        assert self._pieces is not None
        kind = self._rights[k]
        shards, offsets = located(self._firsts, rows)
        addresses = self._pieces.addresses(f"right{k}", shards) + offsets * np.uint64(kind.itemsize)
        self._pieces.verify(addresses, np.full(len(rows), kind.itemsize, np.int64))
        found = np.empty(len(rows), kind)
        _gather.copy(addresses, kind.itemsize, found)
        return found.astype(np.int64)

    def _run(self, work: Work, located_by: UInt64, values: UInt64) -> UInt64:
        """Select or rank."""
        values = np.ascontiguousarray(values, np.uint64)
        return self._mending(lambda: self._found(work, located_by, values))

    def _found(self, work: Work, located_by: UInt64, values: UInt64) -> UInt64:
        """Select or rank; the shards that are not mapped yet are mapped first."""
        assert self._pieces is not None
        out, touched = np.empty(len(values), np.uint64), np.empty(len(values), np.uint64)
        closed, by_row = work(self._firsts, self.shard_starts, self._table, values, out, touched)
        if closed:
            needed = np.zeros(len(self.counts), np.bool_)  # marked, since sorting the shards of many rows takes longer
            needed[located(located_by, values)[0]] = True
            self._open(np.flatnonzero(needed))
            _, by_row = work(self._firsts, self.shard_starts, self._table, values, out, touched)
        looked_up = touched if by_row or len(self._stamps) > len(touched) else self._stamps
        self._pieces.verify(looked_up, np.full(len(looked_up), 4, np.int64))  # also notes that the files are in use
        return out

    def _mending(self, work: Callable[[], NDArray[Any]]) -> NDArray[Any]:
        """Do work; pieces that turn out to be damaged are made again, with a warning, and it is done once more."""
        try:
            return work()
        except DamageError as error:
            if self._mend is None or self._pieces is None:
                raise
            said = str(error).removesuffix(MENDED)
            warn(f"{said}What the file held is made again now")
            with self._lock:
                self._before.append(self._pieces)
                self._pieces = self._mend()
                self._table[:, 0] = np.where(self._forms == ALL, ALL, _CLOSED)
                self._stamps = np.zeros(0, np.uint64)
            return work()

    def _open(self, shards: Int64) -> None:
        """Map some shards and verify them: wholly, or what is searched of large ones."""
        assert self._pieces is not None
        with self._lock:
            shards = shards[self._table[shards, 0] == _CLOSED]
            for form, data, searched in ((OFFSETS, "offsets", "offsets"), (BITMAP, "words", "ranks")):
                some = shards[self._forms[shards] == form]
                if not len(some):
                    continue
                addresses, begins = self._pieces.addresses(data, some), self._pieces.addresses(searched, some)
                self._pieces.verify(begins, self._pieces.counts[searched][some].astype(np.int64) * 4)
                sizes = self._table[some, 3].astype(np.int64) * (BLOCK // 8) * (form == BITMAP)
                large = sizes > LARGE
                self._pieces.verify(addresses[~large], sizes[~large])
                forms = np.where(large, form + _BY_ROW, form).astype(np.uint64)
                _select.enter(self._table, some.astype(np.uint64), forms, addresses, begins)
                self._stamps = np.unique(np.concatenate([self._stamps, self._pieces.first_addresses(some)]))


def all_rows(shard_starts: UInt64) -> Selection:
    """Return the selection of an unfiltered relation: every row, no piece.

    Args:
        shard_starts: shape [S + 1], uint64: first logical ordinal of each shard, and the end.
    """
    return Selection(shard_starts, None)


def cumulated(counts: UInt64) -> UInt64:
    """Shape [S] -> [S + 1], uint64: where each count's units begin, laid end to end, and the total."""
    return np.concatenate([np.zeros(1, np.uint64), np.cumsum(counts, dtype=np.uint64)])
