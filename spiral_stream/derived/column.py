"""The values of one narrow column for all rows of a shard: mapped, and gathered by row without decoding.

    fixed width    values
    text           ends [rows + 1], data
    list           ends [rows + 1], data: integers in the fewest bytes that hold those of the shard
    any            valid [rows], where a row is null

Fixed width covers numbers, booleans, moments, and fixed-size lists and tensors of numbers. Null items inside of lists
are counted, not kept: such a column is read from its source.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spiral_stream.derived.derivation import Derivation, Piece, ShardRows

FIXED, TEXT, LIST = "fixed", "text", "list"
_WIDTHS: Final = (1, 2, 4, 8)
_WIDEST_BITS: Final = 64  # intervals have 128, and no number type holds one
_INT64: Final = np.dtype("<i8")
_BYTE: Final = np.dtype("u1")
_NONE: Final = np.zeros(1, np.int64)


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
    kind = np.dtype(array.type.to_pandas_dtype()) if plain else np.dtype(f"i{width}")
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
