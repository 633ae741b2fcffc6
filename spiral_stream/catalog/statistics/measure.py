"""What is known of each storage shard and of the whole without reading payload: counts, ranges, values, quantiles.

Facts of a column are pieces by storage shard (`derived.kinds.column_facts`), so a shard that did not change is never read
again, and what is said of the relation is merged from them (`catalog.statistics.merge`). Counts are exact. A mark says how far to
trust a row: ``known`` (counted), ``estimated`` (from sketches, or the rest of the shard's bytes for the one column that
was not read), ``unknown``.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spiral_stream.catalog.database import trying
from spiral_stream.catalog.names import suggestions
from spiral_stream.catalog.registering.measure import derived_folder
from spiral_stream.catalog.registering.unique import FEW
from spiral_stream.catalog.relation.entry import Entry
from spiral_stream.catalog.relation.manifest import UNKNOWN_BYTES
from spiral_stream.catalog.relation.reader import OpenRelation
from spiral_stream.catalog.shared.mirror import home_of
from spiral_stream.catalog.shared.records import LostError
from spiral_stream.catalog.statistics.groups import FACTS, HISTOGRAMS, ShardGroup, facts_path, histogram_path
from spiral_stream.catalog.statistics.merge import (
    COLUMNS,
    ESTIMATED,
    KNOWN,
    SHARDS,
    UNKNOWN,
    Histograms,
    Merged,
    Statistics,
    merged,
)
from spiral_stream.derived.build import in_memory, load, open_built
from spiral_stream.derived.index import RosterFile, keys_of
from spiral_stream.derived.kinds.column_facts import ColumnFacts
from spiral_stream.derived.shared_parts import meet
from spiral_stream.display.progress import working
from spiral_stream.errors import CacheError, CatalogError, DamageError, cut
from spiral_stream.integrity import seal
from spiral_stream.integrity.publish import publish_table
from spiral_stream.semantic import is_text, semantic_of

__all__ = ["ESTIMATED", "HISTOGRAMS", "KNOWN", "SHARDS", "UNKNOWN", "Statistics"]

_MARKS: Final = b"spiral:marks"  # metadata of the table of shards
STATISTICS: Final = "statistics"  # kind of the records of a shared catalog that name these files
HISTOGRAM_VALUES: Final = 10_000  # a column with more distinct values has no histogram: it is no label or source
_LOOKED_AT: Final = 1 << 15  # rows, to tell whether a column has more
_RUNS: Final = 8  # of neighbours, that those lie in
_ATTEMPTS: Final = 8  # to make what is damaged again
_SPANS: Final = pa.schema([("group", pa.utf8()), ("begin", pa.int64()), ("rows", pa.int64())])


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
    if _is_small(relation):
        return _with_unread(relation, chosen, _small(relation, kinds, candidates))
    with working(f"measure {relation.entry.name}"), derived_folder(relation.entry.root) as root:
        most = _most(relation, {name: kinds[name] for name in candidates}, root)
        facts = [ColumnFacts(name, kind, most.get(name, 0)) for name, kind in kinds.items()]
        found = _counted(relation, facts, candidates, root)
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
        meet(file, keys)
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


def _is_small(relation: OpenRelation) -> bool:
    """Whether a relation is one shard of few rows: it changes as a whole, and is sooner read again than its facts are."""
    return len(relation.manifest.shard_names) == 1 and relation.manifest.total <= FEW


def _small(relation: OpenRelation, kinds: Mapping[str, pa.DataType], candidates: Sequence[str]) -> Merged:
    """Count a small relation, and keep its facts nowhere: the statistics have all of them."""
    facts = [ColumnFacts(name, kind, HISTOGRAM_VALUES if name in candidates else 0) for name, kind in kinds.items()]
    rows = relation.by_shard()
    counted = list(zip(facts, in_memory(rows, facts) if facts else [], strict=True))
    keys = keys_of(rows.manifest.content_keys)
    found = merged(relation.manifest, keys, counted, candidates, HISTOGRAM_VALUES, _unique(relation.entry))
    return replace(found, histograms=Histograms(known=found.histograms.table), groups=())


def _unique(entry: Entry) -> tuple[str, ...]:
    """The column that has another value in every row, if there is one."""
    return entry.identity if len(entry.identity) == 1 and entry.identity_unique else ()


def _counted(relation: OpenRelation, facts: Sequence[ColumnFacts], candidates: Sequence[str], root: Path) -> Merged:
    """Count what is not counted yet, and merge; a damaged part is made again."""
    unique = _unique(relation.entry)
    rows = relation.by_shard()
    keys = keys_of(rows.manifest.content_keys)
    for left in reversed(range(_ATTEMPTS)):
        counted = list(zip(facts, open_built(rows, facts, root) if facts else [], strict=True))
        try:
            return merged(
                relation.manifest, keys, counted, candidates, HISTOGRAM_VALUES, unique, _groups(relation.entry)
            )
        except DamageError:  # the part is out of the roster now
            if not left:
                raise
    raise AssertionError


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
        found.groups,
    )


def _filled(facts: dict[str, object], schema: pa.Schema, count: int) -> pa.Table:
    """A table with nulls where nothing is known."""
    return pa.table([facts.get(field.name, pa.nulls(count, field.type)) for field in schema], schema=schema)


def save_statistics(entry: Entry, statistics: Statistics) -> None:
    """Keep statistics in the catalog, under the relation and its data version; versions share groups of shards."""
    path = _path(entry)
    marked = statistics.shards.replace_schema_metadata({_MARKS: json.dumps(statistics.marks, sort_keys=True).encode()})
    spans = statistics.found.spans
    with trying(entry.root, f"keep statistics of {entry.name}"):
        folder = _groups(entry)
        folder.mkdir(parents=True, exist_ok=True)
        for each in statistics.groups:
            each.save(folder)
        named = [(group.key, at, rows) for group, at, rows in spans]
        columns = [list(each) for each in zip(*named, strict=True)] or [[], [], []]
        histograms = pa.table(columns, schema=_SPANS) if statistics.groups else statistics.histograms
        publish_table(path.with_suffix(".histograms"), histograms)
        publish_table(path.with_suffix(".columns"), statistics.columns)
        publish_table(path, marked)  # last: its presence says that all are there
    paths = [path, path.with_suffix(".histograms"), path.with_suffix(".columns")]
    for key in {each.key for each in statistics.groups}:
        paths += [histogram_path(folder, key), facts_path(folder, key)]
    # Those of one data version are all as good; a part that is there may be damaged.
    home_of(entry.root).keep(STATISTICS, _record_of(entry), {}, paths, again=True)


def are_shared(entry: Entry) -> bool:
    """Whether all who need the kept statistics can have them: whoever kept them may have died before their record was put."""
    return home_of(entry.root).has(STATISTICS, _record_of(entry))


def load_statistics(entry: Entry) -> Statistics | None:
    """Return the kept statistics of this data version, or None.

    Raises:
        CatalogError: they are damaged; says how to count again.
    """
    path, way_out = _path(entry), f'Count again with catalog.measure("{entry.name}")'
    try:
        if not path.exists() and not _brought(entry):
            return None
    except LostError as error:
        msg = f"statistics of {entry.name}: {str(error).split('. ')[0]}. {way_out}"
        raise CatalogError(msg) from error
    try:
        shards, histograms = seal.table(path), seal.table(path.with_suffix(".histograms"))
        wholes = path.with_suffix(".columns")  # none of earlier versions
        columns = seal.table(wholes) if wholes.exists() else COLUMNS.empty_table()
        if columns.schema.names == COLUMNS.names[: COLUMNS.get_field_index("mean")]:  # nor did they keep means
            columns = COLUMNS.empty_table()
        marks: dict[str, str] = json.loads(shards.schema.metadata[_MARKS])
        if not (shards.schema.equals(SHARDS) and isinstance(marks, dict) and columns.schema.equals(COLUMNS)):
            msg = "its columns are not those of statistics"
            raise ValueError(msg)  # noqa: TRY301  one reaction to all that is wrong with them
        found = _found(histograms.replace_schema_metadata(None), _groups(entry))
    except (OSError, ValueError, KeyError, TypeError, CacheError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        msg = f"statistics of {entry.name}: {path}: {cut(reason)}. {way_out}"
        raise CatalogError(msg) from error
    shards, columns = (each.replace_schema_metadata(None) for each in (shards, columns))
    return Statistics(shards, found, marks, columns)


def _found(histograms: pa.Table, folder: Path) -> Histograms:
    """Histograms as they are kept: spans of groups, or, of earlier versions, all rows."""
    if histograms.schema.equals(HISTOGRAMS):
        return Histograms(known=histograms)
    if not histograms.schema.equals(_SPANS):
        msg = "its columns are not those of histograms"
        raise ValueError(msg)
    groups = {key: ShardGroup(key, FACTS.empty_table(), histogram_path(folder, key)) for key in _keys(histograms)}
    missing = [key for key in groups if not histogram_path(folder, key).exists()]
    if missing:
        msg = f"{histogram_path(folder, missing[0])} is missing"
        raise ValueError(msg)
    return Histograms([(groups[row["group"]], row["begin"], row["rows"]) for row in histograms.to_pylist()])


def _keys(spans: pa.Table) -> list[str]:
    keys: list[str] = spans.column("group").unique().to_pylist()
    return keys


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
    return bool(pa.types.is_integer(kind) or pa.types.is_boolean(kind) or is_text(kind))


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _brought(entry: Entry) -> bool:
    """Fetch the statistics that a store has; whether there are any."""
    home = home_of(entry.root)
    if (record := home.record(STATISTICS, _record_of(entry))) is None:
        return False
    last = str(_path(entry).relative_to(entry.root))
    home.bring(record, f"statistics/{entry.name}/", only=lambda path: path != last)
    home.bring(record, last)
    return _path(entry).exists()


def _record_of(entry: Entry) -> str:
    return f"{entry.name}/{entry.data_version}"


def _path(entry: Entry) -> Path:
    return entry.root / "statistics" / entry.name / f"{entry.data_version}.arrow"


def _groups(entry: Entry) -> Path:
    return entry.root / "statistics" / entry.name / "groups"
