"""The layout of one narrow column of a shard, mapped from disk and gathered by row without decoding.

    fixed width    values
    text           ends [rows + 1], data
    list           ends [rows + 1], data: integers in the fewest bytes that hold those of the shard
    any            valid [rows], where a row is null

Fixed width covers numbers, booleans, moments, and fixed-size lists and tensors of numbers. Null items inside of lists
are counted, not stored: such a column is read from its source.

Of lists that are too large to be stored, `ListLengths` stores how many items each has: one uint32 per row. They decide who
shares a batch without reading the lists again.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Final, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spiral_stream.derived.derivation import ByRange, Changed, Derivation, Piece, ShardRows, Spool
from spiral_stream.host_dtypes import numpy_dtype

FIXED, TEXT, LIST = "fixed", "text", "list"
_WIDTHS: Final = (1, 2, 4, 8)
_WIDEST_BITS: Final = 64  # intervals have 128, and no number type holds one
_INT64: Final = np.dtype("<i8")
_BYTE: Final = np.dtype("u1")
_NONE: Final = np.zeros(1, np.int64)
_ONES: Final = 1 << 20  # rows before the first null that are written together


@cache
def form_of(kind: pa.DataType) -> str | None:
    """Return the form in which values of a type are kept; None if they are not."""
    if item_of(kind) is not None:
        return FIXED
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return TEXT
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        child = kind.value_type
        return LIST if pa.types.is_integer(child) else None
    return None


@cache
def item_of(kind: pa.DataType) -> tuple[pa.DataType, int] | None:
    """Return the number type and how many of them make one value; None if the type has no fixed width."""
    if isinstance(kind, pa.FixedShapeTensorType):
        return item_of(kind.storage_type)
    if pa.types.is_fixed_size_list(kind):
        child = item_of(kind.value_type)
        return None if child is None else (child[0], child[1] * kind.list_size)
    if pa.types.is_primitive(kind) and kind.bit_width <= _WIDEST_BITS:
        return kind, 1
    return None


@final
@dataclass(frozen=True, slots=True)
class Column(Derivation):
    """One column of a relation.

    Args:
        name: the column.
        kind: its type.
    """

    KIND: ClassVar[str] = "columns"
    SUMMARY: ClassVar[tuple[str, ...]] = ("rows", "nulls", "bytes", "item_bytes", "null_items", "negative", "high")
    VERSION: ClassVar[int] = 1
    name: str
    kind: pa.DataType

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def form(self) -> str:
        """``fixed``, ``text`` or ``list``."""
        found = form_of(self.kind)
        assert found is not None, self.kind
        return found

    @property
    def slots(self) -> Mapping[str, np.dtype[Any]]:
        if self.form == FIXED:
            return {"data": _BYTE, "valid": _BYTE}
        return {"ends": _INT64, "data": _BYTE, "valid": _BYTE}

    @property
    def row_bytes(self) -> int | None:
        item = item_of(self.kind)
        return None if item is None else max(1, item[0].bit_width // 8) * item[1]

    def facts(self) -> dict[str, object]:
        return {"column": self.name, "type": str(self.kind), "version": self.VERSION}

    def piece(self, shard: ShardRows) -> Piece:
        column = shard.table.column(self.name)
        array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
        array = _plain(array)
        arrays = {FIXED: _fixed, TEXT: _text, LIST: _list}[self.form](array)
        summary = {name: int(arrays.pop(name, _NONE)[0]) for name in ("null_items", "negative", "high")}
        item = arrays["data"].dtype.itemsize
        arrays["data"] = arrays["data"].view(_BYTE)
        if array.null_count:
            arrays["valid"] = _valid(array).view(_BYTE)
        nulls, size = array.null_count, arrays["data"].nbytes
        return Piece(arrays, {**summary, "rows": shard.rows, "nulls": nulls, "bytes": size, "item_bytes": item})

    def by_range(self, rows: int, spool: Callable[[str], Spool]) -> ByRange:
        del rows
        return _ColumnByRange(self, spool)


@final
class _ColumnByRange(ByRange):
    """A column of a shard that is too large for memory: each range as a piece of its own, laid end to end."""

    def __init__(self, column: Column, spool: Callable[[str], Spool]) -> None:
        self._column, self._spool = column, spool
        self._spools: dict[str, Spool] = {}
        self._summaries: list[Mapping[str, int]] = []
        self._rows, self._items, self._nulls = 0, 0, False

    def add(self, some: ShardRows) -> None:
        count = len(some.table)
        piece = self._column.piece(ShardRows(count, some.offsets, some.table))
        arrays: dict[str, Any] = dict(piece.arrays)
        if "ends" in arrays:
            ends = arrays["ends"] + self._items if self._items else arrays["ends"]
            self._items = int(ends[-1])
            self._append("ends", ends[1:] if self._rows else ends)
        self._append("data", arrays["data"])
        self._nulls = self._nulls or "valid" in arrays
        if self._nulls:
            if "valid" not in self._spools:
                for begin in range(0, self._rows, _ONES):
                    self._append("valid", np.ones(min(_ONES, self._rows - begin), _BYTE))
            self._append("valid", arrays.get("valid", np.ones(count, _BYTE)))
        self._summaries.append(piece.summary)
        self._rows += count

    def end(self) -> Piece:
        if not self._summaries:
            kind = pa.schema([pa.field(self._column.name, self._column.kind)])
            return self._column.piece(ShardRows(0, np.zeros(0, np.uint64), kind.empty_table()))
        arrays: dict[str, Any] = dict(self._spools)
        summed = {name: sum(each[name] for each in self._summaries) for name in ("nulls", "bytes", "null_items")}
        negative = any(each["negative"] for each in self._summaries)
        item = max(_width(each, signed=negative) for each in self._summaries)
        high = not negative and any(each["high"] and each["item_bytes"] == item for each in self._summaries)
        if self._column.form == LIST:
            kinds = [np.dtype(f"<{'i' if s['negative'] else 'u'}{s['item_bytes']}") for s in self._summaries]
            kind = np.dtype(f"<{'i' if negative else 'u'}{item}")
            arrays["data"] = Changed(arrays["data"], lambda k, part: part.view(kinds[k]).astype(kind).view(_BYTE))
            summed["bytes"] = self._items * item
        last = {"rows": self._rows, "item_bytes": item, "negative": int(negative), "high": int(high)}
        return Piece(arrays, {**summed, **last})

    def _append(self, slot: str, array: NDArray[Any]) -> None:
        if slot not in self._spools:
            self._spools[slot] = self._spool(slot)
        self._spools[slot].append(array)


def _width(summary: Mapping[str, int], *, signed: bool) -> int:
    """Bytes of the narrowest type that holds what a range holds, where the column has negative values elsewhere."""
    twice = signed and summary["high"]
    return summary["item_bytes"] * (2 if twice else 1)


def _plain(array: pa.Array) -> pa.Array:
    return array.storage if isinstance(array, pa.ExtensionArray) else array


def _fixed(array: pa.Array) -> dict[str, NDArray[Any]]:
    inside, present = (
        0,
        None if not array.null_count else _valid(array),
    )  # per item: whether all lists around it are there
    while pa.types.is_fixed_size_list(array.type):
        size = array.type.list_size
        array = _plain(array.values.slice(array.offset * size, len(array) * size))
        present = None if present is None else np.repeat(present, size)
        if array.null_count:
            here = _valid(array)
            inside += int((~here).sum() if present is None else (present & ~here).sum())
            present = here if present is None else present & here
    return {"data": _numbers(array), "null_items": np.array([inside])}


def _valid(array: pa.Array) -> NDArray[np.bool_]:
    return np.asarray(array.is_valid().to_numpy(zero_copy_only=False))


def _text(array: pa.Array) -> dict[str, NDArray[Any]]:
    array = pc.fill_null(array.cast(pa.large_utf8()), "")
    ends = np.frombuffer(array.buffers()[1], _INT64)[array.offset : array.offset + len(array) + 1]
    return {"ends": ends - ends[0], "data": np.frombuffer(array.buffers()[2] or b"", _BYTE)[ends[0] : ends[-1]]}


def _list(array: pa.Array) -> dict[str, NDArray[Any]]:
    array = array.fill_null([]) if array.null_count else array
    ends = array.offsets.to_numpy().astype(_INT64)
    items = array.values.slice(int(ends[0]), int(ends[-1] - ends[0]))
    data, negative, high = fewest_bytes(_numbers(items))
    counted = {"null_items": items.null_count, "negative": negative, "high": high}
    return {"ends": ends - ends[0], "data": data, **{name: np.array([value]) for name, value in counted.items()}}


def _numbers(array: pa.Array) -> NDArray[Any]:
    """The numbers of an array of a primitive type; zero where there is none."""
    if pa.types.is_boolean(array.type):
        return np.asarray(pc.fill_null(array, fill_value=False).to_numpy(zero_copy_only=False)).view(_BYTE)
    width = array.type.bit_width // 8
    if array.null_count:
        zero = pa.Array.from_buffers(array.type, 1, [None, pa.py_buffer(bytes(width))])[0]
        array = array.fill_null(zero)
    plain = pa.types.is_integer(array.type) or pa.types.is_floating(array.type)
    kind = numpy_dtype(array.type) if plain else np.dtype(f"i{width}")
    if not len(array):
        return np.empty(0, kind)  # Arrow may give it a buffer that is no whole number of values
    return np.frombuffer(array.buffers()[1] or b"", kind)[array.offset : array.offset + len(array)]


def fewest_bytes(values: NDArray[Any]) -> tuple[NDArray[Any], bool, bool]:
    """Return integers in the smallest type that holds all of them.

    Values from 0 on are stored unsigned. Those that leave the highest bit free read the same as signed integers, so
    that pieces with and without negative values make one column.

    Returns:
        the values; whether there is a negative one; whether they are unsigned and use the highest bit.
    """
    low, high = (int(values.min()), int(values.max())) if len(values) else (0, 0)
    letter = "u" if low >= 0 else "i"
    width = next(w for w in _WIDTHS if np.iinfo(f"{letter}{w}").min <= low and high <= np.iinfo(f"{letter}{w}").max)
    return values.astype(f"<{letter}{width}", copy=False), low < 0, low >= 0 and high > np.iinfo(f"i{width}").max


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
