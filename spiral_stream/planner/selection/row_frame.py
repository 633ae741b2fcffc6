"""The rows between two relational steps: the scanned columns, and the matching row of each joined relation."""

from collections.abc import Sequence
from typing import Any, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spiral_stream.expr import Expr
from spiral_stream.planner.selection.fetched_columns import Columns, Fetchable, FetchedColumns, Right, UInt64
from spiral_stream.relational.join import join_n_to_1
from spiral_stream.sources.source import ROW

Int64 = NDArray[np.int64]


@final
class _Scanned:
    """The scanned columns; all rows are always asked for."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table
        self.schema = table.schema

    def fetch(self, ordinals: UInt64, columns: Sequence[str]) -> pa.Table:
        assert len(ordinals) == len(self._table)
        return self._table.select(list(columns))


@final
class Frame:
    """Rows that steps keep or drop.

    Attributes:
        table: N rows of base columns, with `ROW`.
        rights: joined relations, and shape [N]: their matching rows, -1 for none.
    """

    def __init__(self, table: pa.Table) -> None:
        self.table = table
        self.rights: list[tuple[Fetchable, Int64]] = []

    @property
    def rows(self) -> UInt64:
        """Shape [N], uint64: the number of each row."""
        ordinals: UInt64 = self.table.column(ROW).to_numpy()
        return ordinals

    def values(self, exprs: Sequence[Expr], kinds: Sequence[pa.DataType]) -> pa.Table:
        """Return the values of expressions over leaves, for all rows."""
        if not exprs:
            return pa.table({})
        rights = [Right(relation, index.__getitem__) for relation, index in self.rights]
        names = [f"v{i}" for i in range(len(exprs))]
        schema = pa.schema(list(zip(names, kinds, strict=True)))
        reader = Columns(
            FetchedColumns(_Scanned(self.table)), lambda at: at, rights, dict(zip(names, exprs, strict=True)), schema
        )
        return reader.fetch(np.arange(len(self.table), dtype=np.uint64), names)

    def take(self, indices: NDArray[np.integer[Any]]) -> None:
        """Keep the rows at these places, in this order."""
        if len(indices) == len(self.table) and np.array_equal(indices, np.arange(len(indices))):
            return
        self.table = self.table.take(pa.array(indices))
        self.rights = [(relation, index[indices]) for relation, index in self.rights]

    def keep(self, predicate: Expr) -> None:
        """Keep the rows that pass."""
        mask = self.values((predicate,), [pa.bool_()]).column(0)
        self.take(np.flatnonzero(pc.fill_null(mask, fill_value=False).to_numpy()))

    def match(self, left: pa.Table, keys: pa.Table, how: str) -> tuple[Int64, UInt64]:
        """Look up the matching row of a joined relation, and keep the rows that the join keeps.

        Args:
            left: the keys of all rows.
            keys: of the joined relation.
            how: ``inner``, ``left``, ``semi`` or ``anti``.

        Returns:
            for the rows that are left: the place of their match in ``keys``, -1 for none; and
            the numbers of the rows that had no match.

        Raises:
            FanOutError: a row has several matches.
        """
        index = join_n_to_1(left, keys, how=how, on=", ".join(left.column_names))
        hit = index >= 0
        missed = self.rows[~hit]
        if how != "left":
            survivors = np.flatnonzero(~hit if how == "anti" else hit)
            self.take(survivors)
            index = index[survivors]
        return index, missed
