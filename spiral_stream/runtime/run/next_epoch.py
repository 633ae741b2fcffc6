"""Fetch what the next epoch reads first, before the present epoch ends.

When the feeder has begun the last batch of an epoch, its store is idle until the loop asks for the next one. Meanwhile the
bytes of the next epoch's first batches, as many as are built ahead, go to the node cache, up to a limit. The batches
themselves are built by the next pass, which waits for what is still on its way.

This runs only where it is known without much work which samples share a batch, and where there is a node cache: nothing is
stored here. A run that says how many epochs it takes (`bind(epochs=)`) fetches nothing after its last one.

Each field is asked as it is when its batch is built, so that the same bytes come. Left out are rows of a table whose reader
passes the node cache by, files of this machine, and columns that a map makes: no function is called before its time.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import chain, islice
from typing import Any, final

import pyarrow as pa

from spiral_stream.cursor import LAST_EPOCH
from spiral_stream.errors import SpiralError
from spiral_stream.fields.ragged import Ragged
from spiral_stream.plan.nodes import Collate
from spiral_stream.plan.tree import need
from spiral_stream.planner.binding.bindings import Bound
from spiral_stream.planner.columns.lineage import Stored, identity_keys
from spiral_stream.planner.columns.streams import read
from spiral_stream.planner.stages import Stages
from spiral_stream.runtime import read_ahead
from spiral_stream.runtime.columns.samples import SampleReader, Samples
from spiral_stream.runtime.fields.payload_field import Coming, Fetch, payload_fields
from spiral_stream.runtime.forming.batches import FormedAhead
from spiral_stream.runtime.metrics import Metrics
from spiral_stream.runtime.numbering.steps import Steps
from spiral_stream.runtime.run.opened_plan import Opening
from spiral_stream.runtime.run.position import RunPosition
from spiral_stream.storage.counters import Traffic, counted_behind
from spiral_stream.storage.node_cache.cache import node_cache
from spiral_stream.threads import CLOSE_TIMEOUT_S, Workers, warn_left_alone


@final
class PayloadAhead:
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


@final
class NextEpoch:
    """Fetches ahead for one stream.

    Args:
        metrics: of the stream.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._pool: Workers | None = None
        self._left = 0  # bytes that may still be fetched
        self._lock = threading.Lock()

    def begin(
        self, steps: Steps, position: RunPosition, opening: Opening, bound: Bound, which: tuple[int, int]
    ) -> None:
        """Begin with the epoch after a pass, in threads of its own.

        Args:
            steps: of the pass.
            position: where the stream stands.
            opening: what the stream reads.
            bound: what the run has bound.
            which: worker and workers.
        """
        asked = self._metrics.network.requests or self._metrics.network.hits  # else nothing lies on a store
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
        start = start.enter(bound.world_size, bound.merge)
        then = Steps(numbering, position.drawn(start.epoch), start, bound.turn)
        due = islice(
            chain.from_iterable(then.due(*which)), min(stages.plan.prefetch, bound.steps or stages.plan.prefetch)
        )
        self._left = min(read_ahead.NEXT_EPOCH_BYTES, cache.limit_bytes // read_ahead.NEXT_EPOCH_OF_CACHE)
        if self._pool is None:
            self._pool = Workers(read_ahead.FETCHERS, "spiral-next")
        self._pool.submit(self._counted, partial(self._fetch_batches, self._pool, stages, reader, then, due))

    def _fetch_batches(
        self, pool: Workers, stages: Stages, reader: SampleReader, steps: Steps, due: Iterator[range]
    ) -> None:
        """Begin with each batch: who reads it will say what is wrong with it."""
        payload = PayloadAhead(stages, reader)
        for numbers in due:
            for number in numbers:
                (drawn,) = steps.numbering.draw(steps.epoch, [number])
                for fetch in payload.fetches(steps.epoch, drawn.samples):
                    pool.submit(self._counted, fetch)
                if self._left <= 0:
                    return

    def _counted(self, work: Callable[[], object]) -> None:
        """Fetch something, and count what was asked of stores for it."""
        if self._left <= 0:
            return
        own = Traffic()
        try:
            with suppress(SpiralError, OSError, IndexError):  # the next pass counts hits and waiting
                counted_behind(self._metrics.network, work, given=own)
        finally:
            with self._lock:
                self._left -= own.bytes + own.hit_bytes

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
        warn_left_alone("next epoch", left, timeout_s)
        return bool(left)
