"""A small relation that is in memory already: registering it copies it into the catalog.

Rows that lie in memory as one Arrow table: what listings and small tables read through.

Arrow's types that its kernels do not take, as the plain types of the same values.

No rows are taken of views, and nothing sorts dictionary codes. An extension type that is not known here is what it stores,
whether or not its package is imported: what a column is must not depend on that.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spiral_stream.arguments import class_door
from spiral_stream.dialects.offsets import unsliced_table
from spiral_stream.errors import SourceError
from spiral_stream.expr import Expr
from spiral_stream.sources.change_detection import content_key
from spiral_stream.sources.files.paths import absolute, outside_allowed
from spiral_stream.sources.row_filter import needed, passing
from spiral_stream.sources.source import ROW, Reader, Source, Unit, without_columns


@final
class MemoryReader(Reader):
    """Serves a table whose rows are those of ``units``, laid end to end.

    Examples:
        >>> from spiral_stream.sources import MemoryReader, Unit, content_key
        >>> unit = Unit("texts", 40, None, content_key("texts", 40), (40,))
        >>> with MemoryReader(text_rows, [unit], base=".") as reader:
        ...     reader.fetch(np.array([7, 3], np.uint64), ["doc_id"])["doc_id"].to_pylist()
        [7, 3]
    """

    def __init__(self, table: pa.Table, units: Sequence[Unit], base: str, *, allow_outside: bool = True) -> None:
        self.schema = table.schema
        self.base, self.allow_outside = base, allow_outside
        self._table = unsliced_table(table.combine_chunks())
        self._units = tuple(units)
        self._starts = np.concatenate([[0], np.cumsum([unit.rows for unit in self._units])]).astype(np.int64)

    def units(self) -> Sequence[Unit]:
        return self._units

    def scan(
        self,
        columns: Sequence[str],
        predicate: Expr | None = None,
        units: Sequence[int] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        for unit in range(len(self._units)) if units is None else sorted(units):
            start, stop = int(self._starts[unit]), int(self._starts[unit + 1])
            piece = self._table.select(needed(columns, predicate)).slice(start, stop - start)
            rows = pa.array(np.arange(start, stop, dtype=np.uint64))
            yield from passing(_with_rows(piece, rows), predicate, [*columns, ROW]).to_batches()

    def fetch(self, rows: NDArray[np.uint64], columns: Sequence[str]) -> pa.Table:
        if len(rows) and int(rows.max()) >= len(self._table):
            msg = f"row {int(rows.max())} was asked for, but the table has {len(self._table)} rows"
            raise SourceError(msg)
        if not columns:
            return without_columns(len(rows))
        return self._table.select(list(columns)).take(pa.array(rows, pa.uint64()))


def _with_rows(table: pa.Table, rows: pa.Array) -> pa.Table:
    """The table with `ROW` last; a table without columns has no length of its own."""
    return table.append_column(ROW, rows) if table.num_columns else pa.table([rows], names=[ROW])


_KNOWN: Final = (pa.FixedShapeTensorType, pa.UuidType)
_BLOB: Final = "lance.blob"  # which `sources.lance.source` reads
_MARK: Final = b"ARROW:extension:"


def plain(schema: pa.Schema) -> pa.Schema:
    """The columns without views and without extension types that are not known; others as they are."""
    return pa.schema([plain_field(field) for field in schema], schema.metadata)


def plain_field(field: pa.Field) -> pa.Field:
    """Return one column as `plain` gives it."""
    kind = _plain(field.type)
    if isinstance(kind, pa.BaseExtensionType) or (kind is field.type and not field.metadata):
        return field
    kept = {key: value for key, value in (field.metadata or {}).items() if not key.startswith(_MARK)}
    if kind == field.type and len(kept) == len(field.metadata or {}):
        return field
    marked = isinstance(field.type, pa.BaseExtensionType) or len(kept) < len(field.metadata or {})
    return pa.field(field.name, same_items(kind) if marked else kind, field.nullable, kept or None)


def same_items(kind: pa.DataType) -> pa.DataType:
    """Return a type whose lists call their items so: Parquet and packages of extension types have other names for them."""
    if pa.types.is_list(kind):
        return pa.list_(pa.field("item", same_items(kind.value_type), kind.value_field.nullable))
    if pa.types.is_large_list(kind):
        return pa.large_list(pa.field("item", same_items(kind.value_type), kind.value_field.nullable))
    return kind


def as_plain(rows: Any) -> Any:
    """Return a table or a record batch with the columns that `plain` says."""
    schema = plain(rows.schema)
    if schema.equals(rows.schema, check_metadata=True):
        return rows
    columns = [plain_column(column, kind) for column, kind in zip(rows.columns, schema.types, strict=True)]
    return (pa.record_batch if isinstance(rows, pa.RecordBatch) else pa.table)(columns, schema=schema)


def plain_column(column: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """Return the values of a column in a type that `plain` gave it."""
    if column.type == kind:
        return column
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([plain_column(chunk, kind) for chunk in column.chunks], kind)
    return _array(column, kind)


def _array(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    t = pa.types
    if array.type == kind:
        return array
    mask = array.is_null() if array.null_count else None
    if t.is_list(kind) or t.is_large_list(kind):
        # pyarrow 26 casts a list view to a list whose last offset is not in its buffer
        counts = pc.fill_null(pc.list_value_length(array), 0).to_numpy()
        ends = pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32() if t.is_list(kind) else pa.int64())
        made = pa.ListArray if t.is_list(kind) else pa.LargeListArray
        return made.from_arrays(ends, _array(array.flatten(), kind.value_type), type=kind, mask=mask)
    if t.is_fixed_size_list(kind):
        items = array.values.slice(array.offset * kind.list_size, len(array) * kind.list_size)
        return pa.FixedSizeListArray.from_arrays(_array(items, kind.value_type), type=kind, mask=mask)
    if t.is_struct(kind) and kind.num_fields:
        fields = [kind.field(at) for at in range(kind.num_fields)]
        parts = [_array(array.field(at), field.type) for at, field in enumerate(fields)]
        return pa.StructArray.from_arrays(parts, fields=fields, mask=mask)
    return array.cast(kind)


def without_dictionaries(table: pa.Table) -> pa.Table:
    """The rows with the values that dictionary codes stand for."""
    if not any(pa.types.is_dictionary(kind) for kind in table.schema.types):
        return table
    fields = [f.with_type(f.type.value_type) if pa.types.is_dictionary(f.type) else f for f in table.schema]
    return table.cast(pa.schema(fields, table.schema.metadata))


def coded_once(table: pa.Table) -> pa.Table:
    """The rows with dictionaries in which each value stands once: those of Lance's fragments may repeat one."""
    plain = without_dictionaries(table)
    columns = [
        each.dictionary_encode() if pa.types.is_dictionary(kind) else each
        for each, kind in zip(plain.columns, table.schema.types, strict=True)
    ]
    return pa.table(columns, names=table.column_names)


def no_rows(schema: pa.Schema) -> pa.Table:
    """Return a table without rows, also of tensors with a permutation, of which pyarrow 26 makes none."""
    return pa.table([pa.chunked_array([pa.nulls(0, kind)], kind) for kind in schema.types], schema=schema)


def _plain(kind: pa.DataType) -> pa.DataType:  # noqa: PLR0911  one return a kind of type
    t = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return kind if isinstance(kind, _KNOWN) or _BLOB in str(kind) else _plain(kind.storage_type)
    if t.is_string_view(kind):
        return pa.string()
    if t.is_binary_view(kind):
        return pa.binary()
    if t.is_list(kind) or t.is_list_view(kind):
        inside = kind.value_field.with_type(_plain(kind.value_type))
        return kind if t.is_list(kind) and inside.type == kind.value_type else pa.list_(inside)
    if t.is_large_list(kind) or t.is_large_list_view(kind):
        inside = kind.value_field.with_type(_plain(kind.value_type))
        return kind if t.is_large_list(kind) and inside.type == kind.value_type else pa.large_list(inside)
    if t.is_fixed_size_list(kind):
        inside = kind.value_field.with_type(_plain(kind.value_type))
        return kind if inside.type == kind.value_type else pa.list_(inside, kind.list_size)
    if t.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        if any(_plain(field.type) != field.type for field in fields):
            return pa.struct([field.with_type(_plain(field.type)) for field in fields])
    return kind


@final
@class_door(SourceError)
@dataclass(frozen=True, slots=True, eq=False)
class Arrow(Source):
    """A pyarrow Table or RecordBatch, for relations of some thousands of rows (labels).

    Args:
        table: the rows.
        base: folder that relative references are resolved against; by default
            the working directory at the time.
        allow_outside: whether references may name files that do not lie below ``base``; by default
            only where no base is given.

    Examples:
        >>> entry = catalog.register("from-arrow", spiral.Arrow(text_rows), identity="doc_id")
        >>> catalog.table("from-arrow").count()
        40
    """

    KIND: ClassVar[str] = "arrow"
    table: pa.Table
    base: str | None = None
    allow_outside: bool | None = None

    def __post_init__(self) -> None:
        if isinstance(self.table, pa.RecordBatch):
            object.__setattr__(self, "table", pa.Table.from_batches([self.table]))
        if not isinstance(self.table, pa.Table):
            msg = f"Arrow: takes a pyarrow Table, not {type(self.table).__name__}. Convert it with pyarrow.table(...)"
            raise SourceError(msg)
        names = self.table.column_names
        if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
            msg = f"Arrow: two columns are called {twice[0]!r}. Give one another name: table.rename_columns([...])"
            raise SourceError(msg)
        object.__setattr__(self, "table", as_plain(self.table))
        object.__setattr__(self, "allow_outside", outside_allowed(self.base, self.allow_outside))
        object.__setattr__(self, "base", absolute(self.base or "."))

    def open(self) -> Reader:
        table = self.table.replace_schema_metadata(None)
        rows = len(table)
        unit = Unit("table", rows, table.nbytes, self.digest(), (rows,) if rows else ())
        assert self.base is not None
        return MemoryReader(table, [unit], self.base, allow_outside=bool(self.allow_outside))

    def digest(self) -> str:
        """Return the content key of schema and rows, whatever the chunks are."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self.table.schema) as writer:
            writer.write_table(self.table.combine_chunks())
        return content_key(sink.getvalue().to_pybytes())
