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
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, islice
from typing import Any, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.cursor import LAST_EPOCH
from spiral_stream.errors import SpiralError
from spiral_stream.fields.ragged import Ragged
from spiral_stream.plan.nodes import Collate
from spiral_stream.plan.tree import need
from spiral_stream.planner.binding.bindings import Bound
from spiral_stream.planner.columns.lineage import Stored, identity_keys
from spiral_stream.planner.columns.payload import Payload
from spiral_stream.planner.columns.streams import read, split
from spiral_stream.planner.stages import ClipStage, PlainStage, SoundStage, Stages
from spiral_stream.runtime import read_ahead
from spiral_stream.runtime.batch.builder import TASK_ROWS
from spiral_stream.runtime.columns.samples import SampleReader, Samples
from spiral_stream.runtime.fetch import chunks
from spiral_stream.runtime.fields import image_lists as list_filling
from spiral_stream.runtime.fields.bytes import stored_bytes
from spiral_stream.runtime.fields.clips import ClipField
from spiral_stream.runtime.fields.image_lists import ImageListField
from spiral_stream.runtime.fields.images import ImageField
from spiral_stream.runtime.fields.sounds import SoundField
from spiral_stream.runtime.metrics import Metrics
from spiral_stream.runtime.numbering.steps import Steps
from spiral_stream.runtime.run.opened_plan import Opening
from spiral_stream.runtime.run.position import RunPosition
from spiral_stream.sampling.epoch import StreamRows
from spiral_stream.sampling.order import UInt64
from spiral_stream.seeding import view_keys
from spiral_stream.semantic import is_list
from spiral_stream.sources.references.objects import names_objects
from spiral_stream.storage.counters import Traffic, counted_behind
from spiral_stream.storage.node_cache.cache import node_cache
from spiral_stream.threads import CLOSE_TIMEOUT_S, Workers, warn_left_alone

Fetch = Callable[[], object]
Int64 = NDArray[np.int64]


@final
class PayloadAhead:
    """The fields of a stream, asked for what their batches will read.

    Args:
        stages: the lowered plan.
        reader: of the stream; what is read here is not in its metrics.
    """

    def __init__(self, stages: Stages, reader: SampleReader) -> None:
        self._stages, self._reader = stages, reader.for_counting()
        unseen = Metrics()
        self._images = [(each, ImageField(each, unseen)) for each in stages.images if each.listed is None]
        self._lists = [(each, ImageListField(each, unseen)) for each in stages.images if each.listed is not None]
        self._clips = [(each, ClipField(each, unseen)) for each in stages.clips]
        self._sounds = [(each, SoundField(each, unseen)) for each in stages.sounds if self._is_stored(each.column)]
        self._plains = [each for each in stages.plains if each.payloads and self._is_stored(each.field.column)]
        self._columns = sorted(self._read_columns())
        identity = all(isinstance(key, Stored) for key in identity_keys(stages))
        self._draws = identity and not all(each.selection.deterministic for each in stages.clips)

    def _is_stored(self, column: str) -> bool:
        return isinstance(self._reader.lineage.key(column, self._reader.end), Stored)

    def _read_columns(self) -> set[str]:
        """The columns whose references are looked at, and of tables on a store all that batches read by row."""
        named = {each.column for each, _ in self._sounds} | {each.field.column for each in self._plains}
        bases = [stream.base for stream in self._stages.streams]
        if any(base.remote and base.node_cached for base in bases):
            by_address = {each.column for each, _ in (*self._images, *self._lists)} | {
                each.column for each, _ in self._clips
            }
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
        for image, images in self._images:
            for some in _cut(places.take(self._far(image.payloads, places)), TASK_ROWS):
                yield partial(images.fetch, some)
        for image, lists in self._lists:
            for some in _cut(places.take(self._far(image.payloads, places)), list_filling.TASK_ROWS):
                yield partial(_fetch_lists, lists, some)
        for sound, sounds in self._sounds:
            yield from self._of_sound(sound, sounds, places, columns[sound.column])
        for plain in self._plains:
            yield from self._of_bytes(plain, places, columns[plain.field.column])
        for clip, clips in self._clips:
            yield from self._of_clips(clip, clips, epoch, samples)

    def _of_sound(self, stage: SoundStage, field: SoundField, places: StreamRows, values: pa.Array) -> Iterator[Fetch]:
        far = self._far(stage.payloads, places, values)
        for start, stop in chunks(len(far), max(1, TASK_ROWS // 4)):
            yield partial(field.fetch, places.take(far[start:stop]), values.take(pa.array(far[start:stop])))

    def _of_bytes(self, stage: PlainStage, places: StreamRows, values: pa.Array) -> Iterator[Fetch]:
        far = self._far(stage.payloads, places, values)
        for start, stop in chunks(len(far), TASK_ROWS):
            some = far[start:stop]
            yield partial(stored_bytes, stage.payloads, places.take(some), values.take(pa.array(some)))

    def _of_clips(self, stage: ClipStage, field: ClipField, epoch: int, samples: Samples) -> Iterator[Fetch]:
        far = self._far(stage.payloads, samples.stream_rows)
        if not len(far) or not (self._draws or stage.selection.deterministic):
            return
        own = Samples(samples.stream_rows.take(far), samples.parts[far], samples.origins[far])
        keys = self._reader.random_keys(epoch, own) if self._draws else np.zeros(len(far), dtype=np.uint64)
        for _, fetch in field.find(own.stream_rows, view_keys(keys, stage.view)):
            if fetch is not None:
                yield fetch

    def _far(self, payloads: Sequence[Payload], places: StreamRows, values: pa.Array | None = None) -> Int64:
        """Return the places of samples whose payload comes over a network and is kept; ``values`` are their references."""
        far = [
            where
            for stream, where in split(places)
            if _is_far(payloads[stream], places.rows[where], None if values is None else values.take(pa.array(where)))
        ]
        return np.sort(np.concatenate([np.empty(0, dtype=np.int64), *far]))


def _is_far(payload: Payload, rows: UInt64, values: pa.Array | None) -> bool:
    relation, kind = payload.relation, payload.relation.schema.field(payload.column).type
    inner = kind.value_type if is_list(kind) else kind
    if pa.types.is_binary(inner) or pa.types.is_large_binary(inner):
        return values is None and relation.remote and relation.node_cached  # else the column was read already
    if values is None and relation.remote:
        return True
    if values is None:
        values = relation.fetch(payload.ordinals(rows), [payload.column])[payload.column]
    return names_objects(values, relation.base)


def _array(column: Any) -> pa.Array:
    if isinstance(column, Ragged):
        return column.arrow()
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return whole.chunk(0) if isinstance(whole, pa.ChunkedArray) else whole


def _cut(places: StreamRows, rows: int) -> Iterator[StreamRows]:
    for start, stop in chunks(len(places), rows):
        yield places.take(np.arange(start, stop))


def _fetch_lists(field: ImageListField, places: StreamRows) -> None:
    field.find(places).fetch()


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
        reader, numbering = opening.read(bound.run_seed)
        batches, stages = numbering.ahead, opening.stages
        if batches is None:
            return
        start = start.enter(bound.world_size, bound.merge)
        then = Steps(batches, position.drawn(start.epoch), start, bound.turn)
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
                for fetch in payload.fetches(steps.epoch, steps.numbering.draw(steps.epoch, number).samples):
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
