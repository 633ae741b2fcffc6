"""What is known of each storage shard and of the whole without reading payload: counts, ranges, values, quantiles.

Facts of a column are pieces by storage shard (`derived.column_facts`), so a shard that did not change is never read
again, and what is said of the relation is merged from them (`catalog.merging`). Counts are exact. A mark says how far to
trust a row: ``known`` (counted), ``estimated`` (from sketches, or the rest of the shard's bytes for the one column that
was not read), ``unknown``.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from spiral_stream.catalog.database import trying
from spiral_stream.catalog.entry import Entry
from spiral_stream.catalog.manifest import UNKNOWN_BYTES
from spiral_stream.catalog.measuring import writable_place
from spiral_stream.catalog.merging import (
    COLUMNS,
    ESTIMATED,
    HISTOGRAMS,
    KNOWN,
    SHARDS,
    UNKNOWN,
    Merged,
    Statistics,
    merged,
)
from spiral_stream.catalog.opened import OpenRelation
from spiral_stream.catalog.suggestions import suggestions
from spiral_stream.derived.build import build, load
from spiral_stream.derived.column_facts import ColumnFacts
from spiral_stream.derived.executors import builders_in_force
from spiral_stream.derived.pieces import Pieces
from spiral_stream.derived.roster import RosterFile, keys_of
from spiral_stream.errors import CatalogError, DamageError, cut
from spiral_stream.semantic import semantic_of

__all__ = ["ESTIMATED", "HISTOGRAMS", "KNOWN", "SHARDS", "UNKNOWN", "Statistics"]

HISTOGRAM_VALUES: Final = 10_000  # a column with more distinct values has no histogram: it is no label or source
_LOOKED_AT: Final = 1 << 15  # rows, to tell whether a column has more
_RUNS: Final = 8  # of neighbours, that those lie in
_ATTEMPTS: Final = 8  # to make what is damaged again
_MARKS: Final = b"spiral:marks"
_DIGEST: Final = b"spiral:digest"


def shard_statistics(relation: OpenRelation, columns: Sequence[str] | None = None) -> pa.Table:
    """`measure(...).shards`, for who needs no histograms."""
    return measure(relation, columns).shards


def measure(relation: OpenRelation, columns: Sequence[str] | None = None) -> Statistics:
    """Count what is not counted yet, in one scan of the shards that are new, and merge.

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
    kinds = {name: _plain(relation.schema.field(name).type) for name in chosen}
    candidates = [name for name in chosen if name not in relation.entry.identity and _is_discrete(kinds[name])]
    with _place(relation.entry.root) as root:
        most = _most(relation, {name: kinds[name] for name in candidates}, root)
        facts = [ColumnFacts(name, kind, most.get(name, 0)) for name, kind in kinds.items()]
        counted = list(zip(facts, _pieces(relation, facts, root), strict=True))
        identity = relation.entry.identity
        unique = identity if len(identity) == 1 and relation.entry.identity_unique else ()
        found = merged(relation.manifest, counted, candidates, HISTOGRAM_VALUES, unique)
    return _with_unread(relation, chosen, found)


def _most(relation: OpenRelation, kinds: Mapping[str, pa.DataType], root: Path) -> dict[str, int]:
    """How many values of each column are kept with all their counts: none of those that have many."""
    found = {name: _decided(relation, name, kind, root) for name, kind in kinds.items()}
    many = _with_many(relation, [name for name, most in found.items() if most is None])
    return {name: most if most is not None else 0 if name in many else HISTOGRAM_VALUES for name, most in found.items()}


def _decided(relation: OpenRelation, name: str, kind: pa.DataType, root: Path) -> int | None:
    """How many values are kept of most shards already; None if that is not decided."""
    keys = keys_of(relation.manifest.row_keys)
    for most in (HISTOGRAM_VALUES, 0):
        file = RosterFile(root, ColumnFacts(name, kind, most))
        if file.path.exists() and (load(file).find(keys) >= 0).sum() * 2 > len(keys):
            return most
    return None


def _with_many(relation: OpenRelation, names: Sequence[str]) -> set[str]:
    """Those columns that have too many values for a histogram in a few rows already."""
    total = relation.manifest.total
    if not names or total <= _LOOKED_AT * 4:
        return set()
    begins = np.linspace(0, total - _LOOKED_AT // _RUNS, _RUNS).astype(np.uint64)
    rows = (begins[:, None] + np.arange(_LOOKED_AT // _RUNS, dtype=np.uint64)).ravel().astype(np.uint64)
    table = relation.fetch(rows, names)
    return {name for name in names if len(pc.unique(table.column(name))) > HISTOGRAM_VALUES}


def _pieces(relation: OpenRelation, facts: Sequence[ColumnFacts], root: Path) -> list[Pieces]:
    """The pieces of all columns; a damaged part is made again."""
    if not facts:
        return []
    rows = relation.by_shard()
    keys = keys_of(rows.manifest.content_keys)
    for left in reversed(range(_ATTEMPTS)):
        rosters = build(rows, facts, root, builders_in_force)
        found = [Pieces(RosterFile(root, each), roster, keys) for each, roster in zip(facts, rosters, strict=True)]
        try:
            for each in found:
                each.map_all()
        except DamageError:  # the part is out of the roster now
            if not left:
                raise
        else:
            break
    return found


def _with_unread(relation: OpenRelation, chosen: Sequence[str], found: Merged) -> Statistics:
    """Add the columns that were not read; a single one has the rest of the bytes."""
    unread = [name for name in relation.schema.names if name not in {*chosen, *relation.synthesised}]
    manifest = relation.manifest
    count = len(manifest.shard_names)
    sizes = manifest.shard_bytes.astype(np.int64) - found.bytes
    # Encoded narrow columns can be smaller than their values; then the rest says nothing.
    known = (manifest.shard_bytes != UNKNOWN_BYTES) & (sizes > 0) & (len(unread) == 1)
    rows = manifest.shard_rows.astype(np.int64)
    marks = pa.array(np.where(known, ESTIMATED, UNKNOWN).tolist(), pa.utf8())
    facts = {"shard": manifest.shard_names, "mark": marks, "rows": rows, "bytes": pa.array(sizes, mask=~known)}
    tables = [_filled({**facts, "column": pa.repeat(name, count)}, SHARDS, count) for name in unread]
    wholes = [_filled({"column": [name], "mark": [UNKNOWN], "rows": [manifest.total]}, COLUMNS, 1) for name in unread]
    shards = pa.concat_tables([*found.shards, *tables]) if unread or found.shards else SHARDS.empty_table()
    return Statistics(
        shards.sort_by([("shard", "ascending"), ("column", "ascending")]),
        found.histograms,
        found.marks,
        pa.concat_tables([found.columns, *wholes]).sort_by("column"),
    )


def _filled(facts: dict[str, object], schema: pa.Schema, count: int) -> pa.Table:
    """A table with nulls where nothing is known."""
    return pa.table([facts.get(field.name, pa.nulls(count, field.type)) for field in schema], schema=schema)


@contextmanager
def _place(root: Path) -> Iterator[Path]:
    """Where facts are kept; where nothing can be written, that is for this call only."""
    place = writable_place(root)
    if place is not None:
        yield place
        return
    with TemporaryDirectory(prefix="spiral-") as folder:
        yield Path(folder)


def save_statistics(entry: Entry, statistics: Statistics) -> None:
    """Keep statistics in the catalog, under the relation and its data version."""
    path = _path(entry)
    marked = statistics.shards.replace_schema_metadata({_MARKS: json.dumps(statistics.marks, sort_keys=True).encode()})
    with trying(entry.root, f"keep statistics of {entry.name}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path.with_suffix(".histograms"), statistics.histograms)
        _write(path.with_suffix(".columns"), statistics.columns)
        _write(path, marked)  # last: its presence says that all are there


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
        wholes = path.with_suffix(".columns")  # none of earlier versions
        columns = _read(wholes) if wholes.exists() else COLUMNS.empty_table()
        if columns.schema.names == COLUMNS.names[: COLUMNS.get_field_index("mean")]:  # nor did they keep means
            columns = COLUMNS.empty_table()
        marks: dict[str, str] = json.loads(shards.schema.metadata[_MARKS])
        if not (
            shards.schema.equals(SHARDS) and histograms.schema.equals(HISTOGRAMS) and isinstance(marks, dict)
        ) or not (columns.schema.equals(COLUMNS)):
            msg = "its columns are not those of statistics"
            raise ValueError(msg)  # noqa: TRY301  one reaction to all that is wrong with them
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        msg = f'statistics of {entry.name}: {path}: {cut(reason)}. Count again with catalog.measure("{entry.name}")'
        raise CatalogError(msg) from error
    plain = [each.replace_schema_metadata(None) for each in (shards, histograms, columns)]
    return Statistics(plain[0], plain[1], marks, plain[2])


def may_hold_nan(entry: Entry, column: str) -> bool:
    """Whether a column of floats holds NaN by its statistics; True if there are none."""
    with suppress(CatalogError):
        found = load_statistics(entry)
        if found is not None:
            counted = found.shards.filter(pc.equal(found.shards.column("column"), column)).column("nans")
            return counted.null_count > 0 or not len(counted) or pc.sum(counted).as_py() > 0
    return True


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


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _has_length(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


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
    """The digest of marks and values, however they are chunked: that of an Arrow stream, which is never in memory."""
    marks = (table.schema.metadata or {}).get(_MARKS, b"")
    plain = table.replace_schema_metadata(None)
    whole = plain if all(column.num_chunks <= 1 for column in plain.columns) else plain.combine_chunks()
    size = pa.MockOutputStream()
    _stream(size, whole)
    state = xxhash.xxh3_128()
    for part in (len(marks), marks, size.size()):
        state.update(part.to_bytes(8, "little") if isinstance(part, int) else part)
    with pa.PythonFile(_Hashing(state), mode="w") as sink:
        _stream(sink, whole)
    return state.hexdigest().encode()


def _stream(sink: Any, table: pa.Table) -> None:
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)


@final
class _Hashing:
    """A file that hashes what is written."""

    closed = False

    def __init__(self, state: Any) -> None:
        self._state = state

    def write(self, data: Any) -> int:
        self._state.update(data)
        return len(data)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


def _write(path: Path, table: pa.Table) -> None:
    table = table.combine_chunks()
    table = table.replace_schema_metadata({**(table.schema.metadata or {}), _DIGEST: _digest(table)})
    draft = path.with_name(f".{os.getpid()}-{path.name}")
    with pa.OSFile(str(draft), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    draft.replace(path)
