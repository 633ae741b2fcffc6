"""Build a cache: every shard that is not finished, in parallel, one commit now and then.

Rows of a shard are fetched in runs, decoded or tokenized in threads (which release
the GIL), and streamed into one fragment, so memory holds a few runs and never a
shard. A run is as many rows as had about the kind's bytes in the runs before: rows
may have no bytes or many megabytes, and no source says so before it is read. A
finished shard is in the ledger at once: an interrupted build goes on with the next
one. A row whose bytes are bad is stored as refused, with its reason, so that cached
and uncached streams treat it alike.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final, Protocol, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.cache.kind import Kind, Rows
from spiral_stream.cache.part_rows import Chunk
from spiral_stream.cache.store import CacheStore
from spiral_stream.sources.reach import Reach
from spiral_stream.threads import Workers

HELD_BYTES: Final = 512 << 20  # of runs that wait for the writer, beyond one per thread
GROWTH: Final = 4  # a run has at most this many times the rows of the run before
COMMIT_EVERY_S: Final = 30.0


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
@dataclass(frozen=True, slots=True)
class Progress:
    """What a build has done so far."""

    shards: int
    shards_total: int
    rows: int
    rows_total: int
    refused: int
    payload_bytes: int


def pending(shards: Sequence[ShardWork], store: CacheStore) -> list[ShardWork]:
    """Return the part of the work that no finished part covers yet."""
    covered = store.covered()
    out = []
    for work in shards:
        mask = covered.get(work.key)
        left = work.offsets if mask is None else work.offsets[~mask[work.offsets.astype(np.int64)]]
        if len(left):
            out.append(ShardWork(work.name, work.key, work.first, work.rows, left))
    return out


def build(
    relation: BuildRows,
    kind: Kind,
    store: CacheStore,
    shards: Sequence[ShardWork],
    threads: int,
    report: Callable[[Progress], None] = lambda _: None,
) -> Progress:
    """Store what is pending of ``shards`` and commit it.

    Args:
        relation: the open relation that owns the payload.
        kind: what to store.
        store: where.
        shards: the rows a selection needs, shard by shard.
        threads: that fetch, decode and tokenize.
        report: called after every run with what is done so far.

    Raises:
        CacheError: the folder cannot be written.
        SourceError: the payload cannot be read (an I/O fault, not bad bytes).
    """
    store.mend()
    store.sweep()
    todo = pending(shards, store)
    done = Progress(0, len(todo), 0, sum(len(w.offsets) for w in todo), 0, 0)

    def counted(chunks: Iterator[Chunk]) -> Iterator[Chunk]:
        nonlocal done
        for offsets, rows in chunks:
            done = replace(done, rows=done.rows + len(offsets), refused=done.refused + len(rows.refused))
            yield offsets, rows
            report(done)

    last_commit = time.monotonic()
    pool = Workers(threads, "spiral-build")
    try:
        runs = _RowRuns(pool, relation, kind, todo, threads)
        for work in todo:
            size = store.write(work.key, work.rows, counted(runs.of_shard(work)))
            done = replace(done, shards=done.shards + 1, payload_bytes=done.payload_bytes + size)
            report(done)
            if time.monotonic() - last_commit > COMMIT_EVERY_S:
                store.commit()
                last_commit = time.monotonic()
    finally:
        pool.close(where="materialize")
    store.commit()
    store.sweep()
    return done


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


@final
class _RowRuns:
    """Runs of rows in the order of the shards, a few ahead of the writer, across the borders of shards."""

    def __init__(
        self, pool: Workers, relation: BuildRows, kind: Kind, shards: Sequence[ShardWork], threads: int
    ) -> None:
        self._pool, self._relation, self._kind, self._threads = pool, relation, kind, threads
        self._pace = _Pace(kind)
        self._waiting: deque[tuple[NDArray[np.uint64], Future[Rows]]] = deque()
        self._cut = self._cuts(shards)

    def of_shard(self, work: ShardWork) -> Iterator[Chunk]:
        """The runs of the shard whose turn it is."""
        left = len(work.offsets)
        while left:
            for first, offsets in islice(self._cut, self._room()):
                job = self._pool.submit(_keep, self._relation, self._kind, first, offsets)
                self._waiting.append((offsets, job))
            offsets, job = self._waiting.popleft()
            rows = job.result()
            self._pace.learn(
                len(offsets), max(rows.source_bytes, int(rows.sizes.sum()))
            )  # raw clips are 15 times their source
            left -= len(offsets)
            yield offsets.astype(np.uint32), rows

    def _room(self) -> int:
        """The number of runs that may still begin: one per thread and the one that is next, more while they are small."""
        ahead = min(2 * self._threads, max(self._threads, HELD_BYTES // max(1, self._pace.bytes)))
        if not self._pace.bytes and self._kind.FIRST_ROWS == 1:  # rows may be of any size
            ahead = self._threads
        return max(0, ahead + 1 - len(self._waiting))

    def _cuts(self, shards: Sequence[ShardWork]) -> Iterator[tuple[int, NDArray[np.uint64]]]:
        for work in shards:
            start = 0
            while start < len(work.offsets):
                run = work.offsets[start : start + self._pace.rows]
                start += len(run)
                yield work.first, run


def _keep(relation: BuildRows, kind: Kind, first: int, offsets: NDArray[np.uint64]) -> Rows:
    return kind.keep_rows(relation.fetch(offsets + np.uint64(first), kind.columns), relation.base)
