"""Build a cache: every shard that is not finished, in parallel, one commit now and then.

Rows of a shard are fetched in runs, decoded and shrunk in threads (the codecs
release the GIL), and streamed into one fragment, so memory holds a few chunks
and never a shard. A finished shard is in the ledger at once: an interrupted build
goes on with the next one. A row whose bytes are bad is stored as refused, with its
reason, so that cached and uncached streams treat it alike.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final, Protocol, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.cache.prefix import Kept, Prefix
from spiral_stream.cache.store import CacheStore, Rows
from spiral_stream.errors import DataError
from spiral_stream.sources.reference import resolve

CHUNK_ROWS: Final = 32  # about 3 MB of JPEGs: below the size at which the allocator maps and unmaps every read
COMMIT_EVERY_S: Final = 30.0


class Rowed(Protocol):
    """What a build reads from: an open relation."""

    @property
    def base(self) -> str:
        """Folder that relative references start from."""
        ...

    def fetch(self, ordinals: NDArray[np.uint64], columns: Sequence[str]) -> pa.Table:
        """Rows by logical ordinal."""
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
    """The part of the work that no finished part covers yet."""
    covered = store.covered()
    out = []
    for work in shards:
        mask = covered.get(work.key)
        left = work.offsets if mask is None else work.offsets[~mask[work.offsets.astype(np.int64)]]
        if len(left):
            out.append(ShardWork(work.name, work.key, work.first, work.rows, left))
    return out


def build(
    relation: Rowed,
    prefix: Prefix,
    store: CacheStore,
    shards: Sequence[ShardWork],
    threads: int,
    report: Callable[[Progress], None] = lambda _: None,
) -> Progress:
    """Store what is pending of ``shards`` and commit it.

    Args:
        relation: the open relation that owns the payload.
        prefix: what to store.
        store: where.
        shards: the rows a selection needs, shard by shard.
        threads: decoding threads.
        report: called after every chunk with what is done so far.

    Raises:
        CacheError: the folder cannot be written.
        SourceError: the payload cannot be read (an I/O fault, not bad bytes).
    """
    todo = pending(shards, store)
    done = Progress(0, len(todo), 0, sum(len(w.offsets) for w in todo), 0, 0)

    def counted(chunks: Iterator[Rows]) -> Iterator[Rows]:
        nonlocal done
        for chunk in chunks:
            refused = sum(reason is not None for reason in chunk.refused)
            done = replace(done, rows=done.rows + len(chunk.offsets), refused=done.refused + refused)
            yield chunk
            report(done)

    last_commit = time.monotonic()
    with ThreadPoolExecutor(threads, thread_name_prefix="spiral-build") as pool:
        for work in todo:
            size = store.write(work.key, work.rows, counted(_decoded(pool, relation, prefix, work, threads)))
            done = replace(done, shards=done.shards + 1, payload_bytes=done.payload_bytes + size)
            report(done)
            if time.monotonic() - last_commit > COMMIT_EVERY_S:
                store.commit()
                last_commit = time.monotonic()
    store.commit()
    return done


def _decoded(
    pool: ThreadPoolExecutor, relation: Rowed, prefix: Prefix, work: ShardWork, threads: int
) -> Iterator[Rows]:
    """The chunks of one shard in order, a few ahead of the writer."""
    waiting: deque[Future[Rows]] = deque()
    for start in range(0, len(work.offsets), CHUNK_ROWS):
        offsets = work.offsets[start : start + CHUNK_ROWS]
        waiting.append(pool.submit(_keep, relation, prefix, work.first, offsets))
        if len(waiting) > 2 * threads:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def _keep(relation: Rowed, prefix: Prefix, first: int, offsets: NDArray[np.uint64]) -> Rows:
    table = relation.fetch(offsets + np.uint64(first), [prefix.column])
    column = table[prefix.column]
    kept: list[Kept | None] = []
    refused: list[str | None] = []
    for at in range(len(column)):  # 1 to 2 us a row beside 800 us of decoding
        try:
            data = resolve(column.slice(at, 1), relation.base)[0]
            kept.append(prefix.keep(data))
            refused.append(None)
        except DataError as error:
            kept.append(None)
            refused.append(str(error))
    return Rows(
        offsets.astype(np.uint32),
        np.array([0 if k is None else k.height for k in kept], dtype=np.int32),
        np.array([0 if k is None else k.width for k in kept], dtype=np.int32),
        [None if k is None else k.payload for k in kept],
        refused,
    )
