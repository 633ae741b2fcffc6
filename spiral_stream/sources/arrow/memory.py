"""Rows that lie in memory as one Arrow table: what listings and small tables read through."""

from collections.abc import Iterator, Sequence
from typing import final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.dialects.offsets import unsliced_table
from spiral_stream.errors import SourceError
from spiral_stream.expr import Expr
from spiral_stream.sources.row_filter import needed, passing
from spiral_stream.sources.source import ROW, Reader, Unit, without_columns


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


def memory_reader(table: pa.Table, base: str = "") -> MemoryReader:
    """Return a reader of one table, for rows that are computed and belong to no storage."""
    rows = len(table)
    return MemoryReader(table, [Unit("memory", rows, table.nbytes, "", (rows,) if rows else ())], base)


def _with_rows(table: pa.Table, rows: pa.Array) -> pa.Table:
    """The table with `ROW` last; a table without columns has no length of its own."""
    return table.append_column(ROW, rows) if table.num_columns else pa.table([rows], names=[ROW])
