"""What is known of each storage shard without reading payload: counts, ranges, histograms.

One scan over the narrow columns, in physical order. Rows wait until their shard
is complete, are then grouped by shard, and go; so memory is that of the largest
shards' narrow columns. All counts are integers, which do not depend on threads.
A mark says how far to trust a row: ``known`` (counted), ``estimated`` (the rest of
the shard's bytes, for the one column that was not read), ``unknown``.
"""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spiral_stream.catalog.database import trying
from spiral_stream.catalog.entry import Entry
from spiral_stream.catalog.manifest import UNKNOWN_BYTES, Manifest
from spiral_stream.catalog.opened import OpenRelation
from spiral_stream.catalog.suggestions import suggestions
from spiral_stream.errors import CatalogError, cut
from spiral_stream.semantic import semantic_of
from spiral_stream.sources.source import ROW, content_key

KNOWN: Final = "known"
ESTIMATED: Final = "estimated"
UNKNOWN: Final = "unknown"

HISTOGRAM_VALUES: Final = 10_000  # a column with more distinct values has no histogram: it is no label or source
DISTINCT_ROWS: Final = 4_000_000  # shards up to this size have exact distinct counts, larger ones none
_FLUSH_ROWS: Final = 1 << 20  # rows that wait before complete shards are looked for
_SHARD: Final = "__shard"
_MARKS: Final = b"spiral:marks"
_DIGEST: Final = b"spiral:digest"

SHARDS: Final = pa.schema(
    [
        ("shard", pa.utf8()),
        ("column", pa.utf8()),
        ("mark", pa.utf8()),
        ("rows", pa.int64()),
        ("nulls", pa.int64()),
        ("nans", pa.int64()),
        ("distinct", pa.int64()),
        ("bytes", pa.int64()),  # of the values, without offsets and validity
        ("min", pa.utf8()),  # as text; NaN and null do not count
        ("max", pa.utf8()),
    ]
)
HISTOGRAMS: Final = pa.schema(
    [("shard", pa.utf8()), ("column", pa.utf8()), ("value", pa.utf8()), ("count", pa.int64())]
)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Statistics:
    """Facts of one relation at one data version."""

    shards: pa.Table  # schema SHARDS: one row per shard and column
    histograms: pa.Table  # schema HISTOGRAMS: rows of each value in each shard
    marks: dict[str, str]  # column -> whether its histogram is known; columns not asked are not named


def shard_statistics(relation: OpenRelation, columns: Sequence[str] | None = None) -> pa.Table:
    """`measure(...).shards`, for who needs no histograms."""
    return measure(relation, columns).shards


def measure(relation: OpenRelation, columns: Sequence[str] | None = None) -> Statistics:
    """Count everything in one scan.

    Args:
        relation: an open relation.
        columns: which to measure; by default all that hold no payload (semantic
            references, binary and nested columns do).

    Raises:
        CatalogError: a column is unknown or cannot be measured.
        SourceError: the relation cannot be read.
    """
    able = [name for name in _measurable(relation.schema) if name not in relation.synthesised]
    for column in columns or ():
        if column not in able:
            msg = f"statistics of {relation.entry.name}: {column!r} cannot be measured; {suggestions(column, able)}"
            raise CatalogError(msg)
    chosen = list(able if columns is None else columns)
    counted = _GroupFacts(relation, chosen)
    for table in _complete_shards(relation, chosen):
        counted.add(table)
    return counted.statistics()


def save_statistics(entry: Entry, statistics: Statistics) -> None:
    """Keep statistics in the catalog, under the relation and its data version."""
    path = _path(entry)
    marked = statistics.shards.replace_schema_metadata({_MARKS: json.dumps(statistics.marks, sort_keys=True).encode()})
    with trying(entry.root, f"keep statistics of {entry.name}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path.with_suffix(".histograms"), statistics.histograms)
        _write(path, marked)  # last: its presence says that both are there


def load_statistics(entry: Entry) -> Statistics | None:
    """Return the kept statistics of this data version, or None.

    Raises:
        CatalogError: they are damaged; says how to count again.
    """
    path = _path(entry)
    if not path.exists():
        return None
    try:
        shards, histograms = _read(path), _read(path.with_suffix(".histograms"))
        marks: dict[str, str] = json.loads(shards.schema.metadata[_MARKS])
        if not (shards.schema.equals(SHARDS) and histograms.schema.equals(HISTOGRAMS) and isinstance(marks, dict)):
            msg = "its columns are not those of statistics"
            raise ValueError(msg)  # noqa: TRY301  one reaction to all that is wrong with them
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        msg = f'statistics of {entry.name}: {path}: {cut(reason)}. Count again with catalog.measure("{entry.name}")'
        raise CatalogError(msg) from error
    return Statistics(shards.replace_schema_metadata(None), histograms.replace_schema_metadata(None), marks)


def may_hold_nan(entry: Entry, column: str) -> bool:
    """Whether a column of floats holds NaN by its statistics; True if there are none."""
    with suppress(CatalogError):
        found = load_statistics(entry)
        if found is not None:
            counted = found.shards.filter(pc.equal(found.shards.column("column"), column)).column("nans")
            return counted.null_count > 0 or not len(counted) or pc.sum(counted).as_py() > 0
    return True


class _GroupFacts:
    """Grouped facts, collected over complete shards."""

    def __init__(self, relation: OpenRelation, columns: Sequence[str]) -> None:
        self._manifest = relation.manifest
        self._columns = list(columns)
        self._unread = [name for name in relation.schema.names if name not in {*self._columns, *relation.synthesised}]
        identity = relation.entry.identity
        fields = [relation.schema.field(name) for name in columns]
        candidates = [field.name for field in fields if field.name not in identity and _is_discrete(field.type)]
        self._marks = dict.fromkeys(candidates, KNOWN)
        self._facts: list[pa.Table] = []
        self._histograms: dict[str, list[pa.Table]] = {name: [] for name in candidates}

    def add(self, table: pa.Table) -> None:
        """Count the rows of whole shards; column ``__shard`` says which."""
        for column in self._columns:
            self._facts.append(self._grouped(table.select([_SHARD, column]), column))
            if self._marks.get(column) == KNOWN:
                self._count_values(table, column)

    def statistics(self) -> Statistics:
        shards = pa.concat_tables([SHARDS.empty_table(), *self._facts, *self._not_read()])
        named = [table for column, tables in self._histograms.items() for table in tables]
        histograms = pa.concat_tables([HISTOGRAMS.empty_table(), *named])
        return Statistics(
            shards.sort_by([("shard", "ascending"), ("column", "ascending")]),
            histograms.sort_by([("column", "ascending"), ("shard", "ascending"), ("value", "ascending")]),
            dict(self._marks),
        )

    def _grouped(self, table: pa.Table, column: str) -> pa.Table:
        values = table.column(column)
        is_float = pa.types.is_floating(values.type)
        nans = pc.fill_null(pc.is_nan(values), fill_value=False) if is_float else pa.array(np.zeros(len(table), bool))
        wide = _has_length(values.type)
        lengths = pc.fill_null(pc.binary_length(values), 0) if wide else pa.array(np.zeros(len(table), np.int32))
        named = pa.table({"s": table.column(_SHARD), "v": values, "nan": nans, "n": lengths})
        functions: list[tuple[str, str]] = [("v", "min"), ("v", "max"), ("v", "count"), ("nan", "sum"), ("n", "sum")]
        exact = int(self._manifest.shard_rows[pc.unique(table.column(_SHARD)).to_numpy()].max()) <= DISTINCT_ROWS
        if exact:
            functions.append(("v", "count_distinct"))
        grouped = named.group_by("s", use_threads=False).aggregate(functions)
        ids = grouped.column("s").to_numpy()
        rows = self._manifest.shard_rows[ids].astype(np.int64)
        present = grouped.column("v_count").to_numpy()
        nan_count = grouped.column("nan_sum").cast(pa.int64()).to_numpy()
        sizes = grouped.column("n_sum").to_numpy().astype(np.int64) if wide else present * values.type.bit_width // 8
        none = pa.array(present == nan_count)  # Arrow's extremes of NaN alone are no value
        return pa.table(
            {
                "shard": self._manifest.shard_names.take(pa.array(ids)),
                "column": pa.repeat(column, len(ids)),
                "mark": pa.repeat(KNOWN, len(ids)),
                "rows": rows,
                "nulls": rows - present,
                "nans": nan_count,
                "distinct": grouped.column("v_count_distinct") if exact else pa.nulls(len(ids), pa.int64()),
                "bytes": sizes,
                "min": pc.if_else(none, None, grouped.column("v_min").cast(pa.utf8())),
                "max": pc.if_else(none, None, grouped.column("v_max").cast(pa.utf8())),
            },
            schema=SHARDS,
        )

    def _count_values(self, table: pa.Table, column: str) -> None:
        counted = table.group_by([_SHARD, column], use_threads=False).aggregate([([], "count_all")])
        values = counted.column(column).cast(pa.utf8())
        found = pa.table(
            {
                "shard": self._manifest.shard_names.take(counted.column(_SHARD)),
                "column": pa.repeat(column, len(counted)),
                "value": values,
                "count": counted.column("count_all"),
            },
            schema=HISTOGRAMS,
        )
        kept = self._histograms[column]
        kept.append(found)
        if (
            pc.count_distinct(pa.chunked_array([c for t in kept for c in t.column("value").chunks])).as_py()
            > HISTOGRAM_VALUES
        ):
            kept.clear()
            self._marks[column] = UNKNOWN

    def _not_read(self) -> Iterator[pa.Table]:
        """Rows for the columns that were left out; a single one has the rest of the bytes."""
        manifest = self._manifest
        count = len(manifest.shard_names)
        sizes = manifest.shard_bytes.astype(np.int64)
        for facts in self._facts:
            places = pc.index_in(facts.column("shard"), manifest.shard_names).to_numpy()
            np.subtract.at(sizes, places, facts.column("bytes").to_numpy())
        # Encoded narrow columns can be smaller than their values; then the rest says nothing.
        known = (manifest.shard_bytes != UNKNOWN_BYTES) & (sizes > 0) & (len(self._unread) == 1)
        for column in self._unread:
            nothing = pa.nulls(count, pa.int64())
            yield pa.table(
                {
                    "shard": manifest.shard_names,
                    "column": pa.repeat(column, count),
                    "mark": pa.array(np.where(known, ESTIMATED, UNKNOWN).tolist(), pa.utf8()),
                    "rows": manifest.shard_rows.astype(np.int64),
                    "nulls": nothing,
                    "nans": nothing,
                    "distinct": nothing,
                    "bytes": pa.array(sizes, mask=~known),
                    "min": pa.nulls(count, pa.utf8()),
                    "max": pa.nulls(count, pa.utf8()),
                },
                schema=SHARDS,
            )


def _complete_shards(relation: OpenRelation, columns: Sequence[str]) -> Iterator[pa.Table]:
    """Tables that hold all rows of the shards they hold any of."""
    manifest: Manifest = relation.manifest
    missing = manifest.shard_rows.astype(np.int64)
    waiting: list[pa.Table] = []
    count = 0
    for batch in relation.scan(columns):
        shards = manifest.shard_of(batch.column(ROW).to_numpy())
        np.subtract.at(missing, shards, 1)
        arrays = {name: _dense(batch.column(name)) for name in columns}
        waiting.append(pa.table({_SHARD: pa.array(shards), **arrays}))
        count += len(shards)
        if count >= _FLUSH_ROWS:
            table = pa.concat_tables(waiting)
            done = missing[table.column(_SHARD).to_numpy()] == 0
            if done.any():
                yield table.filter(pa.array(done))
                table = table.filter(pa.array(~done))
            waiting, count = [table], 0
    if waiting and sum(len(table) for table in waiting):
        yield pa.concat_tables(waiting)


def _measurable(schema: pa.Schema) -> list[str]:
    """The columns of text, numbers and moments that Arrow can group; what else there is holds payload."""

    def is_narrow(field: pa.Field) -> bool:
        kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        number = _is_discrete(kind) or pa.types.is_decimal(kind) or kind in (pa.float32(), pa.float64())
        moment = pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_time(kind)
        return bool(number or moment) and semantic_of(field) is None

    return [field.name for field in schema if is_narrow(field)]


def _is_discrete(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_integer(kind) or pa.types.is_boolean(kind) or _has_length(kind))


def _has_length(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _dense(array: pa.Array) -> pa.Array:
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def _path(entry: Entry) -> Path:
    return entry.root / "statistics" / entry.name / f"{entry.data_version}.arrow"


def _read(path: Path) -> pa.Table:
    """A table as it was written; one from before there were digests as it is."""
    table = pa.ipc.open_file(pa.py_buffer(path.read_bytes())).read_all()
    table.validate(full=True)
    sealed = (table.schema.metadata or {}).get(_DIGEST)
    if sealed is not None and sealed != _digest(table):
        msg = "its values are not those that were written"
        raise ValueError(msg)
    return table


def _digest(table: pa.Table) -> bytes:
    """The digest of marks and values, however they are chunked."""
    marks = (table.schema.metadata or {}).get(_MARKS, b"")
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema.remove_metadata()) as writer:
        writer.write_table(table.replace_schema_metadata(None).combine_chunks())
    return content_key(marks, sink.getvalue().to_pybytes()).encode()


def _write(path: Path, table: pa.Table) -> None:
    table = table.replace_schema_metadata({**(table.schema.metadata or {}), _DIGEST: _digest(table)})
    draft = path.with_name(f".{os.getpid()}-{path.name}")
    with pa.OSFile(str(draft), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    draft.replace(path)
