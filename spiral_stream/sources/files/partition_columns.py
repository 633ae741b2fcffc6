"""Columns that files do not store: ``key=value`` in folder names, as Hive, Spark and DuckDB write them, and a row's file.

A key is int64 if its values in all files are whole numbers, else utf8; utf8 too if two of them, such as ``1`` and ``01``, are
one number. ``__HIVE_DEFAULT_PARTITION__`` is null. Values are percent-decoded, as Spark and Arrow encode them.

`AddedReader` puts these columns after those of another reader. Units that a condition on them rules out are not read.
Values cost some ns per row: the unit of a row is looked up in the table of units.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, final
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.errors import SourceError, cut, shown
from spiral_stream.expr import Expr
from spiral_stream.sources.import_source import FILE, INDEX
from spiral_stream.sources.row_filter import needed, passing, split_without
from spiral_stream.sources.source import ROW, Known, Reader, ReaderOver

_PART: Final = re.compile(r"([^=/]+)=([^/]*)")
_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_INTEGER: Final = re.compile(r"-?[0-9]{1,18}")  # fits int64
_WAY_OUT: Final = (
    "Move it, name the other files in a list or pattern, or give hive=False, which takes no columns from folders"
)


def has_keys(names: Sequence[str]) -> bool:
    """Whether any file lies in a folder called ``key=value``."""
    return any("=" in name and _keys_of(name) for name in names)


def hive_columns(root: str, names: Sequence[str]) -> dict[str, pa.Array]:
    """Return the columns that the folders of files give them, each with one value per file.

    Args:
        root: the folder that all files lie below.
        names: of the files, relative to it.

    Raises:
        SourceError: a file has other keys than the first, or a key twice.
    """
    first = _keys_of(names[0])
    texts: dict[str, list[str | None]] = {key: [] for key in first}
    for name in names:
        found = _keys_of(name)
        if list(found) != list(first):
            msg = (
                f"Parquet: {cut(f'{root}/{name}')} has {_shown(found)} in its path, and {cut(f'{root}/{names[0]}')} has "
                f"{_shown(first)}. {_WAY_OUT}"
            )
            raise SourceError(msg)
        for key, value in found.items():
            texts[key].append(None if value == _NULL else unquote(value))
    return {key: _column(values) for key, values in texts.items()}


def need_equal(path: str, key: str, value: Any, ranges: Sequence[tuple[Any, Any] | None]) -> None:
    """Refuse a file that stores the key of a folder it lies in as a column too, unless all its values are the folder's.

    Args:
        path: of the file.
        key: of the folder.
        value: that the folder says.
        ranges: least and greatest value of each row group, None where its statistics do not say or there are nulls.

    Raises:
        SourceError: says what the file has.
    """
    for each in ranges:
        if each is None or {str(each[0]), str(each[1])} != {str(value)}:
            found = (
                "does not say what values it has"
                if each is None
                else f"has values from {shown(each[0])} to {shown(each[1])}"
            )
            msg = (
                f"Parquet: {cut(path)} lies in a folder {key}={value} and stores a column {key!r} too, which {found}. "
                "Give hive=False, which takes the stored column and none from folders, or rename the folder's key"
            )
            raise SourceError(msg)


def _keys_of(name: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in name.split("/")[:-1]:
        match = _PART.fullmatch(part)
        if match is None:
            continue
        key = unquote(match[1])
        if key in found:
            msg = f"Parquet: {cut(name)} has the key {key!r} twice in its path. {_WAY_OUT}"
            raise SourceError(msg)
        found[key] = match[2]
    return found


def _column(values: Sequence[str | None]) -> pa.Array:
    known = {value for value in values if value is not None}
    if known and all(_INTEGER.fullmatch(value) for value in known) and len(set(map(int, known))) == len(known):
        return pa.array([None if value is None else int(value) for value in values], pa.int64())
    return pa.array(values, pa.utf8())


def _shown(keys: Mapping[str, str]) -> str:
    return f"the keys {', '.join(keys)}" if keys else "no name=value folder"


_UNIT = "__unit"  # of a table of units, while units are chosen


def with_added(reader: Reader, of_units: Mapping[str, pa.Array], known: Known | None, *, origin: bool) -> Reader:
    """Return a reader of the same rows with further columns.

    Args:
        reader: of the rows as they are stored; closed if this fails.
        of_units: columns with one value per unit, by name.
        known: the units, where the reader has not looked at them.
        origin: whether to add `FILE`, the name of a row's unit, and `INDEX`, its place in the unit.

    Raises:
        SourceError: a stored column has the name of one of them.
    """
    if not of_units and not origin:
        return reader
    try:
        names, rows = _units_of(reader, known)
        added = {**of_units, FILE: names} if origin else dict(of_units)
        need_free(reader.schema, reader.base, [*added, INDEX] if origin else list(added))
        return AddedReader(reader, pa.table(added), rows, index=origin)
    except BaseException:
        reader.close()
        raise


def _units_of(reader: Reader, known: Known | None) -> tuple[pa.Array, NDArray[np.uint64]]:
    """Names and rows of the units."""
    if known is not None:
        return known.names, known.rows
    units = reader.units()
    return pa.array([unit.name for unit in units], pa.utf8()), np.array([unit.rows for unit in units], np.uint64)


def need_free(schema: pa.Schema, path: str, names: Sequence[str]) -> None:
    """Refuse columns that the rows have already.

    Raises:
        SourceError: names the column.
    """
    for name in names:
        if name in schema.names:
            msg = f"{cut(path)}: the rows have a column {name!r} already. Register them with origin=False"
            raise SourceError(msg)


@final
class AddedReader(ReaderOver):
    """The rows of another reader, with columns that its units' names say.

    Args:
        reader: of the rows as they are stored.
        of_units: the added columns, one row per unit.
        rows: shape [U], of each unit.
        index: whether `INDEX` is added too.
    """

    def __init__(self, reader: Reader, of_units: pa.Table, rows: NDArray[np.uint64], *, index: bool) -> None:
        super().__init__(reader)
        self._of_units = of_units.combine_chunks()
        self._starts = np.concatenate([[0], np.cumsum(rows)]).astype(np.uint64)
        fields = [*of_units.schema, pa.field(INDEX, pa.int64())] if index else list(of_units.schema)
        self.schema = pa.schema([*reader.schema, *fields])
        self._added = frozenset(field.name for field in fields)

    def scan(
        self,
        columns: Sequence[str],
        predicate: Expr | None = None,
        units: Sequence[int] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        pushed, late = split_without(predicate, self.schema, self._added)
        chosen = self._possible(late, units)
        read = needed(columns, late)
        stored = [name for name in read if name not in self._added]
        if chosen is not None and not chosen:
            return
        for batch in self._rows.scan(stored, pushed, chosen):
            ordinals = batch.column(ROW)
            arrays = self._with_added(batch, read, ordinals.to_numpy())
            table = pa.Table.from_batches([pa.record_batch([*arrays, ordinals], names=[*read, ROW])])
            yield from passing(table, late, [*columns, ROW]).to_batches()

    def fetch(self, rows: NDArray[np.uint64], columns: Sequence[str]) -> pa.Table:
        rows = np.asarray(rows, dtype=np.uint64)
        stored = self._rows.fetch(rows, [name for name in columns if name not in self._added])
        if not self._added.intersection(columns):
            return stored
        schema = pa.schema([self.schema.field(name) for name in columns])
        return pa.table(self._with_added(stored, columns, rows), schema=schema)

    def _with_added(
        self, stored: pa.Table | pa.RecordBatch, columns: Sequence[str], ordinals: NDArray[np.uint64]
    ) -> list[pa.Array]:
        """The columns of these rows, stored and added."""
        units = np.searchsorted(self._starts, ordinals, side="right") - 1
        found = []
        for name in columns:
            if name not in self._added:
                found.append(stored.column(name))
            elif name == INDEX:
                found.append(pa.array((ordinals - self._starts[units]).astype(np.int64)))
            else:
                found.append(self._of_units.column(name).chunk(0).take(pa.array(units)))
        return found

    def _possible(self, predicate: Expr | None, units: Sequence[int] | None) -> Sequence[int] | None:
        """The units that may have rows which pass; None for all."""
        others = frozenset(self.schema.names) - frozenset(self._of_units.column_names)
        of_units, _ = split_without(predicate, self.schema, others)
        if of_units is None:
            return units
        here = np.arange(len(self._of_units)) if units is None else np.unique(np.asarray(units, np.int64))
        table = self._of_units.append_column(_UNIT, pa.array(np.arange(len(self._of_units)))).take(pa.array(here))
        possible: list[int] = passing(table, of_units, [_UNIT]).column(_UNIT).to_pylist()
        return possible
