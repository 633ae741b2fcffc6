"""Decode only the part of a JPEG that a crop needs: the same pixels as a full decode, for less work.

A random crop uses about half of an image. Decoding only its rows and columns took 777 us where simplejpeg's full decode
took 1,190 us (500 x 375, 84 KB; CPU time, same run). Reusing scratch memory saves the page faults of an array per image.
The library is the libjpeg-turbo in Pillow's wheel; if it is not found, `available` is False and images are decoded
whole.

When: stored JPEGs are decoded by region wherever the library is there (`applies`) and they are baseline JPEGs of one or
three components (`eligible`). `runtime.fields.images` asks that, and decodes together what `together` says. If the library
warns of an image, the full decoder decides.
Damage below or outside the crop is not seen.

The bits of the rows above a crop, and of what stands left and right of it, still have to be read: half of the time of a
photograph. JPEGs that a cache keeps therefore have an index of their bits (`indexed`), by which they are cut to the crop
before they are decoded (`_entropy.c`). The pixels are the same bits.
"""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
import PIL
from numpy.typing import NDArray

from spiral_stream.decoders import _entropy, _region
from spiral_stream.decoders.image.image import decode_jpeg, encode_jpeg

TOGETHER: Final = 8 << 20  # bytes of pixels decoded before they are resized: with 2 MB a crop takes 7 to 12 % longer
_AROUND: Final = 48  # columns that margins and alignment to 32-pixel blocks add at most
_ABOVE: Final = 4  # rows
EVERY: Final = 4  # MCUs of a group of the index: 2 % more bytes; with 8 it is 1 %, and a crop takes 6 % longer
_CUT_BYTES: Final = 4096 + _entropy.PAD  # of scratch, beside three times those of the image


def _open() -> bool:
    """Load the libjpeg-turbo of Pillow's wheel, if it is what `_region.c` takes it for."""
    packages = Path(PIL.__file__).parents[1]
    found = [*packages.glob("pillow.libs/libjpeg-*.so*"), *packages.glob("Pillow.libs/libjpeg-*.so*")]
    return any(_region.open_library(str(path)) and agrees() for path in sorted(found))


def agrees() -> bool:
    """Whether the library that was opened gives the pixels of the reference; takes 0.3 ms.

    `_region.c` declares the fields of its structures that it reads. A library whose fields lie elsewhere would give other
    pixels, or none: it is not used then, and images are decoded whole.
    """
    y, x = np.mgrid[:72, :88]
    pixels = np.stack([(3 * y + 5 * x) % 256, (7 * x) % 256, (y * x) % 256], axis=-1).astype(np.uint8)
    data = encode_jpeg(pixels, 90)
    at, size = np.array([np.frombuffer(data, np.uint8).ctypes.data], np.uint64), np.array([len(data)], np.int64)
    top, left, height, width = box = 21, 34, 30, 41
    if [int(each[0]) for each in sizes(at, size)] != [72, 88]:
        return False
    found = decode_regions(at, size, np.array([box], np.int32))
    if found is None:
        return False
    (origin,), (stride,) = found
    memory: NDArray[np.uint8] = _local.pixels
    start = int(origin) - memory.ctypes.data
    if not 0 <= start <= len(memory) - (height - 1) * int(stride) - 3 * width:
        return False
    rows = np.lib.stride_tricks.as_strided(memory[start:], (height, width, 3), (int(stride), 3, 1))
    return np.array_equal(rows, decode_jpeg(data)[top : top + height, left : left + width])


UInt64 = NDArray[np.uint64]

_local = threading.local()


def applies(*, jpeg: bool) -> bool:
    """Return whether images are decoded by region: stored JPEGs, where the library is there."""
    return jpeg and available


def eligible(addresses: UInt64, lengths: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return of which JPEGs a region can be decoded; shape [B]. Arguments as for `sizes`."""
    return sizes(addresses, lengths)[0] > 0


def sizes(addresses: UInt64, lengths: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Read heights and widths from the headers; 0 for images of which no region can be decoded.

    Args:
        addresses: shape [B], uint64: where each JPEG begins in memory that the caller keeps alive.
        lengths: shape [B], int64: bytes.

    Returns:
        shape [B] each, int32.
    """
    heights, widths = np.empty(len(addresses), np.int32), np.empty(len(addresses), np.int32)
    _region.sizes(addresses, lengths, heights, widths)
    return heights, widths


def indexed(data: bytes | memoryview) -> bytes | memoryview:
    """Return a JPEG with an index of its bits in it; as it is if it can have none, and without any that others have made.

    It is one more application segment before the scan: every decoder passes it over, and the pixels are the same.
    """
    found = _entropy.index(data, EVERY)
    return data if found is None else found


def together(
    eligible: NDArray[np.bool_], heights: NDArray[np.int32], widths: NDArray[np.int32], boxes_B4: NDArray[np.int32]
) -> Iterator[slice]:
    """Cut a batch into parts that are decoded together: all or none of a part are eligible, and its pixels are few.

    Args:
        eligible: shape [B], bool, from `eligible`.
        heights: shape [B], int32: of the images, which are decoded whole where they are not eligible.
        widths: shape [B], int32.
        boxes_B4: as for `decode_regions`.

    Yields:
        slices of the batch, in order, each of `TOGETHER` bytes of pixels or of one image.
    """
    full = 3 * heights.astype(np.int64) * widths.astype(np.int64)
    ends = np.cumsum(np.where(eligible, _bytes_of(boxes_B4), full))
    borders = [*(np.flatnonzero(np.diff(eligible)) + 1).tolist(), len(eligible)]
    start = 0
    for border in borders:
        while start < border:
            before = int(ends[start - 1]) if start else 0
            fits = int(np.searchsorted(ends, before + TOGETHER, side="right"))
            stop = min(max(fits, start + 1), border)
            yield slice(start, stop)
            start = stop


def _bytes_of(boxes_B4: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return how much scratch the pixels of each box take; shape [B]."""
    return (boxes_B4[:, 2].astype(np.int64) + _ABOVE) * (boxes_B4[:, 3].astype(np.int64) + _AROUND) * 3


def decode_regions(
    addresses: UInt64, lengths: NDArray[np.int64], boxes_B4: NDArray[np.int32], ours: NDArray[np.bool_] | None = None
) -> tuple[UInt64, NDArray[np.int64]] | None:
    """Decode one box of each image into this thread's scratch.

    Args:
        addresses: shape [B], uint64: where each eligible JPEG begins in memory.
        lengths: shape [B], int64: bytes.
        boxes_B4: shape [B, 4], int32: top, left, height, width inside each image.
        ours: shape [B], bool: which come from `indexed`; an index in any other is not believed. None: no one does.

    Returns:
        shape [D] each: address of the box's first pixel (uint64) and the bytes from one row to the next
        (int64), of the images before the first that needs the full decoder; valid until this thread calls again. None
        if that is the first one.
    """
    offsets = np.concatenate([[0], np.cumsum(_bytes_of(boxes_B4))]).astype(np.int64)
    scratch = _scratch("pixels", int(offsets[-1]))
    origins, strides = np.empty(len(addresses), np.uint64), np.empty(len(addresses), np.int64)
    boxes_B4 = np.ascontiguousarray(boxes_B4)
    if ours is not None and ours.any():
        addresses, lengths, boxes_B4 = addresses.copy(), lengths.copy(), boxes_B4.copy()
        rooms = np.concatenate([[0], np.cumsum(np.where(ours, 3 * lengths + _CUT_BYTES, 0))]).astype(np.int64)
        _entropy.cut(addresses, lengths, boxes_B4, _scratch("bits", int(rooms[-1])), rooms, ours)
    failed = _region.decode_regions(addresses, lengths, boxes_B4, offsets, scratch, origins, strides)
    if failed == 0:
        return None
    return (origins, strides) if failed < 0 else (origins[:failed], strides[:failed])


def _scratch(name: str, size: int) -> NDArray[np.uint8]:
    """Memory of this thread that is used again."""
    memory: NDArray[np.uint8] | None = getattr(_local, name, None)
    if memory is None or len(memory) < size:
        memory = np.empty(size * 5 // 4, np.uint8)
        setattr(_local, name, memory)
    return memory


available: Final = _open()
