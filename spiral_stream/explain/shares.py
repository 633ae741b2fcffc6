"""Which values dominate the rows of a plan, whether that changes over ingest time, and how the order handles it.

This room inspects joined or delivered integer columns, and text columns whose statistics include a histogram (such as
``source`` and ``creator_id``). It reads up to 65,536 surviving rows: all of them, or 32 runs spaced evenly over storage.
For each value of a column, the first and the last tenth of the rows by ingest time are compared with the whole. So are
the first and the last tenth of the epoch's order: if the order ignores ingest time, they differ no more than a random
tenth does. A column with one value, or with more values than half the number of rows, says nothing and is left out.
Cost: 10 to 50 ms, and reading the columns.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spiral_stream.catalog.relation.entry import STORAGE_SHARD
from spiral_stream.catalog.relation.reader import OpenRelation
from spiral_stream.catalog.statistics.drift import Concentration, Drift, concentration, drift, tenths
from spiral_stream.catalog.statistics.measure import KNOWN, Statistics, load_statistics
from spiral_stream.catalog.statistics.skew import Skew, distances
from spiral_stream.explain.figure import FigureSource, marked
from spiral_stream.explain.subject import Subject
from spiral_stream.expr import kind_of
from spiral_stream.plan import combining, nodes
from spiral_stream.plan.tree import need, walk
from spiral_stream.planner.columns.streams import StreamStage
from spiral_stream.sampling.order import UInt64
from spiral_stream.semantic import semantic_of

MOST_ROWS: Final = 1 << 16  # surviving rows that are read at most
_RUNS: Final = 32  # runs that are read if there are more rows
_COLUMNS: Final = 16  # columns shown at most
_LEAST_ROWS: Final = 20  # with fewer rows, tenths say nothing
_TIMES: Final = (
    "ingest",
    "upload",
    "created",
    "crawl",
    "publish",
    "date",
    "ts",
    "time",
)  # words in the name of an ingest time, the most telling first

Int64 = NDArray[np.int64]
# N rows that are read


@final
@dataclass(frozen=True, slots=True)
class Shares:
    """The values of one column, over the rows read."""

    column: str
    largest: str  # the most frequent value
    spread: Concentration
    by_time: Drift | None  # None if no column says when rows came in
    in_order: float | None  # total variation of the tenths of the order; None if there are too few rows
    skew: Skew | None  # by storage shard; None if not all rows were read


@final
@dataclass(frozen=True, slots=True)
class Looked:
    """The columns of one stream, over the rows read."""

    rows: int
    is_complete: bool  # whether all surviving rows were read
    time: str | None  # the column of ingest time
    columns: list[Shares]
    constant: frozenset[str]  # columns with one value left, by a filter or by chance

    @property
    def source(self) -> FigureSource:
        """Of the figures of these rows."""
        name = "all rows kept" if self.is_complete else f"{self.rows:,} of the rows kept"
        return FigureSource(name, marked(self.is_complete))


@final
@dataclass(frozen=True, slots=True, eq=False)
class Holder:
    """A relation that stores rows of a stream."""

    relation: OpenRelation
    ordinals: Callable[[UInt64], UInt64]  # [P] surviving rows -> [P] rows of the relation
    statistics: Statistics


def holders(subject: Subject, k: int) -> list[Holder]:
    """Return the relations with statistics that store a stream's rows: the one that owns them, and those with payload."""
    stream = subject.stages.streams[k]
    found = {stream.base.entry.name: (stream.base, stream.selected.columns.ordinals)}
    for payload in [stage.payloads[k] for stage in subject.stages.fields if stage.DECODES]:
        found.setdefault(payload.relation.entry.name, (payload.relation, payload.ordinals))
    known = [(relation, ordinals, load_statistics(relation.entry)) for relation, ordinals in found.values()]
    return [
        Holder(relation, ordinals, statistics) for relation, ordinals, statistics in known if statistics is not None
    ]


def look_at(subject: Subject, stream: StreamStage, held: list[Holder], most: int = MOST_ROWS) -> Looked:
    """Read the narrow columns of up to ``most`` surviving rows of one stream."""
    rows, is_complete = spaced(stream.selected.total, most)
    columns: dict[str, pa.ChunkedArray] = {}
    time, axis = None, None
    for each in held:
        texts, moment = text_columns(each), time_column(each.relation.schema)
        named = [*texts, *([moment] if moment is not None and time is None else [])]
        table = each.relation.fetch(each.ordinals(rows), named) if named else pa.table({})
        columns |= {name: table[name] for name in texts if name not in columns}
        if time is None and moment is not None:
            time, axis = moment, _moments(table[moment])
    seen = _delivered(subject, stream)
    if seen:
        fetched = stream.selected.columns.fetch(rows, seen)
        columns |= {name: fetched[name] for name in seen}
    arranged = subject.stages.order.arrange(stream.population, 0 if subject.stages.mixed else subject.bound.epoch)
    has_positions = len(rows) >= _LEAST_ROWS and not subject.stages.order.repeats_rows
    positions = arranged.positions(rows).astype(np.int64) if has_positions else None
    shards = stream.base.manifest.shard_of(stream.selected.columns.ordinals(rows)) if is_complete else None
    found = [_shares(stream, name, column, axis, positions, shards) for name, column in columns.items()]
    few = [each for each in found if each is not None and 1 < each.spread.values <= each.spread.rows // 2]
    constant = frozenset(each.column for each in found if each is not None and each.spread.values == 1)
    return Looked(len(rows), is_complete, time, few[:_COLUMNS], constant)


def spaced(total: int, most: int) -> tuple[UInt64, bool]:
    """Return up to ``most`` of ``total`` rows, ascending, in evenly spaced runs; and whether those are all."""
    if total <= most:
        return np.arange(total, dtype=np.uint64), True
    length = max(1, most // _RUNS)
    starts = np.linspace(0, total - length, most // length).astype(np.uint64)
    rows: UInt64 = np.unique(np.add.outer(starts, np.arange(length, dtype=np.uint64)))
    return rows, False


def text_columns(held: Holder) -> list[str]:
    """Return the relation's text columns that have a histogram, such as sources, creators and languages."""
    hidden = {STORAGE_SHARD, *held.relation.entry.identity}
    known = {name for name, mark in held.statistics.marks.items() if mark == KNOWN and name not in hidden}
    return [field.name for field in held.relation.schema if field.name in known and _is_text(field)]


def _is_text(field: pa.Field) -> bool:
    kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    return kind_of(kind) == "text" and semantic_of(field) is None


def joined_or_delivered(subject: Subject, stream: StreamStage) -> list[str]:
    """Return the columns that are joined on, and those that fields are made of."""
    names = [name for node in walk(stream.node) if isinstance(node, combining.Join) for name in node.left_on]
    return list(
        dict.fromkeys(
            [*names, *(name for _, field in need(subject.stages.plan, nodes.Collate).fields for name in field.columns)]
        )
    )


def _delivered(subject: Subject, stream: StreamStage) -> list[str]:
    """Those of `joined_or_delivered` that are integers, such as a label."""
    schema = stream.selected.columns.schema
    names = [name for name in joined_or_delivered(subject, stream) if name in schema.names]
    hidden = {*subject.stages.identity, *subject.payload}
    return [name for name in names if name not in hidden and kind_of(schema.field(name).type) in ("int", "bool")]


def time_column(schema: pa.Schema) -> str | None:
    """The column that most likely says when a row came in; among several times, the name decides."""
    moments = [field.name for field in schema if kind_of(field.type) in ("time", "date")]
    rank = {name: next((i for i, word in enumerate(_TIMES) if word in name.lower()), len(_TIMES)) for name in moments}
    return min(moments, key=lambda name: rank[name], default=None)


def _moments(column: pa.ChunkedArray) -> pa.Array:
    """Times as integers; null stays null."""
    kind = pa.int32() if pa.types.is_date32(column.type) else pa.int64()
    return column.combine_chunks().cast(kind)


def _shares(
    stream: StreamStage,
    name: str,
    column: pa.ChunkedArray,
    axis: pa.Array | None,
    positions: Int64 | None,
    shards: NDArray[np.intp] | None,
) -> Shares | None:
    flat = column.combine_chunks()
    encoded = (flat.dictionary_decode() if pa.types.is_dictionary(flat.type) else flat).dictionary_encode("encode")
    codes = encoded.indices.to_numpy().astype(np.int64)
    if not len(codes):
        return None
    spread = concentration(codes)
    by_time = None
    if axis is not None:
        dated = axis.is_valid().to_numpy(zero_copy_only=False)
        if np.count_nonzero(dated) >= _LEAST_ROWS:
            by_time = drift(np.unique(codes[dated], return_inverse=True)[1], pc.drop_null(axis).to_numpy())
    in_order = None if positions is None else tenths(codes, positions)
    largest = encoded.dictionary[spread.largest].as_py()
    skew = None if shards is None else _by_shard(stream, codes, shards)
    return Shares(name, "null" if largest is None else str(largest), spread, by_time, in_order, skew)


def _by_shard(stream: StreamStage, codes: Int64, shards: NDArray[np.intp]) -> Skew:
    present, dense = np.unique(shards, return_inverse=True)
    pairs, counts = np.unique(np.stack([dense, codes]), axis=1, return_counts=True)
    distance, effective, overall = distances(pairs[0], pairs[1], counts)
    names = tuple(stream.base.manifest.shard_names.take(pa.array(present)).to_pylist())
    return Skew(names, distance, effective, float(distance.mean()), float(np.quantile(distance, 0.95)), overall)
