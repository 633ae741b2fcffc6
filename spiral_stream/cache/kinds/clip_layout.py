"""The layout of a cached clip in memory, and which of its pictures are the frames of a sample.

The payload of a clip, little-endian: int64 words K, start and end of the segment (us), then a table of int64,
then U + 1 offsets of the pictures from the payload's first byte, then the U pictures end to end, each packed
RGB or a JPEG. K is the number of frames chosen when it was kept, and the table their pictures (a frame that
is repeated is kept once); K = 0 leaves the choice to the reader, and the table has the pictures' times (us).
Reading follows addresses and copies no picture: 13 us per clip; resizing takes 700.
"""

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.cache.kinds.kind import Rows
from spiral_stream.decoders.video.frame_selection import ClipSegment, FrameSelection
from spiral_stream.errors import CacheError, DataError

# P clips, T frames of a sample's clip, U pictures that are kept of a clip

Bytes = bytes | memoryview
Int64 = NDArray[np.int64]
Int32 = NDArray[np.int32]
UInt64 = NDArray[np.uint64]

NARROW: Final = ("height", "width", "frames", "short")  # of a picture; U; 1 where chosen of too short a segment
_WORDS: Final = 3  # before the table
_WORD: Final = 8  # bytes


def pack(pictures: Sequence[Bytes], segment: ClipSegment, table: Int64, *, chosen: bool) -> list[Bytes]:
    """Return the payload of a clip, in pieces: a multiple of 8 bytes.

    Args:
        pictures: U of them, at least one.
        segment: of the file, in us.
        table: int64: K pictures, each in [0, U), if ``chosen``; else U times in us, ascending.
        chosen: whether the table says which picture is which frame.
    """
    words = [len(table) if chosen else 0, segment.start, segment.end, *table.tolist()]
    first = _WORD * (len(words) + len(pictures) + 1)
    ends = first + np.cumsum([0, *(len(picture) for picture in pictures)])
    head = np.array([*words, *ends.tolist()], dtype="<i8")
    return [head.tobytes(), *pictures, bytes(-int(ends[-1]) % _WORD)]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Picked:
    """Where the T frames of P samples lie."""

    addresses: UInt64  # [P, T]
    lengths: Int64  # [P, T] bytes
    short: NDArray[np.bool_]  # [P] whose segment had too few frames


@final
class Clips:
    """P kept clips, wherever they lie: in the mapped files of a cache, or made on the fly. Arrays are [P]."""

    def __init__(self, count: int) -> None:
        self.addresses: UInt64 = np.zeros(count, dtype=np.uint64)
        self.sizes: Int64 = np.zeros(count, dtype=np.int64)
        self.narrow: Mapping[str, Int32] = {name: np.zeros(count, dtype=np.int32) for name in NARROW}
        self._owners: list[Any] = []  # keep the memory alive

    @property
    def heights(self) -> Int32:
        """Shape [P]: pixels of each clip's pictures."""
        return self.narrow["height"]

    @property
    def widths(self) -> Int32:
        """Shape [P]: pixels of each clip's pictures."""
        return self.narrow["width"]

    def put(self, indices: Int64, addresses: UInt64, sizes: Int64, narrow: Mapping[str, Int32], owner: object) -> None:
        """Enter stored clips.

        Args:
            indices: shape [Q], int64: where in this object.
            addresses: shape [Q], uint64.
            sizes: shape [Q], int64: bytes.
            narrow: shape [Q], int32 each: the columns stored next to the payload.
            owner: whatever keeps the addresses valid.
        """
        self.addresses[indices], self.sizes[indices] = addresses, sizes
        for name in NARROW:
            self.narrow[name][indices] = narrow[name]
        self._owners.append(owner)

    def put_rows(self, indices: Int64, rows: Rows) -> None:
        """Enter Q clips that were made on the fly; none of them is refused."""
        payload = np.frombuffer(rows.payload, dtype=np.uint8)
        ends = np.cumsum(rows.sizes)
        addresses = np.uint64(payload.ctypes.data) + (ends - rows.sizes).astype(np.uint64)
        self.put(indices, addresses, rows.sizes, rows.narrow, payload)

    def pick(self, selection: FrameSelection, draws: NDArray[np.float64]) -> Picked:
        """Find the picture of each frame of each clip.

        Args:
            selection: that the clips were kept for.
            draws: shape [P], float64 in [0, 1): each sample's own number, for a random start.

        Raises:
            DataError: a segment is too short and the selection drops those; ``row`` is its place.
            CacheError: a payload is not what was written.
        """
        count, frames = len(self.sizes), selection.sequence_length
        addresses_PT = np.empty((count, frames), dtype=np.uint64)
        lengths_PT = np.empty((count, frames), dtype=np.int64)
        short_P = self.narrow["short"] == 1
        for at in range(count):  # 13 us per clip
            chosen, times, segment, offsets = self._head(at)
            if not len(chosen):
                try:
                    chosen, short_P[at] = selection.choose(times, segment, float(draws[at]))
                except DataError as error:
                    error.row = at
                    raise
            if len(chosen) != frames:
                damaged(f"{len(chosen)} frames were chosen of it, not {frames}")
            addresses_PT[at] = self.addresses[at] + offsets[chosen].astype(np.uint64)
            lengths_PT[at] = offsets[chosen + 1] - offsets[chosen]
        return Picked(addresses_PT, lengths_PT, short_P)

    def _head(self, at: int) -> tuple[Int64, Int64, ClipSegment, Int64]:
        """Pictures of the frames (none where the reader chooses), times, segment, and U + 1 offsets of the pictures."""
        address, size, pictures = int(self.addresses[at]), int(self.sizes[at]), int(self.narrow["frames"][at])
        if pictures < 1 or size < _WORD * _WORDS:
            damaged(f"it has {pictures} pictures in {size:,} bytes")
        chosen, start, end = _words(address, _WORDS).tolist()
        count = chosen or pictures
        need = _WORD * (_WORDS + count + pictures + 1)
        if chosen < 0 or size < need:
            damaged(f"its head needs {need:,} bytes, it has {size:,}")
        table = _words(address + _WORD * _WORDS, count)
        offsets = _words(address + _WORD * (_WORDS + count), pictures + 1)
        if offsets[0] != need or offsets[-1] > size or (offsets[1:] <= offsets[:-1]).any():
            damaged(f"its pictures end at byte {offsets[-1]:,} of {size:,}")
        if not chosen:
            return table[:0], table, ClipSegment(0, pictures, start, end), offsets
        if table.min() < 0 or table.max() >= pictures:
            damaged(f"a frame is picture {table.max()} of {pictures}")
        return table, table[:0], ClipSegment(0, pictures, start, end), offsets


def bytes_at(address: int, count: int) -> NDArray[np.uint8]:
    """Shape [count], uint8: what lies at an address, for which the caller answers."""
    return np.frombuffer(memoryview((ctypes.c_uint8 * count).from_address(address)).cast("B"), np.uint8)


def _words(address: int, count: int) -> Int64:
    """Shape [count], int64: words that lie at an address."""
    return bytes_at(address, _WORD * count).view("<i8")


def damaged(found: str) -> NoReturn:
    """Refuse a payload that is not what was written.

    Raises:
        CacheError: always.
    """
    msg = f"cache: a kept clip is damaged ({found}). Drop the cache folder and build it again"
    raise CacheError(msg)
