"""Statistics of one column of a shard: counts, extremes, frequent values and sketches, in a form that shards can merge.

    values, counts     the different values and their rows; of a column with many values those with most rows
    text, lengths      of texts and decimals: the least, the greatest, and then the values, as UTF-8
    points             quantiles; nothing of texts
    hashes, registers  how many different values there are
    sum                of numbers and moments, as the bits of a float

Numbers, moments and booleans are words of 64 bits, whose type the column says. Nulls and NaN are counted and left out.
Texts are told apart by hashes of 64 bits: two of 10,000 values share one with a probability of 10^-12.

Different values: HyperLogLog (Flajolet et al. 2007) with 2,048 registers of a 64-bit hash, standard error 2.3 %, and
linear counting where few registers are used. A shard with few values stores their hashes instead.

Quantiles: each shard has 65 of its sorted values at equal steps. They are merged once, weighted by the rows they stand
for, so a rank is wrong by at most 1/64 of the rows, however they are spread over shards.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Final, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spiral_stream.derived import _runs
from spiral_stream.derived.derivation import Derivation, Piece, ShardRows

UInt8 = NDArray[np.uint8]
UInt64 = NDArray[np.uint64]

BITS: Final = 11
REGISTERS: Final = 1 << BITS
FEW: Final = REGISTERS // 8  # hashes of as many values take no more bytes than registers
STEPS: Final = 64
_ALPHA: Final = 0.7213 / (1 + 1.079 / REGISTERS)


def registers_of(hashes: UInt64, into: UInt8 | None = None) -> UInt8:
    """Return the registers of some hashes.

    Args:
        hashes: shape [N], evenly spread.
        into: registers of others, which become those of both.
    """
    registers = np.zeros(REGISTERS, np.uint8) if into is None else into
    _runs.registers(np.ascontiguousarray(hashes), registers)
    return registers


def estimated_distinct(registers: UInt8) -> int:
    """Return about how many different values were hashed."""
    unused = int((registers == 0).sum())
    found = _ALPHA * REGISTERS**2 / float(np.exp2(-registers.astype(np.float64)).sum())
    if found <= 2.5 * REGISTERS and unused:
        found = REGISTERS * math.log(REGISTERS / unused)
    return round(found)


def points_at(rows: int) -> NDArray[np.int64]:
    """Return which of some sorted values are kept: the first and the last, and those at equal steps between."""
    if rows <= STEPS + 1:
        return np.arange(rows)
    return np.arange(STEPS + 1, dtype=np.int64) * (rows - 1) // STEPS


def quantile_points(order: NDArray[np.int64], weights: NDArray[np.float64], rows: int) -> NDArray[np.int64]:
    """Return which points of all shards are nearest to the minimum, the quartiles and the maximum.

    Args:
        order: shape [P]: the points of all shards, sorted by their value.
        weights: shape [P]: how many values each point stands for.
        rows: how many values there are.

    Returns:
        shape [5]: places in the points as they were given, end to end.
    """
    sorted_weights = weights[order]
    middle = np.cumsum(sorted_weights) - sorted_weights / 2
    at = np.searchsorted(middle, np.array([0.25, 0.5, 0.75]) * rows)
    inner = np.minimum(at, len(order) - 1)
    found: NDArray[np.int64] = order[np.concatenate([[0], inner, [len(order) - 1]])]
    return found


MOST: Final = 16  # values that are kept of a column with many
SLOTS: Final[Mapping[str, np.dtype[Any]]] = MappingProxyType(
    {
        "values": np.dtype("<u8"),
        "counts": np.dtype("<u4"),
        "text": np.dtype("u1"),
        "lengths": np.dtype("<u4"),
        "points": np.dtype("<u8"),
        "hashes": np.dtype("<u8"),
        "registers": np.dtype("u1"),
    }
)
_TEXT_BYTES: Final = 64  # of a value whose type has no width; chunks of shards are cut by it
LONGEST_TEXT: Final = 1024  # bytes of a text that is kept of a column with many; a longer one is no label
VERSION: Final = 2  # since the sum is kept
_TEXT_VERSION: Final = 3  # since long texts are not kept


@final
@dataclass(frozen=True, slots=True)
class ColumnFacts(Derivation):
    """Facts of one column.

    Args:
        name: of the column.
        kind: its type, without the dictionary.
        most: at most as many values are kept with all their counts; 0 keeps those with most rows only.
    """

    KIND: ClassVar[str] = "facts"
    SUMMARY: ClassVar[tuple[str, ...]] = ("nulls", "nans", "distinct", "bytes", "whole", "sum")
    name: str
    kind: pa.DataType
    most: int

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def slots(self) -> Mapping[str, np.dtype[Any]]:
        return SLOTS

    @property
    def row_bytes(self) -> int:
        return max(1, self.kind.bit_width // 8) if is_word(self.kind) else _TEXT_BYTES

    def facts(self) -> dict[str, object]:
        return {
            "column": self.name,
            "type": str(self.kind),
            "values": self.most,
            "version": VERSION if is_word(self.kind) else _TEXT_VERSION,
        }

    def piece(self, shard: ShardRows) -> Piece:
        column = shard.table.column(0)
        nulls = column.null_count
        column = column.drop_null() if nulls else column
        if pa.types.is_dictionary(column.type):
            column = column.cast(self.kind)
        if not is_word(self.kind):
            return self._of_texts(column, nulls)
        array = (
            column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays([pa.array([], self.kind), *column.chunks])
        )
        return self._of_words(array, nulls)

    def _of_words(self, array: pa.Array, nulls: int) -> Piece:
        values = np.sort(_words(array))
        nans = int(np.isnan(values).sum()) if values.dtype.kind == "f" and len(values) and np.isnan(values[-1]) else 0
        values = values[: len(values) - nans]
        begins, counts = _equal_runs(values)
        bits = _bits(values[begins])
        hashes = np.zeros(len(bits), np.uint64)
        _runs.hash_words(bits, hashes, 0)
        at = self._frequent_at(counts)
        arrays = {
            "values": bits[at],
            "counts": counts[at].astype("<u4"),
            "points": _bits(values[points_at(len(values))]),
            **_sketch(hashes),
        }
        size, distinct = len(array) * self.kind.bit_width // 8, len(bits) + (nans > 0)
        with np.errstate(invalid="ignore", over="ignore"):  # infinities of both signs have no sum
            total = float(values.sum(dtype=np.float64))
        return Piece(arrays, self._summary(nulls, nans, distinct, size, total, whole=len(counts[at]) == len(bits)))

    def _of_texts(self, column: pa.ChunkedArray, nulls: int) -> Piece:
        text = (column if _has_length(self.kind) else column.cast(pa.utf8())).cast(pa.large_utf8())
        array = (
            text.chunk(0) if text.num_chunks == 1 else pa.concat_arrays([pa.array([], pa.large_utf8()), *text.chunks])
        )
        ends = np.frombuffer(array.buffers()[1] or bytes(8), np.int64)[array.offset :][: len(array) + 1]
        hashes, rows = np.zeros(len(array), np.uint64), np.empty(len(array), np.uint64)
        _runs.hash_spans(ends, array.buffers()[2] or b"", hashes, 0)
        _runs.sort(hashes, rows)
        begins, counts = _equal_runs(hashes)
        least = pc.min_max(array if _has_length(self.kind) else column)
        least = [
            b"" if value is None else str(value).encode() for value in (least["min"].as_py(), least["max"].as_py())
        ]
        firsts = rows[begins].astype(np.int64)
        at = self._frequent_at(counts, ends[firsts + 1] - ends[firsts])
        bounds = array.take(pa.array(rows[begins[at]]))
        offsets = np.frombuffer(bounds.buffers()[1] or bytes(8), np.int64)[: len(bounds) + 1]
        data = np.frombuffer(b"".join([*least, bounds.buffers()[2] or b""]), np.uint8)
        lengths = np.array([*map(len, least)], "<u4")
        arrays = {
            "counts": counts[at].astype("<u4"),
            "text": data,
            "lengths": np.concatenate([lengths, np.diff(offsets).astype("<u4")]),
            **_sketch(hashes[begins]),
        }
        size = int(ends[-1] - ends[0]) if _has_length(self.kind) else len(array) * self.kind.bit_width // 8
        total = pc.sum(column.cast(pa.float64())).as_py() if pa.types.is_decimal(self.kind) else None
        return Piece(arrays, self._summary(nulls, 0, len(begins), size, total or 0.0, whole=len(bounds) == len(begins)))

    def _frequent_at(self, counts: NDArray[np.int64], sizes: NDArray[np.int64] | None = None) -> Any:
        """Places of the values that are kept: all of them, or those with most rows that occur more than once.

        Of texts that are long together, whose bytes are ``sizes``, all would be a copy of the column.
        """
        short = sizes is None or int(sizes.sum()) <= _TEXT_BYTES * self.most
        if len(counts) <= self.most and short:
            return slice(None)
        often = np.flatnonzero(counts > 1) if sizes is None else np.flatnonzero((counts > 1) & (sizes <= LONGEST_TEXT))
        return np.sort(often[np.argsort(-counts[often], kind="stable")[:MOST]])

    def _summary(self, nulls: int, nans: int, distinct: int, size: int, total: float, *, whole: bool) -> dict[str, int]:
        bits = int(np.float64(total).view(np.int64))
        return {"nulls": nulls, "nans": nans, "distinct": distinct, "bytes": size, "whole": int(whole), "sum": bits}


def is_word(kind: pa.DataType) -> bool:
    """Whether values of a type are words of at most 64 bits: numbers, moments, booleans."""
    return bool(pa.types.is_primitive(kind) and not pa.types.is_decimal(kind))


def restored(bits: UInt64, kind: pa.DataType) -> pa.Array:
    """Return words as values of their type."""
    if pa.types.is_floating(kind):
        return pa.array(bits.view("<f8")).cast(kind)
    if pa.types.is_boolean(kind):
        return pa.array(bits.astype(np.bool_))
    if pa.types.is_unsigned_integer(kind):
        return pa.array(bits).cast(kind)
    integers = pa.array(bits.view("<i8"))
    return integers.cast(kind) if pa.types.is_integer(kind) else integers.cast(_integer(kind)).view(kind)


def _integer(kind: pa.DataType) -> pa.DataType:
    return pa.int32() if kind.bit_width == pa.int32().bit_width else pa.int64()


def _words(array: pa.Array) -> NDArray[Any]:
    kind = array.type
    if pa.types.is_boolean(kind):
        return np.asarray(array.cast(pa.uint8()).to_numpy())
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        array = array.view(_integer(kind))
    return np.asarray(array.to_numpy(zero_copy_only=False))


def _bits(values: NDArray[Any]) -> UInt64:
    if values.dtype.kind == "f":
        return values.astype("<f8").view("<u8")
    return values.astype("<u8" if values.dtype.kind == "u" else "<i8").view("<u8")


def _has_length(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _equal_runs(values: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where the runs of equal values begin, and how long they are."""
    changes = np.flatnonzero(values[1:] != values[:-1]) + 1
    begins = np.empty(len(changes) + (len(values) > 0), np.int64)
    begins[:1], begins[1:] = 0, changes
    counts = np.empty_like(begins)
    counts[:-1], counts[-1:] = begins[1:] - begins[:-1], len(values) - begins[-1:]
    return begins, counts


def _sketch(hashes: UInt64) -> dict[str, NDArray[Any]]:
    return {"hashes": hashes} if len(hashes) <= FEW else {"registers": registers_of(hashes)}
