"""Gather rows of narrow columns from mapped pieces: as Arrow arrays, or as addresses where rows are lists.

A row of fixed width costs one copy (0.1 us in a shuffled batch, a cache miss included), a text two.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.derived import _gather, _rows
from spiral_stream.derived.kinds.column import FIXED, LIST, TEXT, Column, item_of
from spiral_stream.derived.pieces import Pieces
from spiral_stream.fields.ragged import Ragged

UInt64 = NDArray[np.uint64]
Int64 = NDArray[np.int64]

_WORD: Final = 8  # bytes of the widest item
_PAIR: Final = np.array([16])  # bytes: where a span begins and ends
_TEXT_END: Final = 4
_MOST_TEXT: Final = (1 << 31) - 1  # bytes of an Arrow array of texts


def located(starts: UInt64, ordinals: UInt64) -> tuple[Int64, UInt64]:
    """Return the shard of each ordinal, and its offset there.

    Args:
        starts: shape [S + 1], uint64: the first ordinal of each shard, and the end.
        ordinals: shape [P], uint64, below the end.

    Returns:
        shape [P] each: int64 shards, uint64 offsets.
    """
    shards, offsets = np.empty(len(ordinals), np.int64), np.empty(len(ordinals), np.uint64)
    _gather.locate(np.ascontiguousarray(starts), np.ascontiguousarray(ordinals), shards, offsets)
    return shards, offsets


class ColumnPieces(Protocol):
    """The pieces of one column, with the arrays and the numbers that `Column` names."""

    @property
    def summary(self) -> Mapping[str, Int64]:
        """Name -> shape [S], int64."""
        ...

    def owners(self) -> tuple[Any, ...]:
        """Return what keeps the mapped memory alive."""
        ...

    def addresses(self, slot: str, shards: Int64) -> UInt64:
        """Shape [P] -> [P]: where the array of each shard begins."""
        ...

    def item_addresses(self, slot: str, shards: Int64, offsets: UInt64, width: int) -> UInt64:
        """Shape [P] -> [P]: where items lie."""
        ...

    def table(self, slot: str) -> UInt64:
        """Shape [S]: where the array of every shard begins; 0 where it is not mapped yet."""
        ...

    def verify(self, addresses: UInt64, sizes: Int64) -> None:
        """Verify what is read."""
        ...


@final
class PiecesOf:
    """Those of the arrays and numbers of pieces whose names begin with a prefix, without it."""

    def __init__(self, pieces: Pieces, prefix: str) -> None:
        self._pieces, self._prefix = pieces, prefix
        summary = {name: values for name, values in pieces.summary.items() if name.startswith(prefix)}
        self.summary: Mapping[str, Int64] = {name.removeprefix(prefix): values for name, values in summary.items()}

    def owners(self) -> tuple[Any, ...]:
        """Return what keeps the mapped memory alive."""
        return self._pieces.owners()

    def addresses(self, slot: str, shards: Int64) -> UInt64:
        """Where the array of each shard begins; see `Pieces`."""
        return self._pieces.addresses(self._prefix + slot, shards)

    def item_addresses(self, slot: str, shards: Int64, offsets: UInt64, width: int) -> UInt64:
        """Where items lie; see `Pieces`."""
        return self._pieces.item_addresses(self._prefix + slot, shards, offsets, width)

    def table(self, slot: str) -> UInt64:
        """Where the array of every shard begins; see `Pieces`."""
        return self._pieces.table(self._prefix + slot)

    def verify(self, addresses: UInt64, sizes: Int64) -> None:
        """Verify what is read; see `Pieces`."""
        self._pieces.verify(addresses, sizes)

    def array(self, slot: str, shard: int) -> NDArray[Any]:
        """One array of one shard; see `Pieces`."""
        return self._pieces.array(self._prefix + slot, shard)


@final
class NarrowColumn:
    """One kept column of a relation. Thread-safe."""

    def __init__(self, column: Column, pieces: ColumnPieces) -> None:
        self.column, self.pieces = column, pieces
        self._nulls = bool(pieces.summary["nulls"].any())
        self._null_of = pieces.summary["nulls"] > 0
        self._item = pieces.summary["item_bytes"]
        self._signed = bool(pieces.summary["negative"].any())
        item = item_of(column.kind)
        self.width = 0 if item is None else max(1, item[0].bit_width // 8) * item[1]
        self._row_bytes = np.array([self.width])
        self._form, self._wrap = column.form, _wrapper(column.kind)

    @property
    def is_lossless(self) -> bool:
        """Whether the pieces hold every value: no list has null items, one sign fits all, and int64 holds all."""
        summary = self.pieces.summary
        high = summary["high"] if self._signed else summary["high"] & (self._item == _WORD)
        return not summary["null_items"].any() and not high.any()

    @property
    def bytes(self) -> int:
        """Bytes of all values as Arrow holds them: a text has four more."""
        summary = self.pieces.summary
        return int(summary["bytes"].sum()) + (_TEXT_END * int(summary["rows"].sum()) if self._form == TEXT else 0)

    def lengths(self, shards: Int64, offsets: UInt64) -> Int64:
        """Return the items of rows of lists: shape [P], int64. No list is read."""
        _, sizes, item = self._ends(shards, offsets)
        return sizes // item

    def arrow(self, shards: Int64, offsets: UInt64) -> pa.Array:
        """Return rows as an Arrow array of the column's type.

        Args:
            shards: shape [P], from `located`.
            offsets: shape [P], from `located`.

        Raises:
            DamageError: a piece is not what was written.
        """
        valid = self._valid(shards, offsets) if self._nulls else None
        if self._form == FIXED:
            found = self._fixed(shards, offsets, valid)
        elif self._form == LIST:
            found = self._lists(shards, offsets, valid)
        else:
            found = self._texts(shards, offsets, valid)
        return found

    def ragged(self, shards: Int64, offsets: UInt64) -> Ragged:
        """Return rows of lists as addresses of mapped memory; a null is an empty list.

        Raises:
            DamageError: a piece is not what was written.
        """
        begins, sizes, item = self._spans(shards, offsets)
        return Ragged(begins, sizes // item, item.astype(np.uint8), self._signed, self.pieces.owners())

    @property
    def copies(self) -> bool:
        """Whether `RowCopies` gives every row: no row is null, and rows have a fixed width or are texts."""
        return self._form != LIST and not self._nulls

    @property
    def is_text(self) -> bool:
        """Whether rows are texts."""
        return self._form == TEXT

    def make_ready(self, shards: Int64, offsets: UInt64) -> None:
        """Map and verify what rows touch; arguments as in `arrow`.

        Raises:
            DamageError: a piece is not what was written.
        """
        if self._form == FIXED:
            self._places(shards, offsets)
        else:
            self._spans(shards, offsets)

    def mapped(self) -> tuple[int, UInt64, UInt64 | None, Int64 | None, tuple[Any, ...]]:
        """Return the column as `_rows.Rows` takes it, as far as its pieces are mapped; of lists there is none."""
        found = self.pieces
        ends, item = (found.table("ends"), self._item) if self.is_text else (None, None)
        data = found.table("data")  # before the owners: what it says is mapped has one of them
        return 0 if self.is_text else self.width, data, ends, item, found.owners()

    def text_bytes(self, rows: int, nbytes: int) -> int:
        """Return the bytes that Arrow would hold some texts in, which have so many themselves."""
        return nbytes + (_WORD if self.column.kind == pa.large_utf8() else _TEXT_END) * rows

    def _places(self, shards: Int64, offsets: UInt64) -> UInt64:
        """Addresses of rows of fixed width; verified."""
        found = self.pieces
        addresses = found.item_addresses("data", shards, offsets, self.width)
        found.verify(addresses, self._row_bytes)
        return addresses

    def _fixed(self, shards: Int64, offsets: UInt64, valid: Any) -> pa.Array:
        data = np.empty(len(shards) * self.width, np.uint8)
        if self.width:
            _gather.copy(self._places(shards, offsets), self.width, data)
        return self._wrap(len(shards), data, valid)

    def _spans(self, shards: Int64, offsets: UInt64) -> tuple[UInt64, Int64, Int64]:
        """Addresses and bytes of spans, and bytes of their items; verified."""
        begins, sizes, item = self._ends(shards, offsets)
        self.pieces.verify(begins, sizes)
        return begins, sizes, item

    def _ends(self, shards: Int64, offsets: UInt64) -> tuple[UInt64, Int64, Int64]:
        found = self.pieces
        ends = found.item_addresses("ends", shards, offsets, _WORD)
        found.verify(ends, _PAIR)
        begins, sizes = np.empty(len(shards), np.uint64), np.empty(len(shards), np.int64)
        item = self._item[shards]
        _gather.spans(ends, found.addresses("data", shards), item, begins, sizes)
        return begins, sizes, item

    def _texts(self, shards: Int64, offsets: UInt64, valid: Any) -> pa.Array:
        begins, sizes, _ = self._spans(shards, offsets)
        large = self.column.kind == pa.large_utf8()
        ends = np.zeros(len(shards) + 1, np.int64)
        np.cumsum(sizes, out=ends[1:])
        data = np.empty(int(ends[-1]), np.uint8)
        _gather.copy_spans(begins, sizes, data)
        if large or ends[-1] > _MOST_TEXT:
            buffers = [valid, pa.py_buffer(ends), pa.py_buffer(data)]
            return pa.Array.from_buffers(pa.large_utf8(), len(shards), buffers)
        return pa.Array.from_buffers(
            pa.utf8(), len(shards), [valid, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(data)]
        )

    def _lists(self, shards: Int64, offsets: UInt64, valid: Any) -> pa.Array:
        found = self.ragged(shards, offsets).arrow().cast(self.column.kind)
        if valid is None:
            return found
        kind, (_, ends), values = found.type, found.buffers()[:2], found.values
        return pa.Array.from_buffers(kind, len(found), [valid, ends], offset=found.offset, children=[values])

    def _valid(self, shards: Int64, offsets: UInt64) -> Any:
        """The validity bitmap of rows; None if all of them have values."""
        some = self._null_of[shards]
        if not some.any():
            return None
        out = np.ones(len(shards), np.uint8)
        at = np.flatnonzero(some)
        addresses = self.pieces.addresses("valid", shards[at]) + offsets[at]
        self.pieces.verify(addresses, np.ones(len(at), np.int64))
        bits = np.empty(len(at), np.uint8)
        _gather.copy(addresses, 1, bits)
        out[at] = bits
        return None if out.all() else pa.py_buffer(np.packbits(out, bitorder="little"))


@final
class RowCopies:
    """Copies rows of several kept columns into a batch, in one call. Thread-safe.

    Args:
        columns: that are `NarrowColumn.copies`.
    """

    def __init__(self, columns: Sequence[NarrowColumn]) -> None:
        self._columns = [column for column in columns if column.is_text or column.width]  # no bytes, nothing to do
        self._at = [at for at, column in enumerate(columns) if column.is_text or column.width]
        self._rows = _rows.Rows([column.mapped() for column in self._columns])

    def fill(self, shards: Int64, offsets: UInt64, outs: Sequence[NDArray[Any] | None]) -> list[Any]:
        """Copy P rows of every column.

        Args:
            shards: shape [P], from `located`.
            offsets: shape [P], from `located`.
            outs: of each column an array of shape [P, ...], contiguous, with items as Arrow's; a boolean has a byte. None for
                a column of texts.

        Returns:
            by column the array, or the texts with their bytes in Arrow: ``(list[str], int)``.

        Raises:
            DamageError: a piece is not what was written.
        """
        filled: list[Any] = [outs[at] for at in self._at]
        for _ in range(2 * len(self._columns) + 1):  # a column lacks something once, one of texts twice
            lacking = self._rows.fill(shards, offsets, filled)
            if lacking < 0:
                break
            self._columns[lacking].make_ready(shards, offsets)
            self._rows.refresh(lacking, self._columns[lacking].mapped())
        assert lacking < 0, self._columns[lacking].column.name
        found = list[Any](outs)
        for at, column, each in zip(self._at, self._columns, filled, strict=True):
            found[at] = (each[0], column.text_bytes(len(shards), each[1])) if column.is_text else each
        return found


def _wrapper(kind: pa.DataType) -> Callable[[int, NDArray[np.uint8], Any], pa.Array]:
    """Return what makes an array of a type of fixed width around gathered bytes: of rows, data and validity."""
    if isinstance(kind, pa.FixedShapeTensorType):
        storage = _wrapper(kind.storage_type)
        return lambda count, data, valid: pa.ExtensionArray.from_storage(kind, storage(count, data, valid))
    if pa.types.is_fixed_size_list(kind):
        items, size = _wrapper(kind.value_type), kind.list_size
        return lambda count, data, valid: pa.Array.from_buffers(
            kind, count, [valid], children=[items(count * size, data, None)]
        )
    if pa.types.is_boolean(kind):
        return lambda count, data, valid: pa.Array.from_buffers(
            kind, count, [valid, pa.py_buffer(np.packbits(data, bitorder="little"))]
        )
    return lambda count, data, valid: pa.Array.from_buffers(kind, count, [valid, pa.py_buffer(data)])
