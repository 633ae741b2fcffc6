"""Check rows given as dictionaries against a schema, and turn them into Arrow arrays.

A row is checked when it is given. Plain values are held as they are, and become arrays many at a time; others, such as lists
and structs, become arrays one by one, so that the caller may change them afterwards.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, final

import numpy as np
import pyarrow as pa

from spiral_stream.errors import SourceError, shown

Row = Mapping[str, Any]
_NUMBER_BYTES: Final = 8
_FIXED: Final = frozenset((bool, int, float, str, bytes))
_PLAIN: Final[tuple[tuple[Callable[[pa.DataType], bool], tuple[type, ...]], ...]] = (
    (pa.types.is_boolean, (bool, np.bool_)),
    (pa.types.is_integer, (int, np.integer)),
    (pa.types.is_floating, (float, int, np.floating, np.integer)),
    (lambda kind: bool(pa.types.is_string(kind) or pa.types.is_large_string(kind)), (str,)),
    (lambda kind: bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind)), (bytes, bytearray, memoryview)),
)


@final
class RowChecks:
    """The columns that rows must have, and the rows that were given one by one and not taken yet. Not thread-safe.

    Args:
        schema: of the rows.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._names = frozenset(schema.names)
        self._fields = [_Held(field) for field in schema]
        self.held = 0
        self.held_bytes = 0  # about

    def add(self, row: Row, number: int) -> None:
        """Hold a row until `taken`; the caller may change it afterwards. About 0.3 us per plain value.

        Args:
            row: name of a column -> value.
            number: of the row, for messages.

        Raises:
            SourceError: the row does not fit; names it, the field, and what was found.
        """
        if not isinstance(row, Mapping):
            msg = f"Writer: row {number:,} is a {type(row).__name__}. Give a dictionary: name of the column -> value"
            raise SourceError(msg)
        if row.keys() != self._names:
            self._refuse_names(row, number)
        size = 0
        try:
            for each in self._fields:
                value = row[each.name]
                if type(value) not in each.exact:
                    value = each.copied(value, number)
                each.values.append(value)
                size += len(value) if each.has_length and value is not None else getattr(value, "nbytes", _NUMBER_BYTES)
        except SourceError:
            for each in self._fields:
                del each.values[self.held :]
            raise
        self.held += 1
        self.held_bytes += size

    def taken(self, first: int) -> pa.Table:
        """Return the rows that are held, and hold them no longer.

        Args:
            first: number of the first, for messages.

        Raises:
            SourceError: a number is beyond the range of its column's type; names the row and the field.
        """
        self.held = self.held_bytes = 0
        return pa.table([each.taken(first) for each in self._fields], schema=self._schema)

    def table(self, rows: pa.Table | pa.RecordBatch, first: int) -> pa.Table:
        """Return the rows of a table in the order of the schema's columns.

        Raises:
            SourceError: a column is missing, not expected, of another type, or has a null that is not allowed.
        """
        table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
        where = f"Writer: rows from {first:,} on"
        if set(table.column_names) != self._names or len(table.column_names) != len(self._names):
            missing, extra = self._names - set(table.column_names), set(table.column_names) - self._names
            found = f"have no column {min(missing, default='')!r}"
            if not missing:
                found = f"have a column {min(extra)!r} that is not in the schema" if extra else "have a column twice"
            msg = f"{where} {found}. Give the columns {', '.join(self._schema.names)}"
            raise SourceError(msg)
        for field in self._schema:
            column = table.column(field.name)
            if column.type != field.type:
                msg = f"{where}: column {field.name!r} is {column.type}, not {field.type}. Cast it: table.cast(schema)"
                raise SourceError(msg)
            if column.null_count and not field.nullable:
                row = first + int(np.argmax(column.is_null().to_numpy()))
                msg = f"Writer: row {row:,}: field {field.name!r} is null, and the schema allows no null. Fill it in"
                raise SourceError(msg)
        return pa.table([table.column(name) for name in self._schema.names], schema=self._schema)

    def _refuse_names(self, row: Row, number: int) -> None:
        if missing := [name for name in self._schema.names if name not in row]:
            msg = f"Writer: row {number:,} has no field {missing[0]!r}. Give it, or None where there is no value"
            raise SourceError(msg)
        extra = next(name for name in row if name not in self._names)
        msg = f"Writer: row {number:,} has a field {shown(extra)}, which the schema has not. Leave it out, or add it there"
        raise SourceError(msg)


@final
class _Held:
    """The values of one column that were given row by row."""

    def __init__(self, field: pa.Field) -> None:
        self.name, self._field = field.name, field
        self._plain = next((types for is_kind, types in _PLAIN if is_kind(field.type)), ())
        self.exact = frozenset(self._plain) & _FIXED  # types of values that fit and do not change
        self.has_length = bool({str, bytes} & self.exact)
        self.values: list[Any] = []

    def copied(self, value: Any, number: int) -> Any:
        """Return a value as it is held, so that the caller may change it.

        Raises:
            SourceError: it does not fit.
        """
        if value is None and not self._field.nullable:
            msg = f"Writer: row {number:,}: field {self.name!r} is None, and the schema allows no null. Fill it in"
            raise SourceError(msg)
        if not self._plain:
            try:
                return pa.array([value], self._field.type)
            except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
                raise _wrong(number, self._field, value) from error
        flag = isinstance(value, bool) and bool not in self._plain  # Python takes True for 1
        if value is not None and (flag or not isinstance(value, self._plain)):
            raise _wrong(number, self._field, value)
        return bytes(value) if isinstance(value, bytearray | memoryview) else value

    def taken(self, first: int) -> pa.Array:
        """Return the values, and hold them no longer.

        Raises:
            SourceError: one is beyond the range of the type.
        """
        values, self.values = self.values, []
        try:
            return pa.array(values, self._field.type) if self._plain else pa.concat_arrays(values)
        except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
            raise _first_wrong(values, self._field, first) from error


def _first_wrong(values: Sequence[Any], field: pa.Field, first: int) -> SourceError:
    """The error for the first plain value that its type does not hold."""
    number = first
    for number, value in enumerate(values, first):
        try:
            pa.array([value], field.type)
        except (pa.ArrowException, OverflowError, TypeError, ValueError):
            return _wrong(number, field, value)
    msg = f"Writer: rows {first:,} to {number:,}: field {field.name!r} cannot be held as {field.type}. Give smaller batches"
    return SourceError(msg)


def _wrong(number: int, field: pa.Field, value: object) -> SourceError:
    return SourceError(
        f"Writer: row {number:,}: field {field.name!r} is {shown(value)}, a {type(value).__name__}; the schema says "
        f"{field.type}. Convert it, or change the schema"
    )
