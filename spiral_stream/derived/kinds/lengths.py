"""How many items each list of a column has: one uint32 per row of a shard, laid out as a column of numbers.

For lists that are too large to be kept: who shares a batch is then decided without reading them again.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spiral_stream.derived.derivation import ByRange, Derivation, Piece, ShardRows, Spool
from spiral_stream.derived.kinds.column import Column


@final
@dataclass(frozen=True, slots=True)
class ListLengths(Derivation):
    """The lengths of one column of lists; a null is an empty list.

    Args:
        name: the column.
        kind: its type.
    """

    KIND: ClassVar[str] = "lengths"
    SUMMARY: ClassVar[tuple[str, ...]] = Column.SUMMARY
    VERSION: ClassVar[int] = 1
    name: str
    kind: pa.DataType

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def numbers(self) -> Column:
        """The column of numbers that the pieces hold."""
        return Column(self.name, pa.uint32())

    @property
    def slots(self) -> Mapping[str, np.dtype[Any]]:
        return self.numbers.slots

    def facts(self) -> dict[str, object]:
        return {"column": self.name, "type": str(self.kind), "version": self.VERSION}

    def piece(self, shard: ShardRows) -> Piece:
        return self.numbers.piece(self.lengths(shard))

    def by_range(self, rows: int, spool: Callable[[str], Spool]) -> ByRange:
        return _LengthsByRange(self, self.numbers.by_range(rows, spool))

    def lengths(self, shard: ShardRows) -> ShardRows:
        """Return rows with the lengths in place of the lists."""
        lengths = pc.fill_null(pc.list_value_length(shard.table.column(self.name)), 0).cast(pa.uint32())
        return ShardRows(shard.rows, shard.offsets, pa.table({self.name: lengths}))


@final
class _LengthsByRange(ByRange):
    """The lengths of a shard whose rows come a range at a time."""

    def __init__(self, lengths: ListLengths, numbers: ByRange) -> None:
        self._lengths, self._numbers = lengths, numbers

    def add(self, some: ShardRows) -> None:
        self._numbers.add(self._lengths.lengths(some))

    def end(self) -> Piece:
        return self._numbers.end()
