"""A part: the file that holds some pieces of one derivation, and the checksums by which readers verify it.

    <name>.piece    array, padding to 64 bytes, array, padding, ...: the pieces, end to end
    <name>.sums     64-bit XXH3 of each block of 64 KiB, sealed

A part is written once, by one maker, and never changes. Opening it reads the sums only; a block is verified when a
reader touches it for the first time. `verify_file` reads every block, without a reader.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Final, Self, final

import numpy as np
import xxhash
from numpy.typing import NDArray

from spiral_stream.derived.derivation import Derivation, Piece, Spool
from spiral_stream.integrity import seal
from spiral_stream.integrity.blocks import BLOCK, SHIFT, Mapped, sums_of

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
    with PartWriter(path, derivation) as writer:
        for piece in pieces:
            writer.add(piece)
        return writer.done()


@final
class PartWriter:
    """Writes the pieces of one derivation to a file that exists and that nobody reads yet, one after another. Close it.

    Raises:
        OSError: the file cannot be written.
    """

    def __init__(self, path: Path, derivation: Derivation) -> None:
        self._folder, self._slots, self._summary = path.parent, derivation.slots, derivation.SUMMARY
        self._offsets: list[int] = []
        self._counts: list[list[int]] = []
        self._summaries: list[list[int]] = []
        self._at, self._begin, self._sums = 0, 0, _Sums()
        self._waiting: list[memoryview] = []
        self._out = path.open("r+b")
        self._spools: list[_Spool] = []

    def add(self, piece: Piece) -> None:
        """Write a piece; spools of it that were begun here are closed."""
        self._offsets.append(self._begin if self._spools else self._at)
        self._summaries.append([piece.summary[name] for name in self._summary])
        self._counts.append(
            [self._write(piece.arrays.get(name), dtype, name) for name, dtype in self._slots.items()],
        )
        if len(self._waiting) > _TOGETHER or self._spools:
            self._flush()
        self._forget()

    def spool(self, slot: str) -> Spool:
        """Begin an array of the next piece, which is too large for memory: in its place if it is the first slot's."""
        if not self._spools:
            self._flush()
            self._begin = self._at
        first = slot == next(iter(self._slots))
        made = _Spool(None if first else self._folder, self._straight)
        self._spools.append(made)
        return made

    def done(self) -> Written:
        """Return what was written, once it is on disk."""
        self._flush()
        self._out.flush()
        os.fsync(self._out.fileno())
        counts = np.array(self._counts, np.uint64).reshape(len(self._counts), len(self._slots))
        summaries = np.array(self._summaries, np.int64).reshape(len(self._counts), len(self._summary))
        return Written(np.array(self._offsets, np.uint64), counts, summaries, self._sums.done(), self._at)

    def _write(self, array: NDArray[Any] | Spool | None, dtype: np.dtype[Any], name: str) -> int:
        """Write one array, and what fills it up to the next multiple of 64; returns its items."""
        if isinstance(array, _Spool) and array.in_memory:
            size = array.size
            self._straight(_PADDING[: -size % ALIGN])
            return size // dtype.itemsize
        if array is None or (not isinstance(array, Spool) and not len(array)):
            return 0
        size, items = 0, 0
        for part in array.parts() if isinstance(array, Spool) else (array,):
            assert (part.dtype, part.ndim) == (dtype, 1), (name, part.dtype, dtype)
            data = memoryview(np.ascontiguousarray(part).data).cast("B")
            self._waiting.append(data)
            size, items = size + len(data), items + len(part)
            if isinstance(array, Spool):
                self._flush()
        self._waiting.append(_PADDING[: -size % ALIGN])
        self._at += aligned(size)
        return items

    def _straight(self, data: memoryview) -> None:
        """Write something to its place now."""
        self._out.write(data)
        self._sums.add(data)
        self._at += len(data)

    def _flush(self) -> None:
        """Write what waits: small arrays together."""
        small = sum(map(len, self._waiting)) <= _LARGE
        for data in [memoryview(b"".join(self._waiting))] if small else self._waiting:
            self._out.write(data)
            self._sums.add(data)
        self._waiting.clear()

    def _forget(self) -> None:
        for each in self._spools:
            each.close()
        self._spools.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._forget()
        self._out.close()


@final
class _Spool(Spool):
    """An array in a file without a name, or in its place in the part.

    Args:
        folder: where the file lies; None: in place.
        straight: writes to the part.
    """

    def __init__(self, folder: Path | None, straight: Callable[[memoryview], None]) -> None:
        self.in_memory, self.size = folder is None, 0
        self._folder, self._straight = folder, straight
        self._file: IO[bytes] | None = None
        self._ends: list[tuple[int, np.dtype[Any]]] = []

    def append(self, array: NDArray[Any]) -> None:
        data = memoryview(np.ascontiguousarray(array).data).cast("B")
        self.size += len(data)
        if self._folder is None:
            self._straight(data)
            return
        if self._file is None:  # most columns have no null
            self._file = TemporaryFile(dir=self._folder)  # noqa: SIM115  closed by `close`
        self._ends.append((self.size, array.dtype))
        self._file.write(data)

    def parts(self) -> Iterator[NDArray[Any]]:
        begin = 0
        if self._file is not None:
            self._file.seek(0)
        for end, dtype in self._ends:
            assert self._file is not None
            yield np.frombuffer(self._file.read(end - begin), dtype)
            begin = end

    def close(self) -> None:
        """Give up its file."""
        if self._file is not None:
            self._file.close()


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
    data = seal.content(path.with_suffix(SUMS))
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


def verify_file(path: Path) -> None:
    """Verify one file of a derivation's folder.

    Raises:
        DamageError: it is not what was written.
    """
    if path.suffix != DATA:
        seal.verify(path)
        return
    sums = np.frombuffer(seal.content(path.with_suffix(SUMS)), np.uint64)
    with seal.reading(path):
        found = sums_of(Mapped(str(path))) if path.stat().st_size else np.zeros(0, np.uint64)
    if not np.array_equal(found, sums):
        raise seal.damaged(path, "a block of it has another sum than was written")
