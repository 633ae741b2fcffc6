"""Which rows of a relation survive, on disk, by number and by address.

Surviving rows are numbered 0, 1, ... in the order of their logical ordinals. Each
storage shard is kept in the smallest of three forms: nothing (all its rows
survive), uint32 offsets, or a bitmap with the number of survivors before every
block of 512 bits. Files are memory-mapped; what is resident grows with shards.
For a joined relation only the matching row of each survivor is kept.
"""

from pathlib import Path
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.errors import CacheError
from spiral_stream.integrity import seal

UInt64 = NDArray[np.uint64]
Int64 = NDArray[np.int64]

VERSION: Final = 1
ALL, OFFSETS, BITMAP = 0, 1, 2
BLOCK: Final = 512  # bits that share one entry of the rank directory
WORDS: Final = BLOCK // 64
_CHUNK: Final = 65_536  # rows selected at a time: 64 bytes of scratch each


@final
class Selection:
    """The rows that survive. Reading is thread-safe; pickling passes the path, not the data."""

    def __init__(
        self, shard_starts: UInt64, counts: UInt64, forms: NDArray[np.uint8], path: Path | None, *, sealed: bool = False
    ) -> None:
        self.shard_starts = shard_starts  # [S + 1], uint64: first logical ordinal of each shard, and the end
        self.counts = counts  # [S], uint64: survivors of each shard
        self.path = path
        self._forms = forms
        self._firsts = cumulated(counts)
        self._all = bool((forms == ALL).all())
        self.rights: list[NDArray[Any]] = []
        if path is not None:
            self._offsets, self._words, self._ranks, self._places = (
                seal.array(path / f"{name}.npy", sealed=sealed) for name in ("offsets", "words", "ranks", "places")
            )
            self._bitmapped = cumulated(np.where(forms == BITMAP, counts, 0).astype(np.uint64))
            self.rights = [seal.array(file, sealed=sealed) for file in sorted(path.glob("right-*.npy"))]

    @classmethod
    def open(cls, directory: Path) -> "Selection":
        """Map a selection that `build_selection` made.

        Raises:
            DamageError: it is missing, or not what was written.
            CacheError: it is of another version, or the operating system refuses.
        """
        file = directory / "selection.json"
        meta = seal.read_json(file, {"version", "total", "shards"})
        with seal.reading(file):
            if meta["version"] != VERSION:
                msg = f"selection {directory} has format {meta['version']}, not {VERSION}. Delete it to build it again"
                raise CacheError(msg)
            sealed = "rights" in meta  # else it is from before there were seals
            starts, counts, forms = (
                seal.array(directory / f"{name}.npy", sealed=sealed) for name in ("shard_starts", "counts", "forms")
            )
            out = cls(starts, counts, forms, directory, sealed=sealed)
            if not len(counts) == len(forms) == len(starts) - 1 or len(out.rights) != meta.get(
                "rights", len(out.rights)
            ):
                raise seal.damaged(directory, f"it has {len(counts):,} shards and {len(out.rights)} joined relations")
            return out

    def __reduce__(self) -> tuple[Any, ...]:
        return (whole, (self.shard_starts,)) if self.path is None else (Selection.open, (self.path,))

    @property
    def total(self) -> int:
        """Surviving rows."""
        return int(self._firsts[-1])

    def ordinals(self, rows: UInt64) -> UInt64:
        """Return the ordinals of surviving rows.

        Args:
            rows: shape [P], uint64, each below ``total``.

        Returns:
            shape [P], uint64: logical ordinals in the relation.
        """
        if self._all:
            return rows
        shards = np.searchsorted(self._firsts, rows, side="right") - 1
        out = rows - self._firsts[shards]
        forms = self._forms[shards]
        at = np.flatnonzero(forms == OFFSETS)
        out[at] = self._offsets[self._places[shards[at]] + out[at]]
        at = np.flatnonzero(forms == BITMAP)
        for piece in np.array_split(at, max(1, -(-len(at) // _CHUNK))):
            out[piece] = self._select(shards[piece], out[piece])
        return np.asarray(out + self.shard_starts[shards])

    def rows(self, ordinals: UInt64) -> tuple[UInt64, NDArray[np.bool_]]:
        """Return the inverse of `ordinals`.

        Args:
            ordinals: shape [P], uint64: logical ordinals.

        Returns:
            shape [P], uint64: the row each ordinal is, or would come before; and
            shape [P], bool: whether it survives.
        """
        found = self.ranks(ordinals)
        inside = found < self.total
        hits = np.zeros(len(found), np.bool_)
        hits[inside] = self.ordinals(found[inside]) == ordinals[inside]
        return found, hits

    def ranks(self, ordinals: UInt64) -> UInt64:
        """Shape [P] -> [P], uint64: the survivors before each logical ordinal (which may be the end)."""
        ends = ordinals >= self.shard_starts[-1]
        if self._all:
            return np.where(ends, np.uint64(self.total), ordinals)
        shards = np.where(ends, 0, np.searchsorted(self.shard_starts, ordinals, side="right") - 1)
        out = ordinals - self.shard_starts[shards]
        out[ends] = 0
        forms = self._forms[shards]
        at = np.flatnonzero((forms == OFFSETS) & ~ends)
        out[at] = self._bisect(shards[at], out[at])
        at = np.flatnonzero((forms == BITMAP) & ~ends)
        for piece in np.array_split(at, max(1, -(-len(at) // _CHUNK))):
            out[piece] = self._count(shards[piece], out[piece])
        return np.where(ends, np.uint64(self.total), out + self._firsts[shards])

    def unit_counts(self, group_starts: UInt64) -> UInt64:
        """Survivors of each piece of storage.

        Args:
            group_starts: shape [G + 1], uint64, ascending logical ordinals, the end last.

        Returns:
            shape [G], uint64.
        """
        return np.diff(self.ranks(group_starts))

    def right(self, k: int, rows: UInt64) -> Int64:
        """Shape [P] -> [P], int64: the row of the k-th joined relation that matches each survivor, -1 for none."""
        return np.asarray(self.rights[k][rows], dtype=np.int64)

    def _select(self, shards: NDArray[np.int64], nth: UInt64) -> UInt64:
        """Offset of the nth set bit of each shard's bitmap."""
        rank = self._bitmapped[shards] + nth
        block = np.searchsorted(self._ranks, rank, side="right") - 1
        left = (rank - self._ranks[block]).astype(np.int64)
        words = self._words[block[:, None] * WORDS + np.arange(WORDS)]
        word, left = _locate(np.bitwise_count(words), left)
        octets = words[np.arange(len(words)), word].astype("<u8").view(np.uint8).reshape(-1, 8)
        octet, left = _locate(np.bitwise_count(octets), left)
        bits = np.unpackbits(octets[np.arange(len(octets)), octet][:, None], axis=1, bitorder="little")
        bit, _ = _locate(bits, left)
        offset = (block - self._places[shards].astype(np.int64)) * BLOCK + word * 64 + octet * 8 + bit
        return np.asarray(offset, dtype=np.uint64)

    def _count(self, shards: NDArray[np.int64], offsets: UInt64) -> UInt64:
        """Set bits before an offset of each shard's bitmap."""
        offset = offsets.astype(np.int64)
        block = self._places[shards].astype(np.int64) + offset // BLOCK
        words = self._words[block[:, None] * WORDS + np.arange(WORDS)]
        before = np.clip((offset % BLOCK)[:, None] - np.arange(WORDS) * 64, 0, 64).astype(np.uint64)
        full = before == np.uint64(64)
        masks = np.where(full, ~np.uint64(0), (np.uint64(1) << np.where(full, 0, before)) - np.uint64(1))
        inside = np.bitwise_count(words & masks).sum(axis=1, dtype=np.uint64)
        return np.asarray(self._ranks[block] + inside - self._bitmapped[shards])

    def _bisect(self, shards: NDArray[np.int64], offsets: UInt64) -> UInt64:
        """Count each shard's stored offsets below ``offsets``."""
        first = self._places[shards].astype(np.int64)
        low, high = first.copy(), first + self.counts[shards].astype(np.int64)
        while (open_ := low < high).any():
            middle = np.where(open_, (low + high) // 2, 0)
            below = open_ & (self._offsets[middle] < offsets)
            low = np.where(below, middle + 1, low)
            high = np.where(open_ & ~below, middle, high)
        return np.asarray(low - first, dtype=np.uint64)


def whole(shard_starts: UInt64) -> Selection:
    """Return the selection of an unfiltered relation: every row, no file.

    Args:
        shard_starts: shape [S + 1], uint64: first logical ordinal of each shard, and the end.
    """
    starts = np.asarray(shard_starts, dtype=np.uint64)
    return Selection(starts, np.diff(starts), np.full(len(starts) - 1, ALL, np.uint8), None)


def _locate(counts: NDArray[Any], nth: Int64) -> tuple[Int64, Int64]:
    """Find the column in which the nth (from 0) unit of each row's counts lies, and how many units of it come before."""
    upto = np.cumsum(counts, axis=1, dtype=np.int64)
    column = (upto <= nth[:, None]).sum(axis=1)
    before = np.where(column > 0, upto[np.arange(len(upto)), np.maximum(column - 1, 0)], 0)
    return column, nth - before


def cumulated(counts: UInt64) -> UInt64:
    """Shape [S] -> [S + 1], uint64: where each count's units begin, laid end to end, and the total."""
    return np.concatenate([np.zeros(1, np.uint64), np.cumsum(counts, dtype=np.uint64)])
