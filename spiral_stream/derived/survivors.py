"""Which rows of a shard survive a predicate: nothing, offsets or a bitmap, whichever is smallest.

    all       nothing: every row survives
    offsets   uint32, ascending
    bitmap    words of 64 bits, and the survivors before each block of 512 bits (Jacobson's rank directory)

The predicate goes into the source's scan, so that only its columns are read; another threshold is another derivation
and copies nothing else.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Final, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.derived.derivation import Derivation, Piece, ShardRows
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


def encoded(offsets: UInt64, rows: int) -> tuple[dict[str, NDArray[Any]], dict[str, int]]:
    """Return the arrays and the summary of a shard's survivors, in the smallest form.

    Args:
        offsets: shape [N], uint64, ascending: where the survivors stand in the shard.
        rows: of the shard.

    Raises:
        PlanError: the shard has too many rows.
    """
    if rows > _LARGEST:
        msg = f"selection: a shard has {rows:,} rows, over {_LARGEST:,}. Register the relation in smaller shards"
        raise PlanError(msg)
    count, blocks = len(offsets), -(-rows // BLOCK)
    if count == rows:
        return {}, {"rows": rows, "count": count, "form": ALL}
    if 4 * count <= blocks * (BLOCK // 8 + 8):
        return {"offsets": offsets.astype("<u4")}, {"rows": rows, "count": count, "form": OFFSETS}
    bits = np.zeros(blocks * BLOCK, np.bool_)
    bits[offsets.view(np.int64)] = True
    words = np.packbits(bits, bitorder="little").view("<u8")
    in_blocks = np.bitwise_count(words).reshape(blocks, WORDS).sum(axis=1, dtype=np.uint32)
    ranks = np.concatenate([np.zeros(1, "<u4"), np.cumsum(in_blocks, dtype="<u4")[:-1]])
    return {"words": words, "ranks": ranks}, {"rows": rows, "count": count, "form": BITMAP}


def width_of(kinds: Mapping[str, pa.DataType]) -> int:
    """Return about how many bytes one row of some columns has."""
    bits = [kind.bit_width if pa.types.is_primitive(kind) else 8 * _TEXT_BYTES for kind in kinds.values()]
    return max(1, sum(bits) // 8)
