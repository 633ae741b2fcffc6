"""Prefetch neighbouring byte ranges into the node cache: rows next to those of a batch, which this node reads later in the epoch.

A batch that is drawn from many tars reads a few members of each, and waits for these alone. The members next to them are
needed later in the epoch. Which of them, the plan says: of the rows around a row that was read, those that this node has not
read yet in this epoch. Where many of their ranges touch, one request of 8 MiB brings them in place of one request for each.
Nothing is removed from the cache for it, nobody waits for it to begin, and no byte comes that no row names.

Only where each row has a place in the epoch by arithmetic: not of mixtures, and not of orders that repeat rows.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.errors import SpiralError
from spiral_stream.planner.binding.bindings import Bound
from spiral_stream.planner.binding.node_batches import Dealing, nodes_of
from spiral_stream.planner.columns.payload import Payload
from spiral_stream.planner.stages import Stages
from spiral_stream.sampling.order import UInt64
from spiral_stream.semantic import is_media
from spiral_stream.sources.references.resolve import byte_ranges
from spiral_stream.storage.counters import Traffic, counted_behind
from spiral_stream.storage.node_cache.store import MANY, NodeStore
from spiral_stream.storage.open import payload_store_of
from spiral_stream.threads import StreamThread, Workers

ROWS: Final = 4096  # looked at together: 10 ms
THREADS: Final = 4  # each with a request of 8 MiB under way
Near = tuple[int, str, int, int]  # stream, column, storage shard, and which rows of it


@final
class Around:
    """Fetches what lies around for one pass. Starts no thread before there is anything.

    Args:
        stages: of the stream.
        bound: of the run.
        epoch: the epoch whose order is drawn.
        begun: the global batch that the pass begins with.
        turns: the global batch from which on ranks take turns.
        traffic: where it is counted what is asked of stores.
    """

    def __init__(self, stages: Stages, bound: Bound, epoch: int, begun: int, turns: int, traffic: Traffic) -> None:
        self._stages, self._bound, self._epoch, self._traffic = stages, bound, epoch, traffic
        self._turns, self._batches = turns, range(begun, 1 << 62)
        if stages.formed:  # whose windows are no batches
            self._batches = range(1 << 62)
        elif bound.steps is not None:
            self._batches = range(begun, bound.steps * bound.world_size * bound.merge)
        nodes = nodes_of(bound)
        self._dealing = Dealing(stages.batches.lanes.count, nodes, bound.ranks_per_node is not None)
        self._node = bound.rank // nodes.ranks_per_node
        self._seen, self._left, self._lock = set[Near](), 0, threading.Lock()
        self._workers = Workers(THREADS, "spiral-around")

    @property
    def threads(self) -> Sequence[StreamThread]:
        """The threads that were started."""
        return self._workers.threads

    @property
    def busy(self) -> bool:
        """Whether anything is being fetched, or waits for it."""
        return self._left > 0

    def near(self, stream: int, payload: Payload, rows: UInt64, left: Callable[[UInt64], UInt64]) -> None:
        """Fetch what lies around some rows, once.

        Args:
            stream: the stream that they are of.
            payload: the column that was read.
            rows: surviving rows of the stream.
            left: which rows of the relation are read from the source, of some.
        """
        kind = payload.relation.schema.field(payload.column).type
        if not pa.types.is_struct(kind) or is_media(kind):
            return  # bytes in the relation itself, or objects of their own
        firsts = self._stages.streams[stream].selected.firsts.astype(np.int64)
        shards = np.searchsorted(firsts, rows.astype(np.int64), side="right") - 1
        parts = (rows.astype(np.int64) - firsts[shards]) // ROWS
        for shard, part in np.unique(np.stack([shards, parts]), axis=1).T.tolist():
            near = stream, payload.column, shard, part
            with self._lock:
                if near in self._seen:
                    continue
                self._seen.add(near)
            begin = int(firsts[shard]) + part * ROWS
            there = np.arange(begin, min(begin + ROWS, int(firsts[shard + 1])), dtype=np.uint64)
            self._submit(self._look, payload, there, left)

    def stop(self) -> None:
        """Forget what has not begun, and end each thread after its present request."""
        self._workers.stop()

    def _submit(self, work: Callable[..., None], *args: Any) -> None:
        with self._lock:
            self._left += 1
        self._workers.submit(self._quietly, work, *args).add_done_callback(self._done)

    def _done(self, _: "Future[None]") -> None:
        with self._lock:
            self._left -= 1

    def _quietly(self, work: Callable[..., None], *args: Any) -> None:
        """Do work; whoever needs the bytes later says what is wrong with them."""
        with suppress(SpiralError, OSError):
            counted_behind(self._traffic, work, *args)

    def _look(self, payload: Payload, rows: UInt64, left: Callable[[UInt64], UInt64]) -> None:
        ordinals = left(np.unique(payload.ordinals(self._due(rows))))
        if len(ordinals):
            values = payload.relation.fetch(ordinals, [payload.column])[payload.column].combine_chunks()
            for fetch in _fetches(values, payload):
                self._submit(fetch)

    def _due(self, rows: UInt64) -> UInt64:
        """Return which rows this node is going to read in what is left of the epoch."""
        positions = self._stages.epochs.positions_of(self._epoch, rows)
        if positions is None:
            return rows[:0]
        total = self._stages.epochs.length(self._epoch)
        indices = positions.astype(np.int64)
        batches, _, nodes = self._dealing.dealt(self._stages, self._bound, total, indices, self._turns)
        due = (nodes == self._node) & (batches >= self._batches.start) & (batches < self._batches.stop)
        return np.asarray(rows[due], np.uint64)


def _fetches(values: pa.Array, payload: Payload) -> list[Callable[[], None]]:
    """Return what brings the bytes that references name, as far as a request brings many of them."""
    if values.null_count:
        return []
    ranges, reach = byte_ranges(values), payload.relation.base
    found: list[Callable[[], None]] = []
    counts = np.bincount(ranges.files, minlength=len(ranges.uris))
    for code in np.flatnonzero(counts >= MANY).tolist():  # not each object that one row names
        uri = ranges.uris[code]
        named, facts = reach.object_of(uri, 0), reach.pinned(uri)
        if named is None or facts is None:
            continue
        store, key = payload_store_of(named)
        if isinstance(store, NodeStore):
            found += store.around(key, facts, *_sorted(ranges.starts, ranges.lengths, ranges.files == code))
    return found


def _sorted(starts: NDArray[np.int64], lengths: NDArray[np.int64], of: NDArray[np.bool_]) -> tuple[Any, Any]:
    """Return where ranges begin and stop, ascending."""
    by = np.argsort(starts[of], kind="stable")
    return starts[of][by], (starts[of] + lengths[of])[by]
