"""A part: the file that holds some pieces of one derivation, and the sums by which readers know it.

    <name>.piece    array, padding to 64 bytes, array, padding, ...: the pieces, end to end
    <name>.sums     64-bit XXH3 of each block of 64 KiB, sealed

A part is written once, by one maker, and never changes. Opening it reads the sums only; a block is verified when a
reader touches it for the first time.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, final

import numpy as np
import xxhash
from numpy.typing import NDArray

from spiral_stream.derived.derivation import Derivation, Piece
from spiral_stream.integrity import seal
from spiral_stream.integrity.blocks import BLOCK, SHIFT, Mapped

ALIGN: Final = 64
DATA: Final = ".piece"
SUMS: Final = ".sums"
_PADDING: Final = memoryview(bytes(ALIGN))
_TOGETHER: Final = 128  # arrays and paddings
_LARGE: Final = 1 << 20  # bytes that are not copied once more


@final
@dataclass(frozen=True, slots=True, eq=False)
class Written:
    """A part that was written: K pieces."""

    offsets: NDArray[np.uint64]  # [K] where each piece begins
    counts: NDArray[np.uint64]  # [K, slots] items of each array
    summaries: NDArray[np.int64]  # [K, names of the summary]
    sums: NDArray[np.uint64]  # of the blocks
    size: int  # bytes of the file


def aligned(size: int) -> int:
    """Return the next multiple of 64."""
    return -(-size // ALIGN) * ALIGN


def write_part(path: Path, derivation: Derivation, pieces: Sequence[Piece]) -> Written:
    """Write pieces to a file that exists and that nobody reads yet.

    Raises:
        OSError: the file cannot be written.
    """
    slots = derivation.slots
    offsets = np.zeros(len(pieces), np.uint64)
    counts = np.zeros((len(pieces), len(slots)), np.uint64)
    summaries = np.zeros((len(pieces), len(derivation.SUMMARY)), np.int64)
    at, sums = 0, _Sums()
    waiting: list[memoryview] = []
    with path.open("r+b") as out:
        for k, piece in enumerate(pieces):
            offsets[k] = at
            summaries[k] = [piece.summary[name] for name in derivation.SUMMARY]
            for j, (name, dtype) in enumerate(slots.items()):
                array = piece.arrays.get(name)
                if array is None or not len(array):
                    continue
                assert (array.dtype, array.ndim) == (dtype, 1), (name, array.dtype, dtype)
                counts[k, j] = len(array)
                data = memoryview(np.ascontiguousarray(array).data).cast("B")
                waiting += [data, _PADDING[: -len(data) % ALIGN]]
                at += aligned(len(data))
            if len(waiting) > _TOGETHER:
                _write(out, sums, waiting)
        _write(out, sums, waiting)
        out.flush()
        os.fsync(out.fileno())
    return Written(offsets, counts, summaries, sums.done(), at)


def _write(out: BinaryIO, sums: "_Sums", waiting: list[memoryview]) -> None:
    """Write what waits: small arrays together."""
    small = sum(map(len, waiting)) <= _LARGE
    for data in [memoryview(b"".join(waiting))] if small else waiting:
        out.write(data)
        sums.add(data)
    waiting.clear()


@final
class _Sums:
    """Sums of the blocks of what passes."""

    def __init__(self) -> None:
        self._sums: list[int] = []
        self._block, self._room = xxhash.xxh3_64(), BLOCK

    def add(self, data: memoryview) -> None:
        while len(data):
            self._block.update(data[: self._room])
            taken = min(self._room, len(data))
            data, self._room = data[taken:], self._room - taken
            if not self._room:
                self._close()

    def done(self) -> NDArray[np.uint64]:
        if self._room < BLOCK:
            self._close()
        return np.array(self._sums, np.uint64)

    def _close(self) -> None:
        self._sums.append(self._block.intdigest())
        self._block, self._room = xxhash.xxh3_64(), BLOCK


def open_part(path: Path, size: int, digest: str) -> Any:
    """Map a part; its blocks are verified when they are touched.

    Args:
        path: of its data.
        size: bytes of its data, as the roster has it.
        digest: of its sums, as the roster has it.

    Raises:
        DamageError: it is missing, or not what was written.
        CacheError: the operating system refuses.
    """
    data, _ = seal.content(path.with_suffix(SUMS), sealed=True)
    if digest_of(data) != digest:
        raise seal.damaged(path, "its sums are those of another part")
    with seal.reading(path):
        mapped = Mapped(str(path))
        if mapped.size != size:
            raise seal.damaged(path, f"it has {mapped.size:,} bytes, {size:,} were written")
        mapped.expect(np.frombuffer(data, np.uint64), SHIFT)
        return mapped


def digest_of(sums: Any) -> str:
    """Return the digest of a part's sums: 32 hex digits."""
    return xxhash.xxh3_128_hexdigest(sums)
