"""Rows of a payload column for several small batches: one call reads them all, when the first of them is needed.

A batch of one image would cost a call of its source, which takes longer than the decoder where the source reads pages or
row groups. So the rows of the next batches are expected with those of the one that is begun (`runtime.batch.look_up` says how
many), and whoever reads the first of them reads all. Nothing is read for rows that a cache has, and nothing waits: other
threads that need rows of the same call wait for it as they would for their own.

What was read is let go of when the last row was taken. A pass that ends early, or takes rows twice, leaves at most `_GROUPS`
calls of `read_ahead.ROWS_BYTES` each. An error belongs to its batch: where reading together fails, each batch reads its own rows.
"""

import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, final

import numpy as np
import pyarrow as pa

from spiral_stream.catalog.relation.reader import OpenRelation
from spiral_stream.runtime import read_ahead
from spiral_stream.sampling.order import UInt64

_GROUPS: Final = 8  # expected at a time, for `prefetch` batches and the first calls, which are for few rows


@final
class RowsRead:
    """Rows that are read together."""

    def __init__(self, ordinals: UInt64) -> None:
        self.ordinals, self.left = np.unique(ordinals), len(ordinals)
        self.table: pa.Table | None = None
        self.begun = False
        self.lock = threading.Lock()

    def indices_of(self, ordinals: UInt64) -> UInt64 | None:
        """Shape [P] -> [P]: where rows lie in the table; None where it lacks one."""
        at = np.minimum(np.searchsorted(self.ordinals, ordinals), len(self.ordinals) - 1)
        return at.astype(np.uint64) if bool((self.ordinals[at] == ordinals).all()) else None


@final
class RowsAhead:
    """A relation, some of whose rows are read together. Thread-safe.

    Args:
        relation: it is closed by its owner.
    """

    def __init__(self, relation: OpenRelation) -> None:
        self._relation = relation
        self._groups = deque[RowsRead](maxlen=_GROUPS)
        self._lock = threading.Lock()
        self.room: int | None = None

    def expect(self, ordinals: UInt64) -> None:
        """Note rows that will be read, each as often as it stands here. Of a relation on a store, each batch asks for its own."""
        if len(ordinals) and not self._relation.remote:
            with self._lock:
                self._groups.append(RowsRead(ordinals))

    def fetch(self, ordinals: UInt64, columns: Sequence[str]) -> pa.Table:
        """Read rows as the relation does, with all those that are expected together with them.

        Raises:
            SourceError: see `OpenRelation.fetch`.
        """
        if len(ordinals) and self._groups:
            with self._lock:
                found = [(group, group.indices_of(ordinals)) for group in self._groups]
            for group, indices in found:
                table = None if indices is None else self._read(group, columns)
                if table is not None and table.column_names == list(columns):
                    self._took(group, len(ordinals))
                    return table.take(pa.array(indices))
        return self._relation.fetch(ordinals, columns)

    def _read(self, group: RowsRead, columns: Sequence[str]) -> pa.Table | None:
        with group.lock:
            if not group.begun:
                group.begun = True
                with suppress(Exception):  # it comes again, at its batch
                    group.table = self._relation.fetch(group.ordinals, columns).combine_chunks()
                    self.room = int(read_ahead.ROWS_BYTES // max(1, group.table.nbytes // len(group.ordinals)))
            return group.table

    def _took(self, group: RowsRead, rows: int) -> None:
        with self._lock:
            group.left -= rows
            if group.left <= 0 and group in self._groups:
                self._groups.remove(group)


def least(rooms: Sequence[int | None]) -> int | None:
    """Return the least of some rooms; None where nobody knows any."""
    return min((each for each in rooms if each is not None), default=None)
