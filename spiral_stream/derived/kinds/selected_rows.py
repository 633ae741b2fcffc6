"""Which rows of a shard survive a predicate: nothing, offsets or a bitmap, whichever is smallest.

    all       nothing: every row survives
    offsets   uint32, ascending
    bitmap    words of 64 bits, and the survivors before each block of 512 bits (Jacobson's rank directory)

The predicate goes into the source's scan, so that only its columns are read; another threshold is another derivation
and copies nothing else.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Final, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.derived.derivation import ByRange, Derivation, Piece, ShardRows, Spool
from spiral_stream.errors import PlanError
from spiral_stream.expr import Expr, to_json

UInt64 = NDArray[np.uint64]

ALL, OFFSETS, BITMAP = 0, 1, 2
BLOCK: Final = 512  # bits that share one entry of the rank directory
WORDS: Final = BLOCK // 64
SLOTS: Final[Mapping[str, np.dtype[Any]]] = MappingProxyType(
    {"offsets": np.dtype("<u4"), "words": np.dtype("<u8"), "ranks": np.dtype("<u4")}
)
SUMMARY: Final = ("rows", "count", "form")
VERSION: Final = 1
_LARGEST: Final = 2**32  # rows of a shard that uint32 offsets reach
_AT_ONCE: Final = 1 << 24  # rows that are looked through together
_TEXT_BYTES: Final = 64  # of a value whose type has no width; chunks of shards are cut by it


@final
@dataclass(frozen=True, slots=True)
class Survivors(Derivation):
    """The rows that pass a predicate.

    Args:
        passing: the predicate.
        types: of the columns that it reads, by name, as text.
        shards: a digest of the names of the shards, where it looks at them; else empty.
        width: bytes of one row of those columns, about.
    """

    KIND: ClassVar[str] = "survivors"
    SUMMARY: ClassVar[tuple[str, ...]] = SUMMARY
    passing: Expr
    types: tuple[tuple[str, str], ...]
    shards: str = ""
    width: int = 8

    @property
    def columns(self) -> tuple[str, ...]:
        return ()

    @property
    def predicate(self) -> Expr:
        return self.passing

    @property
    def slots(self) -> Mapping[str, np.dtype[Any]]:
        return SLOTS

    @property
    def row_bytes(self) -> int:
        return self.width

    def facts(self) -> dict[str, object]:
        return {
            "predicate": to_json(self.passing),
            "types": [list(each) for each in self.types],
            "shards": self.shards,
            "version": VERSION,
        }

    def piece(self, shard: ShardRows) -> Piece:
        arrays, summary = encoded(shard.offsets, shard.rows)
        return Piece(arrays, summary)

    def by_range(self, rows: int, spool: Callable[[str], Spool]) -> ByRange:
        del spool
        return _SurvivorsByRange(rows)


@final
class Marks:
    """Survivors of one shard as they are found: a bit per row, from the first that is found on.

    Raises:
        PlanError: the shard has too many rows.
    """

    def __init__(self, rows: int) -> None:
        need_rows(rows)
        self._rows, self._count = rows, 0
        self._words = np.zeros(-(-rows // BLOCK) * WORDS, "<u8")

    def add(self, offsets: UInt64) -> None:
        """Note survivors: shape [N], ascending, after all that were noted before."""
        if not len(offsets):
            return
        first, last = int(offsets[0]) // 64, int(offsets[-1]) // 64 + 1
        bits = np.zeros((last - first) * 64, np.bool_)
        bits[offsets.view(np.int64) - first * 64] = True
        self._words[first:last] |= np.packbits(bits, bitorder="little").view("<u8")
        self._count += len(offsets)

    def encoded(self) -> tuple[dict[str, NDArray[Any]], dict[str, int]]:
        """Return what `encoded` returns for all of them."""
        form = _form(self._count, self._rows)
        arrays: dict[str, NDArray[Any]] = {}
        if form == OFFSETS:
            step, found = _AT_ONCE // 64, list[NDArray[Any]]()
            for begin in range(0, len(self._words), step):
                bits = np.unpackbits(self._words[begin : begin + step].view(np.uint8), bitorder="little")
                found.append((np.flatnonzero(bits) + begin * 64).astype("<u4"))
            arrays["offsets"] = np.concatenate(found) if found else np.zeros(0, "<u4")
        elif form == BITMAP:
            arrays |= _ranked(self._words)
        return arrays, {"rows": self._rows, "count": self._count, "form": form}


@final
class _SurvivorsByRange(ByRange):
    """The survivors of a shard whose rows come a range at a time: 1/8 byte of memory per row."""

    def __init__(self, rows: int) -> None:
        self._marks = Marks(rows)

    def add(self, some: ShardRows) -> None:
        self._marks.add(some.offsets)

    def end(self) -> Piece:
        return Piece(*self._marks.encoded())


def encoded(offsets: UInt64, rows: int) -> tuple[dict[str, NDArray[Any]], dict[str, int]]:
    """Return the arrays and the summary of a shard's survivors, in the smallest form.

    Args:
        offsets: shape [N], uint64, ascending: where the survivors stand in the shard.
        rows: of the shard.

    Raises:
        PlanError: the shard has too many rows.
    """
    need_rows(rows)
    form = _form(len(offsets), rows)
    summary = {"rows": rows, "count": len(offsets), "form": form}
    if form == ALL:
        return {}, summary
    if form == OFFSETS:
        return {"offsets": offsets.astype("<u4")}, summary
    bits = np.zeros(-(-rows // BLOCK) * BLOCK, np.bool_)
    bits[offsets.view(np.int64)] = True
    return _ranked(np.packbits(bits, bitorder="little").view("<u8")), summary


def _form(count: int, rows: int) -> int:
    if count == rows:
        return ALL
    return OFFSETS if 4 * count <= -(-rows // BLOCK) * (BLOCK // 8 + 8) else BITMAP


def _ranked(words: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """A bitmap with the directory of its ranks."""
    in_blocks = np.bitwise_count(words).reshape(-1, WORDS).sum(axis=1, dtype=np.uint32)
    ranks = np.concatenate([np.zeros(1, "<u4"), np.cumsum(in_blocks, dtype="<u4")[:-1]])
    return {"words": words, "ranks": ranks}


def need_rows(rows: int) -> None:
    """Refuse a shard whose rows 32-bit offsets do not reach.

    Raises:
        PlanError: says so.
    """
    if rows > _LARGEST:
        msg = f"selection: a shard has {rows:,} rows, over {_LARGEST:,}. Register the relation in smaller shards"
        raise PlanError(msg)


def width_of(kinds: Mapping[str, pa.DataType]) -> int:
    """Return about how many bytes one row of some columns has."""
    bits = [kind.bit_width if pa.types.is_primitive(kind) else 8 * _TEXT_BYTES for kind in kinds.values()]
    return max(1, sum(bits) // 8)
