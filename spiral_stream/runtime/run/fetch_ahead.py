"""Fetch bytes into the node cache before the plan needs them: more of this epoch, and the beginning of the next one.

One object per stream decides what is read ahead over a network (`FetchAhead`): it has the threads, the limit in bytes, and
the end. Nothing is stored here; batches find the bytes in the node cache, or wait there for what is on its way.

*This epoch* (`Near`). A batch that is drawn from many tars reads a few members of each, and waits for these alone. The
members next to them are needed later in the epoch. Which of them, the plan says: of the rows around a row that was read,
those that this node has not read yet. Where many of their ranges touch, one request of 8 MiB brings them in place of one
request for each. Nothing is removed from the cache for it, nobody waits for it to begin, and no byte comes that no row names.
Only where each row has a place in the epoch by arithmetic: not of mixtures, and not of orders that repeat rows.

*The next epoch.* When the feeder has begun the last batch of an epoch, its store is idle until the loop asks for the next
one. Meanwhile the bytes of the next epoch's first batches come, as many as are built ahead. This runs only where it is known
without much work which samples share a batch. A run that says how many epochs it takes (`bind(epochs=)`) fetches nothing
after its last one. Each field is asked as it is when its batch is built, so that the same bytes come. Left out are rows of a
table whose reader passes the node cache by, files of this machine, and columns that a map makes: no function is called
before its time.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from itertools import chain, islice
from typing import Any, Final, final

import numpy as np
import pyarrow as pa

from spiral_stream.cursor import LAST_EPOCH
from spiral_stream.errors import SpiralError
from spiral_stream.fields.ragged import Ragged
from spiral_stream.plan.nodes import Collate
from spiral_stream.plan.tree import need
from spiral_stream.planner.binding.bindings import Bound
from spiral_stream.planner.binding.node_batches import Dealing, nodes_of
from spiral_stream.planner.columns.lineage import Stored, identity_keys
from spiral_stream.planner.columns.payload import Payload
from spiral_stream.planner.columns.streams import read
from spiral_stream.planner.stages import Stages
from spiral_stream.runtime import read_ahead
from spiral_stream.runtime.columns.samples import SampleReader, Samples
from spiral_stream.runtime.fields.payload_field import Coming, Fetch, payload_fields
from spiral_stream.runtime.forming.batches import FormedAhead
from spiral_stream.runtime.metrics import Metrics
from spiral_stream.runtime.numbering.steps import Steps, dealt_steps
from spiral_stream.runtime.run.opened_plan import Opening
from spiral_stream.runtime.run.position import RunPosition
from spiral_stream.sampling.order import UInt64
from spiral_stream.semantic import is_media
from spiral_stream.sources.references.resolve import byte_ranges
from spiral_stream.storage.counters import Traffic, counted_behind
from spiral_stream.storage.node_cache.cache import node_cache
from spiral_stream.storage.node_cache.store import MANY, NodeStore
from spiral_stream.storage.open import payload_store_of
from spiral_stream.threads import CLOSE_TIMEOUT_S, Workers, warn_left_alone

ROWS: Final = 4096  # looked at together: 10 ms
_Window = tuple[int, str, int, int]  # stream, column, storage shard, and which rows of it


@final
class FetchAhead:
    """What one stream fetches before it is needed. Starts no thread before there is anything; close it.

    Args:
        metrics: of the stream.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._traffic = metrics.network
        self._pool: Workers | None = None
        self._left = 0  # bytes that may still come for the next epoch
        self._lock = threading.Lock()

    def this_epoch(self, stages: Stages, bound: Bound, epoch: int, begun: int, turns: int) -> "Near":
        """Return what fetches ahead for a pass; stop it.

        Args:
            stages: of the stream.
            bound: of the run.
            epoch: the epoch whose order is drawn.
            begun: the global batch that the pass begins with.
            turns: the global batch from which on ranks take turns.
        """
        self._open()
        return Near(self.submit, stages, bound, epoch, begun, turns)

    def _open(self) -> None:
        if self._pool is None:
            self._pool = Workers(read_ahead.THREADS, "spiral-ahead")

    def next_epoch(
        self, steps: Steps, position: RunPosition, opening: Opening, bound: Bound, which: tuple[int, int]
    ) -> None:
        """Begin with the epoch after a pass.

        Args:
            steps: of the pass.
            position: where the stream stands.
            opening: what the stream reads.
            bound: what the run has bound.
            which: worker and workers.
        """
        asked = self._traffic.requests or self._traffic.hits  # else nothing lies on a store
        cache = node_cache() if asked else None
        start = steps.start.next_epoch()
        last = LAST_EPOCH if bound.epochs is None else bound.epochs - 1
        if cache is None or start.epoch > last:
            return
        lowered, reader, numbering = opening.read(bound.run_seed)
        formed, stages = opening.formed(bound.run_seed), lowered.stages
        if formed is not None:
            if formed.forming.unknown():
                return
            numbering = numbering.over(FormedAhead(formed.forming))
        start = start.enter(*bound.shape)
        then = dealt_steps(numbering, position.drawn(start.epoch), start, bound.turn)
        due = islice(
            chain.from_iterable(then.due(*which)), min(stages.plan.prefetch, bound.steps or stages.plan.prefetch)
        )
        self._left = min(read_ahead.NEXT_EPOCH_BYTES, cache.limit_bytes // read_ahead.NEXT_EPOCH_OF_CACHE)
        self._open()
        self.submit(partial(self._fetch_batches, stages, reader, then, due), limited=True)

    def _fetch_batches(self, stages: Stages, reader: SampleReader, steps: Steps, due: Iterator[range]) -> None:
        payload = _Payload(stages, reader)
        for numbers in due:
            for number in numbers:
                (drawn,) = steps.numbering.draw(steps.epoch, [number])
                for fetch in payload.fetches(steps.epoch, drawn.samples):
                    self.submit(fetch, limited=True)
                if self._left <= 0:
                    return

    def submit(
        self, work: Callable[[], object], done: Callable[[Any], None] | None = None, *, limited: bool = False
    ) -> None:
        """Let one of the threads do work, unless all was closed. Whoever reads the bytes later says what is wrong with them.

        Args:
            work: fetches something.
            done: called after it, also where it was dropped.
            limited: whether it is for the next epoch, whose bytes have a limit.
        """
        pool = self._pool
        future: Future[None] = Future() if pool is None else pool.submit(self._fetch, work, limited)
        if pool is None:
            future.cancel()
        if done is not None:
            future.add_done_callback(done)

    def _fetch(self, work: Callable[[], object], limited: bool) -> None:
        if limited and self._left <= 0:
            return
        own = Traffic()
        try:
            with suppress(SpiralError, OSError, IndexError):  # a batch that reads it counts hits and waiting
                counted_behind(self._traffic, work, given=own)
        finally:
            with self._lock:
                self._left -= (own.bytes + own.hit_bytes) * limited

    def close(self, timeout_s: float | None = None) -> bool:
        """End what is under way.

        Returns:
            Whether a thread still runs after the deadline; a warning has named it.
        """
        pool, self._pool = self._pool, None
        if pool is None:
            return False
        timeout_s = CLOSE_TIMEOUT_S if timeout_s is None else timeout_s
        left = pool.end(timeout_s)
        warn_left_alone("fetch ahead", left, timeout_s)
        return bool(left)


@final
class Near:
    """What lies around the bytes that a pass reads.

    Args:
        submit: as of `FetchAhead`.
        stages: and the others: see `FetchAhead.this_epoch`.
        bound: of the run.
        epoch: the epoch whose order is drawn.
        begun: the global batch that the pass begins with.
        turns: the global batch from which on ranks take turns.
    """

    def __init__(
        self, submit: Callable[..., None], stages: Stages, bound: Bound, epoch: int, begun: int, turns: int
    ) -> None:
        self._submit, self._stages, self._bound, self._epoch, self._turns = submit, stages, bound, epoch, turns
        self._batches = range(begun, 1 << 62)
        if stages.formed:  # whose windows are no batches
            self._batches = range(1 << 62)
        elif bound.steps is not None:
            self._batches = range(begun, bound.steps * bound.world_size * bound.merge)
        nodes = nodes_of(bound)
        self._dealing = Dealing(stages.batches.lanes.count, nodes, bound.ranks_per_node is not None)
        self._node = bound.rank // nodes.ranks_per_node
        self._under_way: dict[_Window, int] = {}  # fetches that are not over, of each window that was looked at
        self._lock, self._stopped = threading.Lock(), False

    def begin(
        self, stream: int, payload: Payload, rows: UInt64, left: Callable[[UInt64], UInt64]
    ) -> Callable[[], bool]:
        """Fetch what lies around some rows, once.

        Args:
            stream: the stream that they are of.
            payload: the column that is read.
            rows: surviving rows of the stream.
            left: which rows of the relation are read from the source, of some.

        Returns:
            says whether any of it is on its way.
        """
        kind = payload.relation.schema.field(payload.column).type
        if not pa.types.is_struct(kind) or is_media(kind):
            return lambda: False  # bytes in the relation itself, or objects of their own
        firsts = self._stages.streams[stream].selected.firsts.astype(np.int64)
        shards = np.searchsorted(firsts, rows.astype(np.int64), side="right") - 1
        parts = (rows.astype(np.int64) - firsts[shards]) // ROWS
        windows: list[_Window] = []
        for shard, part in np.unique(np.stack([shards, parts]), axis=1).T.tolist():
            window = stream, payload.column, shard, part
            windows.append(window)
            with self._lock:
                if window in self._under_way:
                    continue
                self._under_way[window] = 0
            begin = int(firsts[shard]) + part * ROWS
            there = np.arange(begin, min(begin + ROWS, int(firsts[shard + 1])), dtype=np.uint64)
            self._start(window, partial(self._look, window, payload, there, left))
        return lambda: not self._stopped and any(self._under_way[each] for each in windows)

    def stop(self) -> None:
        """Do nothing more than what has begun; nobody waits for anything."""
        self._stopped = True

    def _start(self, window: _Window, work: Callable[[], None]) -> None:
        def over(_: object) -> None:
            with self._lock:
                self._under_way[window] -= 1

        with self._lock:
            self._under_way[window] += 1
        self._submit(lambda: None if self._stopped else work(), over)

    def _look(self, window: _Window, payload: Payload, rows: UInt64, left: Callable[[UInt64], UInt64]) -> None:
        ordinals = left(np.unique(payload.ordinals(self._due(rows))))
        if len(ordinals):
            values = payload.relation.fetch(ordinals, [payload.column])[payload.column].combine_chunks()
            for fetch in _parts(values, payload):
                self._start(window, fetch)

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


def _parts(values: pa.Array, payload: Payload) -> Iterator[Callable[[], None]]:
    """Yield what brings the bytes that references name, as far as a request brings many of them."""
    if values.null_count:
        return
    ranges, reach = byte_ranges(values), payload.relation.base
    counts = np.bincount(ranges.files, minlength=len(ranges.uris))
    for code in np.flatnonzero(counts >= MANY).tolist():  # not each object that one row names
        uri = ranges.uris[code]
        named, facts = reach.object_of(uri, 0), reach.pinned(uri)
        if named is None or facts is None:
            continue
        store, key = payload_store_of(named)
        if isinstance(store, NodeStore):
            starts, stops = ranges.starts[ranges.files == code], (ranges.starts + ranges.lengths)[ranges.files == code]
            by = np.argsort(starts, kind="stable")
            yield from store.around(key, facts, starts[by], stops[by])


@final
class _Payload:
    """The fields of a stream, asked for what their batches will read.

    Args:
        stages: the lowered plan.
        reader: of the stream; what is read here is not in its metrics.
    """

    def __init__(self, stages: Stages, reader: SampleReader) -> None:
        self._stages, self._reader = stages, reader.for_counting()
        fields = payload_fields(stages, self._reader.lineage, Metrics())
        self._fields = [each for each in fields if each.by_address or self._is_stored(each.column)]
        self._columns = sorted(self._read_columns())
        self._draws = all(isinstance(key, Stored) for key in identity_keys(stages))

    def _is_stored(self, column: str) -> bool:
        return isinstance(self._reader.lineage.key(column, self._reader.end), Stored)

    def _read_columns(self) -> set[str]:
        """The columns whose references are looked at, and of tables on a store all that batches read by row."""
        named = {each.column for each in self._fields if not each.by_address}
        bases = [stream.base for stream in self._stages.streams]
        if any(base.remote and base.node_cached for base in bases):
            by_address = {each.column for each in self._fields if each.by_address}
            fields = [field for _, field in need(self._stages.plan, Collate).fields]
            names = [name for field in fields for name in field.columns if name not in by_address]
            keys = [*self._reader.lineage.keys(names, self._reader.end), *identity_keys(self._stages)]
            named |= {key.name for key in self._reader.lineage.rests_on(keys) if isinstance(key, Stored)}
        return named

    def fetches(self, epoch: int, samples: Samples) -> Iterator[Fetch]:
        """Yield what fetches a batch, piece by piece. Reads small columns meanwhile.

        Args:
            epoch: the epoch whose order is drawn.
            samples: of the batch; their columns are not looked at.

        Raises:
            SourceError: a relation cannot be read.
        """
        places = samples.stream_rows
        if not len(places):
            return
        columns = {name: _array(each) for name, each in read(self._stages.streams, places, self._columns).items()}
        coming = Coming(samples, columns, partial(self._reader.random_keys, epoch) if self._draws else None)
        for field in self._fields:
            yield from field.fetches(coming)


def _array(column: Any) -> pa.Array:
    if isinstance(column, Ragged):
        return column.arrow()
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return whole.chunk(0) if isinstance(whole, pa.ChunkedArray) else whole
