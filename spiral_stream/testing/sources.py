"""The laws of sources: what every reader, and every source that is imported, must do. Import from `spiral_stream.testing`."""

import json
import os
import pickle
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice, pairwise
from tempfile import TemporaryDirectory
from typing import Any, Final, Self, TypeVar
from unittest import mock

import numpy as np
import pyarrow as pa

from spiral_stream.catalog.registry import connect
from spiral_stream.catalog.relation.row_identity import RowIdentity
from spiral_stream.dialects.numpy import passes
from spiral_stream.errors import SourceError
from spiral_stream.expr import Expr, col
from spiral_stream.sources.arrow.table import Arrow
from spiral_stream.sources.import_source import ImportedSource, ImportUnit, Refused, is_imported
from spiral_stream.sources.serialize import need_saved, source_from_json, source_to_json
from spiral_stream.sources.source import ROW, Reader, Source, Unit

_KEY: Final = re.compile("[0-9a-f]{32}")
_DRAWS: Final = 6  # of rows, columns and units each
_MOST: Final = 50  # rows of one fetch
_THREADS: Final = 4
T = TypeVar("T")


def check_reader(source: Source, predicates: Sequence[Expr], seed: int) -> None:
    """Check what `Reader` promises of an open source: units, scans, fetches, predicates, threads."""
    draw = np.random.default_rng(seed)
    with source.open() as reader, _same_units(source, reader) as again:
        units = reader.units()
        _check_units(units, reader.schema)
        scanned = _scanned(reader, reader.schema.names)
        assert scanned[ROW].to_pylist() == list(range(sum(unit.rows for unit in units))), (
            "scan: rows or ordinals are missing"
        )
        _check_scans(reader, scanned, draw)
        _check_fetches(reader, scanned, draw)
        for predicate in [*_predicates(scanned, draw), *predicates]:
            _check_predicate(reader, scanned, predicate, draw)
        _check_threads(reader, scanned, draw)
        same(_scanned(again, reader.schema.names), scanned, "scan: opened again, the source has other rows")


def check_saved(source: Source) -> Source:
    """Check that a source pickles, and is the same when it is saved and opened again; returns the opened one."""
    unpickled = _pickled(source)
    if isinstance(source, Arrow):
        return source  # a catalog keeps a copy of its rows
    assert unpickled == source, "pickle: the copy is another source"
    need_saved(source)
    found = source_from_json(json.loads(json.dumps(source_to_json(source))))
    assert found == source, "saved: opened again, it is another source"
    return found


def check_imports(source: ImportedSource) -> None:
    """Check what `ImportedSource` promises: rows are a function of the unit, whatever is listed or read before or with it."""
    units = source.import_units()
    assert units, "import_units: there are none"
    assert list(source.import_units()) == list(units), "import_units: listed again, the units are others"
    with _other_listing():
        assert list(source.import_units()) == list(units), (
            "import_units: they depend on the order in which folders are listed"
        )
    for what, values in (("name", [u.name for u in units]), ("content_key", [u.content_key for u in units])):
        assert len(set(values)) == len(values), f"import_units: two units have one {what}"
    assert all(_KEY.fullmatch(unit.content_key) for unit in units), "import_units: a content key is not 32 hex digits"
    schema = source.import_schema(units)
    assert ROW not in schema.names, f"import_schema: {ROW!r} is reserved"
    first = [imported(source, unit, schema) for unit in units]
    for unit, rows in zip(units, first, strict=True):
        assert unit.count in (None, len(rows)), f"import_units: {unit.name} has {len(rows)} rows, not {unit.count}"
    _check_joined_units(source, units, schema, pa.concat_tables(first))
    copy = _pickled(source)
    for k in reversed(range(len(units))):
        same(
            imported(copy, units[k], schema),
            first[k],
            f"import_rows: {units[k].name} has other rows when it is read again",
        )
    with ThreadPoolExecutor(_THREADS) as pool:
        for k, rows in enumerate(pool.map(lambda unit: imported(source, unit, schema), units)):
            same(rows, first[k], f"import_rows: {units[k].name} has other rows when units are read at the same time")


def _check_joined_units(source: ImportedSource, files: Sequence[ImportUnit], schema: pa.Schema, rows: pa.Table) -> None:
    """What is read at once holds each row of the files once, in their order."""
    pieces = source.import_pieces(files)
    for what, values in (("name", [u.name for u in pieces]), ("content_key", [u.content_key for u in pieces])):
        assert len(set(values)) == len(values), f"import_pieces: two units have one {what}"
    parts = [(piece,) if source.JOINED or not piece.files else piece.files for piece in pieces]
    found = [imported(source, unit, schema) for units in parts for unit in units]
    same(pa.concat_tables(found), rows, "import_pieces: the rows of the pieces are not those of the files")


def imported(source: ImportedSource, unit: ImportUnit, schema: pa.Schema) -> pa.Table:
    """Return the rows of one unit; those that cannot be read are left out where the source allows it."""
    refused = Refused(unit, getattr(source, "on_error", "raise"))
    rows = source.import_rows(unit, schema, refused)
    with ThreadPoolExecutor(1) as pool:  # who asks for the first batch need not be who asks for the others
        batches = [*islice(rows, 1), *pool.submit(list, rows).result()]
    for batch in batches:
        assert batch.schema.equals(schema), f"import_rows: {unit.name} yields {batch.schema}, not the columns {schema}"
    return pa.Table.from_batches(batches, schema)


def rows_by_key(source: Source) -> dict[str, pa.Table]:
    """Return the rows of each unit by its content key."""
    if is_imported(source):
        units = source.import_units()
        schema = source.import_schema(units)
        return {unit.content_key: imported(source, unit, schema) for unit in units}
    with source.open() as reader:
        keys, names = [unit.content_key for unit in reader.units()], reader.schema.names
        return {key: _copied(_scanned(reader, names, [k]).drop_columns([ROW])) for k, key in enumerate(keys)}


def check_change(source: Source, change: Callable[[], object]) -> None:
    """Check that a content key stands for rows: after a change, a key that is still there has the rows that it had."""
    before = rows_by_key(source)
    change()
    after = rows_by_key(source)
    assert list(before) != list(after), "content_key: rows changed, and no content key did"
    for key in before.keys() & after.keys():
        same(after[key], before[key], f"content_key: {key} has other rows after the change")


def same(found: pa.Table, expected: pa.Table, law: str) -> None:
    """Refuse a table that differs from another in columns, types or values; NaN equals NaN."""
    assert found.schema.equals(expected.schema), f"{law}: columns {found.schema}, not {expected.schema}"
    assert len(found) == len(expected), f"{law}: {len(found)} rows, not {len(expected)}"
    if not found.equals(expected):
        assert repr(found.to_pylist()) == repr(expected.to_pylist()), (
            f"{law}: {found.to_pylist()}, not {expected.to_pylist()}"
        )


@contextmanager
def _same_units(source: Source, reader: Reader) -> Iterator[Reader]:
    """A second reader of the source, which was pickled meanwhile."""
    copy = source if isinstance(source, Arrow) else _pickled(source)  # a digest of memory covers what lies under a null
    with copy.open() as again:
        assert list(again.units()) == list(reader.units()), "units: opened again, they are others"
        assert again.schema.equals(reader.schema), "schema: opened again, the columns are others"
        yield again


def _check_units(units: Sequence[Unit], schema: pa.Schema) -> None:
    names = [unit.name for unit in units]
    assert len(set(names)) == len(names), "units: two have one name"
    assert all(_KEY.fullmatch(unit.content_key) for unit in units), "units: a content key is not 32 hex digits"
    assert all(sum(unit.groups) == unit.rows for unit in units), "units: the groups of one do not sum to its rows"
    assert ROW not in schema.names, f"schema: {ROW!r} is reserved"
    assert len(set(schema.names)) == len(schema.names), "schema: two columns have one name"


def _scanned(
    reader: Reader, columns: Sequence[str], units: Sequence[int] | None = None, predicate: Expr | None = None
) -> pa.Table:
    schema = pa.schema([*(reader.schema.field(name) for name in columns), pa.field(ROW, pa.uint64())])
    batches = list(reader.scan(columns, predicate, units))
    for batch in batches:
        assert batch.schema.equals(schema), f"scan: yields {batch.schema}, not {schema}"
    return pa.Table.from_batches(batches, schema)


def _check_scans(reader: Reader, rows: pa.Table, draw: np.random.Generator) -> None:
    starts = np.cumsum([0, *(unit.rows for unit in reader.units())])
    for columns in _some_columns(reader.schema.names, draw):
        same(_scanned(reader, columns), rows.select([*columns, ROW]), f"scan: columns {columns}")
        units = np.flatnonzero(draw.random(len(starts) - 1) < draw.random()).tolist()
        wanted = [row for unit in units for row in range(starts[unit], starts[unit + 1])]
        law = f"scan: columns {columns} of units {units}"
        same(_scanned(reader, columns, units), rows.select([*columns, ROW]).take(pa.array(wanted, pa.int64())), law)


def _check_fetches(reader: Reader, scanned: pa.Table, draw: np.random.Generator) -> None:
    for columns in _some_columns(reader.schema.names, draw):
        rows = draw.integers(0, len(scanned), int(draw.integers(0, min(_MOST, 2 * len(scanned)) + 1))).astype(np.uint64)
        found = reader.fetch(rows, columns)
        assert len(found) == len(rows), f"fetch: {len(found)} rows, not {len(rows)}"
        law = f"fetch: columns {columns} of rows {rows.tolist()}"
        same(found, scanned.select(columns).take(pa.array(rows)) if columns else found, law)
    try:
        reader.fetch(np.array([len(scanned)], np.uint64), reader.schema.names[:1])
    except SourceError:
        return
    msg = f"fetch: row {len(scanned)} is past the end, and is not refused with a SourceError"
    raise AssertionError(msg)


def _check_predicate(reader: Reader, rows: pa.Table, predicate: Expr, draw: np.random.Generator) -> None:
    passing = passes(predicate, {name: rows[name] for name in predicate.columns()})
    columns = _some_columns(reader.schema.names, draw)[0]
    expected = rows.select([*columns, ROW]).filter(pa.array(passing))
    same(_scanned(reader, columns, None, predicate), expected, f"scan: columns {columns} where {predicate}")


def _check_threads(reader: Reader, rows: pa.Table, draw: np.random.Generator) -> None:
    """Threads that scan and fetch at the same time get what one alone does."""
    draws = [draw.integers(0, len(rows), min(_MOST, len(rows))).astype(np.uint64) for _ in range(2 * _THREADS)]
    names = reader.schema.names

    def read(k: int) -> pa.Table:
        return _scanned(reader, names) if k % _THREADS == 0 else reader.fetch(draws[k], names)

    with ThreadPoolExecutor(_THREADS) as pool:
        for k, found in enumerate(pool.map(read, range(len(draws)))):
            expected = rows if k % _THREADS == 0 else rows.select(names).take(pa.array(draws[k]))
            same(found, expected, "threads: rows differ when they are read at the same time")


def _some_columns(names: Sequence[str], draw: np.random.Generator) -> list[list[str]]:
    """All columns, none, and some draws of them in any order."""
    some = [draw.permutation(names)[: draw.integers(1, len(names) + 1)].tolist() for _ in range(_DRAWS)]
    return [*some, [*reversed(names)], []]


def _predicates(rows: pa.Table, draw: np.random.Generator) -> list[Expr]:
    """Predicates over the columns that can be compared, with values that occur."""
    found = []
    for field in rows.drop_columns([ROW]).schema:
        row = int(draw.integers(0, len(rows)))
        found += _of_column(field, rows[field.name][row].as_py())
    pairs = [left & ~right for left, right in pairwise(found)] + [left | right for left, right in pairwise(found)]
    return [*found, *(pairs[k] for k in draw.permutation(len(pairs))[:_DRAWS])]


def _of_column(field: pa.Field, value: Any) -> list[Expr]:
    kind, column = field.type, col(field.name)
    if pa.types.is_floating(kind):
        return [column.is_null(), column.is_nan(), *([column >= value, ~(column < value)] if value is not None else [])]
    if pa.types.is_integer(kind) or pa.types.is_string(kind):
        return [
            column.is_null(),
            *([column >= value, ~(column == value), column.is_in([value])] if value is not None else []),
        ]
    return [column.is_null()] if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) else []


def _copied(table: pa.Table) -> pa.Table:
    """A table in memory of its own: files that others are mapped from may change."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as out:
        out.write_table(table)
    return pa.ipc.open_stream(sink.getvalue()).read_all()


def _pickled(value: T) -> T:
    """A copy as another process gets it."""
    copy: T = pickle.loads(pickle.dumps(value))  # noqa: S301  our own bytes
    return copy


@contextmanager
def _other_listing() -> Iterator[None]:
    """Folders are listed in another order, as on another file system."""
    names, entries = os.listdir, os.scandir

    class Reversed:
        def __init__(self, *path: Any) -> None:
            with entries(*path) as found:
                self._found = iter(sorted(found, key=lambda entry: entry.name, reverse=True))

        def __iter__(self) -> Iterator[Any]:
            return self._found

        def __next__(self) -> Any:
            return next(self._found)

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            return None

        def close(self) -> None:
            return None

    with mock.patch("os.scandir", Reversed), mock.patch("os.listdir", lambda *path: sorted(names(*path), reverse=True)):
        yield


def check_source(
    source: Source, change: Callable[[], object] | None = None, *, predicates: Sequence[Expr] = (), seed: int = 0
) -> None:
    """*source*: check what is promised of a source over its rows as they are. Give it up to some hundred rows, with nulls.

    Units are the same whenever it is opened. Scans give what fetches give, for any columns, units, order and repeats, from
    several threads at the same time. The rows that pass a predicate are those of `spiral_stream.expr`. The source
    pickles, and is the same after it is saved. A content key stands for the same rows after a change. Of an `ImportedSource`
    also: its rows are a function of the unit, and the order in which folders are listed does not matter.

    Args:
        source: to test.
        change: changes some rows in the storage; it is called last.
        predicates: to test in addition to those that are drawn.
        seed: of the draws.

    Raises:
        AssertionError: a law is broken.

    Examples:
        >>> from spiral_stream.testing import check_source
        >>> check_source(spiral.Arrow(text_rows))
    """
    if is_imported(source):
        check_imports(source)
    opened = check_saved(source)
    with TemporaryDirectory(prefix="spiral-") as folder:
        if is_imported(opened):
            opened = connect(folder).register("checked", opened, identity=RowIdentity()).source
        check_reader(opened, predicates, seed)
    if change is not None:
        check_change(source, change)
