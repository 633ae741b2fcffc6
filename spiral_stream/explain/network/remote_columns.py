"""Which bytes on a store the fields of a stream read: for each row of a relation, the ranges and objects that it names.

References are read whole, as small columns are: 1 us per row, and 5 us per object that rows name. No payload is read.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.cache.store.store import CacheStore
from spiral_stream.catalog.relation.reader import OpenRelation
from spiral_stream.errors import SpiralError
from spiral_stream.explain.subject import Subject
from spiral_stream.planner.columns.payload import Payload
from spiral_stream.runtime.fields.draft import TASK_ROWS
from spiral_stream.runtime.fields.images import stored_rows
from spiral_stream.sampling.order import UInt64
from spiral_stream.semantic import file_names, is_list, is_media
from spiral_stream.sources.pins import Pins
from spiral_stream.sources.references.objects import names_objects
from spiral_stream.sources.references.policy import Reach
from spiral_stream.sources.references.resolve import byte_ranges, flattened, uris_of
from spiral_stream.sources.source import ROW

MOST_ROWS: Final = 1 << 22  # of a relation whose references are read
ALL_BYTES: Final = -1  # length of a reference that names an object

Int64 = NDArray[np.int64]
# N rows of the relation, R references of them, U objects


@final
@dataclass(frozen=True, slots=True, eq=False)
class RemoteColumn:
    """What the rows of one relation name."""

    payload: Payload
    borders: Int64  # [N + 1] where the references of each row begin
    objects: Int64  # [R] which object; -1 for a file of this machine
    starts: Int64  # [R]
    lengths: Int64  # [R] WHOLE: all of the object
    uris: list[str]  # [U]
    sizes: Int64  # [U] bytes, 0 where nobody knows
    cached: NDArray[np.bool_]  # [N] rows that a cache holds, whose payload is not read

    def references(self, rows: UInt64) -> tuple[Int64, Int64]:
        """Return which references some surviving rows of the stream read, and the place of each one's row in ``rows``."""
        ordinals = self.payload.ordinals(rows).astype(np.int64)
        counts = np.where(self.cached[ordinals], 0, self.borders[ordinals + 1] - self.borders[ordinals])
        owners = np.repeat(np.arange(len(rows)), counts)
        within = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
        found = self.borders[ordinals][owners] + within
        there = self.objects[found] >= 0
        return found[there], owners[there]


@final
@dataclass(frozen=True, slots=True, eq=False)
class RemoteField:
    """One field whose payload is on a store, and how many rows a task fetches."""

    name: str
    column: str
    piece_rows: int
    streams: dict[int, RemoteColumn]


@final
@dataclass(slots=True, eq=False)
class Remote:
    """All that a stream reads over a network."""

    fields: list[RemoteField]
    tables: list[str]  # relations that lie on a store
    unknown: list[str]  # what is read, and cannot be counted


def remote(subject: Subject, piece_rows: int | None) -> Remote:
    """Find what a stream reads over a network.

    Args:
        subject: what is explained.
        piece_rows: rows that a task fetches; None takes the default.
    """
    streams = subject.stages.streams
    relations = [stream.base for stream in streams]
    found = Remote([], [], [])
    loaded: dict[tuple[str, str, str], RemoteColumn | None] = {}
    for name, column, rows, payloads, stores in _fields(subject, piece_rows or TASK_ROWS):
        relations += [payload.relation for payload in payloads]
        each: dict[int, RemoteColumn] = {}
        for k, payload in enumerate(payloads):
            store = stores[k] if stores else None
            key = payload.relation.entry.name, payload.column, "" if store is None else str(store.folder)
            if key not in loaded:
                loaded[key] = _column(payload, store, name, found)
            if (one := loaded[key]) is not None:
                each[k] = one if one.payload is payload else _of(one, payload)
        if each:
            found.fields.append(RemoteField(name, column, rows, each))
    found.tables = sorted({relation.entry.name for relation in relations if relation.remote})
    return found


Fields = Iterator[tuple[str, str, int, tuple[Payload, ...], tuple[CacheStore, ...]]]


def _fields(subject: Subject, rows: int) -> Fields:
    """Name, column, rows of a task, payload per stream, caches per stream."""
    for stage in subject.stages.fields:
        if piece := stage.task_rows(rows):
            yield stage.name, stage.column, piece, stage.payloads, tuple(each.store for each in stage.caches)


def _of(known: RemoteColumn, payload: Payload) -> RemoteColumn:
    """The same column, read by another stream."""
    facts = known.borders, known.objects, known.starts, known.lengths, known.uris, known.sizes, known.cached
    return RemoteColumn(payload, *facts)


def _column(payload: Payload, store: CacheStore | None, name: str, found: Remote) -> RemoteColumn | None:
    """Read the references of a relation; None if they name nothing on a store, or cannot be read."""
    relation, column = payload.relation, payload.column
    total = relation.manifest.total
    kind = relation.schema.field(column).type
    inner = kind.value_type if is_list(kind) else kind
    if pa.types.is_binary(inner) or pa.types.is_large_binary(inner):
        if relation.remote:
            found.unknown.append(
                f"{name}: {column} lies in the table {relation.entry.name}, and its reader decides what is asked"
            )
        return None
    try:
        some = np.unique(np.linspace(0, max(0, total - 1), min(16, total)).astype(np.uint64))
        if not names_objects(relation.fetch(some, [column])[column], relation.base):
            return None
        if total > MOST_ROWS:
            found.unknown.append(
                f"{name}: {relation.entry.name} has {total:,} rows, and references of {MOST_ROWS:,} are read at most"
            )
            return None
        return _read(payload, _cached_rows(relation, store))
    except SpiralError as error:  # the run will stop there, and say so
        found.unknown.append(f"{name}: {error}")
        return None


def _cached_rows(relation: OpenRelation, store: CacheStore | None) -> NDArray[np.bool_]:
    cached = np.zeros(relation.manifest.total, dtype=np.bool_)
    cache = None if store is None else store.open()
    for indices, _, _ in stored_rows(relation, cache, np.arange(len(cached), dtype=np.uint64)):
        cached[indices] = True
    return cached


def _read(payload: Payload, cached: NDArray[np.bool_]) -> RemoteColumn:
    relation, column = payload.relation, payload.column
    table = pa.Table.from_batches(list(relation.scan([column])))
    values, rows = table[column].combine_chunks(), table[ROW].to_numpy().astype(np.int64)
    if is_list(values.type):
        values, owners = flattened(values)
        rows = rows[owners]
    if is_media(values.type):
        values = file_names(values)
    there = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
    there = there[np.argsort(rows[there], kind="stable")]
    values, rows = values.take(pa.array(there)), rows[there]
    codes, texts, starts, lengths = _parts(values)
    objects, uris, sizes = _objects(texts, relation.base)
    borders = np.searchsorted(rows, np.arange(len(cached) + 1)).astype(np.int64)
    return RemoteColumn(payload, borders, objects[codes], starts, lengths, uris, sizes, cached)


def _parts(values: pa.Array) -> tuple[NDArray[np.int32], list[str], Int64, Int64]:
    """Which text each reference has, the texts, and the ranges."""
    if pa.types.is_struct(values.type):
        named = byte_ranges(values)
        return named.files, named.uris, named.starts, named.lengths
    encoded = values.dictionary_encode()
    codes: NDArray[np.int32] = encoded.indices.to_numpy(zero_copy_only=False)
    lengths = np.full(len(values), ALL_BYTES, dtype=np.int64)
    return codes, uris_of(encoded.dictionary), np.zeros(len(values), dtype=np.int64), lengths


def _objects(texts: list[str], reach: Reach) -> tuple[Int64, list[str], Int64]:
    """Which object each text names, their URIs, and how many bytes they had when they were registered."""
    uris: dict[str, int] = {}
    sizes: list[int] = []
    codes = np.full(len(texts), -1, dtype=np.int64)
    for at, text in enumerate(texts):
        named = reach.object_of(text, 0)
        if named is None:
            continue
        if named not in uris:
            uris[named] = len(uris)
            sizes.append((reach.pins.size(text) or 0) if isinstance(reach.pins, Pins) else 0)
        codes[at] = uris[named]
    return codes, list(uris), np.array(sizes, dtype=np.int64)
