"""The threads of one process that compute cached rows, and how many rows each takes at a time.

Rows of a shard are fetched in runs, decoded or tokenized in threads (which release the GIL), and handed to the writer in
order, so memory holds a few runs and never a shard. A run is as many rows as had about the kind's bytes in the runs
before: rows may have no bytes or many megabytes, and no source says so before it is read. Writers of one process share
the threads, and what they learn of the rows' bytes.
"""

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Protocol, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.cache.kinds.kind import Kind, Rows
from spiral_stream.cache.store.part_rows import Chunk
from spiral_stream.sources.references.policy import Reach
from spiral_stream.threads import Workers

HELD_BYTES: Final = 512 << 20  # of runs that wait for a writer, beyond one per thread
GROWTH: Final = 4  # a run has at most this many times the rows of the run before


class BuildRows(Protocol):
    """What a build reads from: an open relation."""

    @property
    def base(self) -> Reach:
        """Where relative references start, and the files that they may name."""
        ...

    def fetch(self, ordinals: NDArray[np.uint64], columns: Sequence[str]) -> pa.Table:
        """Return rows by logical ordinal."""
        ...


@final
@dataclass(frozen=True, slots=True)
class ShardWork:
    """The rows of one source shard that a build still has to store."""

    name: str
    key: str
    first: int  # logical ordinal of the shard's first row
    rows: int  # of the whole shard
    offsets: NDArray[np.uint64]  # rows to store, ascending


@final
class Hands:
    """The threads, and the pace. Thread-safe; a copy in another process has threads of its own.

    Args:
        relation: that owns the payload.
        kind: what to make of its rows.
        threads: that fetch, decode and tokenize.
    """

    def __init__(self, relation: BuildRows, kind: Kind, threads: int) -> None:
        self._relation, self._kind, self._threads = relation, kind, threads
        self._pool: Workers | None = None
        self._closed = False
        self._pace = _Pace(kind)
        self._lock, self._writers = threading.Lock(), 0

    def __reduce__(self) -> tuple[Any, ...]:
        return Hands, (self._relation, self._kind, self._threads)

    def close(self) -> None:
        """End the threads; whoever waits for rows gets none."""
        with self._lock:
            self._closed = True
        if self._pool is not None:
            self._pool.close(where="materialize")

    def shard(self, work: ShardWork) -> Iterator[Chunk]:
        """Yield the rows of one shard, ascending, made by all threads that no other writer needs."""
        waiting: deque[tuple[NDArray[np.uint64], Future[Rows]]] = deque()
        cuts = self._cuts(work)
        with self._lock:
            self._writers += 1
        try:
            left = len(work.offsets)
            while left:
                for offsets in islice(cuts, self._room(len(waiting))):
                    waiting.append((offsets, self._submit(work.first, offsets)))
                offsets, job = waiting.popleft()
                rows = job.result()
                held = max(rows.source_bytes, int(rows.sizes.sum()))  # raw clips are 15 times their source
                self._pace.learn(len(offsets), held)
                left -= len(offsets)
                yield offsets.astype(np.uint32), rows
        finally:
            with self._lock:
                self._writers -= 1
            for _, job in waiting:
                job.cancel()

    def _submit(self, first: int, offsets: NDArray[np.uint64]) -> "Future[Rows]":
        with self._lock:
            if self._closed:
                raise CancelledError
            if self._pool is None:
                self._pool = Workers(self._threads, "spiral-build")
            return self._pool.submit(self._keep, offsets + np.uint64(first))

    def _keep(self, ordinals: NDArray[np.uint64]) -> Rows:
        return self._kind.keep_rows(self._relation.fetch(ordinals, self._kind.columns), self._relation.base)

    def _room(self, waiting: int) -> int:
        """The number of runs that may still begin: one per thread and the one that is next, more while they are small."""
        threads = -(-self._threads // max(1, self._writers))
        held = HELD_BYTES // max(1, self._writers)
        ahead = min(2 * threads, max(threads, held // max(1, self._pace.bytes)))
        if not self._pace.bytes and self._kind.FIRST_ROWS == 1:  # rows may be of any size
            ahead = threads
        return max(0, ahead + 1 - waiting)

    def _cuts(self, work: ShardWork) -> Iterator[NDArray[np.uint64]]:
        start = 0
        while start < len(work.offsets):
            run = work.offsets[start : start + self._pace.rows]
            start += len(run)
            yield run


@final
class _Pace:
    """Chooses the rows of the next run from the bytes of those that are done."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self.rows = min(kind.FIRST_ROWS, kind.RUN_ROWS)
        self.bytes = 0  # of the largest run so far

    def learn(self, rows: int, source_bytes: int) -> None:
        self.bytes = max(self.bytes, source_bytes)
        fitting = self._kind.RUN_BYTES * rows // max(source_bytes, 1)
        grown = max(self.rows, GROWTH * rows)  # the last run of a shard is short and says nothing
        self.rows = max(1, min(fitting, self._kind.RUN_ROWS, grown))
