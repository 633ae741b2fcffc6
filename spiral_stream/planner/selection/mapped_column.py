"""A column of lists that lies in the source's own mapped files: batches read it as a kept column, and nothing is kept."""

from typing import Any, ClassVar, Final, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.catalog.relation.reader import OpenRelation
from spiral_stream.derived.kinds.column import Column
from spiral_stream.fields.ragged import Ragged
from spiral_stream.sources.source import Spans

UInt64 = NDArray[np.uint64]
Int64 = NDArray[np.int64]

_LOOKED_AT: Final = 256  # rows, to tell how long lists are


@final
class MappedColumn:
    """One column of an open relation, with the methods of `KeptColumn` that lists have. Thread-safe.

    Args:
        relation: it is closed by its owner.
        name: one of its `in_place`.
    """

    copies: ClassVar[bool] = False

    def __init__(self, relation: OpenRelation, name: str) -> None:
        self.column = Column(name, relation.schema.field(name).type)
        self._relation, self._starts = relation, relation.manifest.starts

    @property
    def bytes(self) -> int:
        """Bytes of all items, as some rows say."""
        total = self._relation.manifest.total
        some = np.unique(np.linspace(0, total - 1, min(total, _LOOKED_AT)).astype(np.uint64))
        found = self._relation.spans(some, self.column.name)
        return int(found.lengths.mean() * found.item_bytes * total) if len(some) else 0

    def lengths(self, shards: Int64, offsets: UInt64) -> Int64:
        """Return the items of rows; arguments as in `KeptColumn`."""
        return self._spans(shards, offsets).lengths

    def ragged(self, shards: Int64, offsets: UInt64) -> Ragged:
        """Return rows as addresses of mapped memory; arguments as in `KeptColumn`."""
        found = self._spans(shards, offsets)
        item_bytes = np.full(len(found.lengths), found.item_bytes, np.uint8)
        return Ragged(found.addresses, found.lengths, item_bytes, found.signed, found.owners)

    def arrow(self, shards: Int64, offsets: UInt64) -> Any:
        """Return rows as an Arrow array of the column's type; arguments as in `KeptColumn`."""
        name = self.column.name
        found = self._relation.fetch(self._ordinals(shards, offsets), [name]).column(name).combine_chunks()
        return found if isinstance(found, pa.Array) else found.chunk(0)

    def _spans(self, shards: Int64, offsets: UInt64) -> Spans:
        return self._relation.spans(self._ordinals(shards, offsets), self.column.name)

    def _ordinals(self, shards: Int64, offsets: UInt64) -> UInt64:
        return self._starts[shards] + offsets
