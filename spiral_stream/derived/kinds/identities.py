"""The identities of a shard's rows, as hashes in ascending order with the row of each: 12 bytes per row.

A hash is 64 bits (`_runs`): integers never share one; other values do so by chance, so whoever finds equal hashes
compares the values themselves. `repeats` finds out whether identities repeat, `with_hash` which rows may have one.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spiral_stream.derived import _gather, _runs
from spiral_stream.derived.derivation import Derivation, Piece, ShardRows
from spiral_stream.derived.pieces import Pieces

UInt64 = NDArray[np.uint64]
Int64 = NDArray[np.int64]

_HASH_BITS: Final = 64
_INTEGER, _TEXT, _DATA = 1, 2, 3  # kinds of values
NARROW: Final = 1 << 32  # rows whose numbers fit 32 bits
_SIGN: Final = 1 << 63
_SPREAD: Final = 4.0  # standard deviations in which a hash is looked for first


@final
@dataclass(frozen=True, slots=True)
class Identities(Derivation):
    """The identities of a relation's rows.

    Args:
        names: their columns.
        types: of the columns: integers, text or bytes, also as dictionaries.
        bits: of a hash; fewer than 64 are for tests.
    """

    KIND: ClassVar[str] = "identities"
    # The first null, -1 without one; the ends of the first column, as words that sort as the values do. Shards of earlier
    # versions have no ends: ``ranged`` is 0.
    SUMMARY: ClassVar[tuple[str, ...]] = ("rows", "null_column", "null_row", "ranged", "least", "greatest")
    VERSION: ClassVar[int] = 1
    names: tuple[str, ...]
    types: tuple[pa.DataType, ...]
    bits: int = _HASH_BITS

    @property
    def columns(self) -> tuple[str, ...]:
        return self.names

    @property
    def slots(self) -> Mapping[str, np.dtype[Any]]:
        return {"hashes": np.dtype("<u8"), "rows": np.dtype("<u4"), "wide_rows": np.dtype("<u8")}

    @property
    def row_bytes(self) -> int | None:
        kinds = [_plain(kind) for kind in self.types]
        return sum(kind.bit_width // 8 for kind in kinds) if all(map(pa.types.is_integer, kinds)) else None

    def facts(self) -> dict[str, object]:
        types = [str(_plain(kind)) for kind in self.types]
        return {"columns": list(self.names), "types": types, "bits": self.bits, "version": self.VERSION}

    def piece(self, shard: ShardRows) -> Piece:
        columns = [shard.table.column(name) for name in self.names]
        hashes = self.hashes(columns)
        wide = len(hashes) > NARROW
        rows = np.empty(len(hashes), np.uint64 if wide else np.uint32)
        _runs.sort(hashes, rows)
        nulls = [k for k, column in enumerate(columns) if column.null_count]
        at = _first_null(columns[nulls[0]]) if nulls else -1
        least, greatest = _ends(columns[0])
        summary = {
            "rows": shard.rows,
            "null_column": nulls[0] if nulls else -1,
            "null_row": at,
            "ranged": int(not nulls and len(hashes) > 0),
            "least": least,
            "greatest": greatest,
        }
        return Piece({"hashes": hashes, "wide_rows" if wide else "rows": rows}, summary)

    def hashes(self, columns: Sequence[pa.ChunkedArray]) -> UInt64:
        """Return the hash of each row: shape [rows], uint64. A null counts as 0, or as an empty text.

        Args:
            columns: the values, of the types given.
        """
        out = np.zeros(len(columns[0]), np.uint64)
        for column in columns:
            at = 0
            for chunk in column.chunks:
                _fold(chunk, out[at : at + len(chunk)])
                at += len(chunk)
        if self.bits < _HASH_BITS:
            out &= np.uint64((2**self.bits - 1) << (_HASH_BITS - self.bits))
        return out

    def hash_of(self, values: Sequence[Any]) -> int:
        """Return the hash of one identity.

        Raises:
            ArrowException: a value is not of its column's type; also OverflowError, TypeError or ValueError.
        """
        kinds = [_plain(kind) for kind in self.types]
        columns = [pa.chunked_array([pa.array([v], kind)]) for v, kind in zip(values, kinds, strict=True)]
        return int(self.hashes(columns)[0])


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _ends(column: pa.ChunkedArray) -> tuple[int, int]:
    """The least and the greatest value as signed words: unequal words are in the order of the values."""
    kind = _plain(column.type)
    column = column.cast(kind) if pa.types.is_dictionary(column.type) else column
    ends = pc.min_max(column if pa.types.is_integer(kind) else column.cast(pa.large_binary()))
    return _word(ends["min"].as_py(), kind), _word(ends["max"].as_py(), kind)


def _word(value: Any, kind: pa.DataType) -> int:
    if value is None:
        return 0
    if pa.types.is_integer(kind):
        return int(value) - (_SIGN if pa.types.is_unsigned_integer(kind) else 0)
    return int.from_bytes(value[:8].ljust(8, b"\0"), "big") - _SIGN


def apart(pieces: Pieces, fresh: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Shape [S] -> [S], bool: shards whose first identity column has no value in the range of any fresh shard."""
    ranged, least, greatest = (pieces.summary[name] for name in ("ranged", "least", "greatest"))
    if not fresh.any() or not ranged[fresh].all():
        return np.zeros(len(fresh), np.bool_)
    order = np.argsort(least[fresh])
    begins, ends = least[fresh][order], np.maximum.accumulate(greatest[fresh][order])
    below = np.searchsorted(begins, greatest, side="right")  # fresh shards that begin before this one ends
    overlaps = (below > 0) & (ends[np.maximum(below - 1, 0)] >= least)
    found: NDArray[np.bool_] = (ranged > 0) & ~overlaps & ~fresh
    return found


def _first_null(column: pa.ChunkedArray) -> int:
    return int(np.argmax(column.is_null().to_numpy()))


def _fold(array: pa.Array, hashes: UInt64) -> None:
    """Fold one more column into the hashes of its rows."""
    array = array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
    kind = array.type
    if pa.types.is_integer(kind):
        word = pa.uint64() if pa.types.is_unsigned_integer(kind) else pa.int64()
        words = (array.fill_null(0) if array.null_count else array).cast(word)
        _runs.hash_words(
            np.frombuffer(words.buffers()[1] or b"", np.uint64)[words.offset :][: len(words)], hashes, _INTEGER
        )
        return
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    spans = (array.fill_null("" if text else b"") if array.null_count else array).cast(pa.large_binary())
    ends = np.frombuffer(spans.buffers()[1], np.int64)[spans.offset :][: len(spans) + 1]
    _runs.hash_spans(ends, spans.buffers()[2] or b"", hashes, _TEXT if text else _DATA)


def rows_of(pieces: Pieces, shard: int) -> NDArray[Any]:
    """Return the rows of a shard in the order of their hashes: unsigned integers."""
    return pieces.array("wide_rows" if pieces.counts["wide_rows"][shard] else "rows", shard)


def with_hash(pieces: Pieces, wanted: int) -> tuple[Int64, UInt64]:
    """Return the rows whose identity has this hash: their shards, and their offsets there.

    Hashes are spread evenly, so a row is looked for near the place that its hash says: one block per shard is read.

    Raises:
        DamageError: a piece is not what was written.
    """
    counts = pieces.counts["hashes"].astype(np.int64)
    todo, radius = np.flatnonzero(counts), _SPREAD
    found: list[tuple[int, int, int]] = []  # shard, and the places with this hash
    while len(todo):
        first, last, sure = _near(pieces, todo, counts[todo], wanted, radius)
        hits = sure & (last > first)
        found += zip(todo[hits].tolist(), first[hits].tolist(), last[hits].tolist(), strict=True)
        todo, radius = todo[~sure], radius * 8
    shards = [np.full(last - first, shard, np.int64) for shard, first, last in found]
    offsets = [_gathered(pieces, shard, np.arange(first, last)) for shard, first, last in found]
    return np.concatenate([np.empty(0, np.int64), *shards]), np.concatenate([np.empty(0, np.uint64), *offsets])


def _near(
    pieces: Pieces, shards: Int64, counts: Int64, wanted: int, radius: float
) -> tuple[Int64, Int64, NDArray[np.bool_]]:
    """Where the hash begins and ends among those near its place; and whether there are none of it beyond them."""
    guess = (counts * math.ldexp(wanted, -_HASH_BITS)).astype(np.int64)
    width = (radius * (np.sqrt(counts) + 16)).astype(np.int64)
    low, high = np.maximum(guess - width, 0), np.minimum(guess + width, counts)
    begins = pieces.addresses("hashes", shards) + low.astype(np.uint64) * np.uint64(8)
    pieces.verify(begins, (high - low) * 8)
    first = np.zeros(len(shards), np.int64)
    _runs.cut(begins, high - low, wanted, first)
    last = first.copy()
    if wanted + 1 < 1 << _HASH_BITS:
        _runs.cut(begins, high - low, wanted + 1, last)
    else:
        last = high - low
    sure = ((first > 0) | (low == 0)) & ((last < high - low) | (high == counts))
    return first + low, last + low, sure


def _gathered(pieces: Pieces, shard: int, order: Int64) -> UInt64:
    slot = "wide_rows" if pieces.counts["wide_rows"][shard] else "rows"
    kind = np.dtype(np.uint64 if slot == "wide_rows" else np.uint32)
    begin = pieces.addresses(slot, np.full(len(order), shard))
    addresses = begin + order.astype(np.uint64) * np.uint64(kind.itemsize)
    pieces.verify(addresses, np.full(len(order), kind.itemsize, np.int64))
    out = np.empty(len(order), kind)
    _gather.copy(addresses, kind.itemsize, out)
    return out.astype(np.uint64)
