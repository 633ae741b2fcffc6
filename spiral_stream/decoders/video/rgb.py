"""Convert a box of each decoded frame to RGB, upright.

A crop of a clip uses a part of each picture, and converting a whole frame with PyAV's ``to_ndarray`` costs as much as
decoding it (0.2 to 0.6 ms at 320 x 240; 0.07 ms if one reformatter is reused). The kernel reads only the box, and turns
it on the way: 29 us for 240 x 240 of 8-bit 4:2:0, of which 8 us are Python's; 72 us with a quarter turn.

The arithmetic is in integers and documented in ``_frames.c``, so pixels are the same on every machine. Chroma is the
nearest sample, taken from its own field if a frame has two. Values differ from PyAV's ``to_ndarray`` (libswscale) by at
most 3, and in 4:4:4 by 1. Gray follows the stream's range; libswscale takes all gray for full range.
"""

import re
import threading
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spiral_stream.decoders import _frames
from spiral_stream.errors import DataError

if TYPE_CHECKING:
    import av

# U frames

Int = NDArray[np.int64]
Int32 = NDArray[np.int32]
UInt64 = NDArray[np.uint64]

_LIGHTS: Final = {  # AVColorSpace -> shares of red and blue in luma
    1: ("0.2126", "0.0722"),
    4: ("0.30", "0.11"),
    5: ("0.299", "0.114"),
    6: ("0.299", "0.114"),
    7: ("0.212", "0.087"),
    9: ("0.2627", "0.0593"),
    10: ("0.2627", "0.0593"),
}
_YUV, _GRAY, _SEMI, _PLANAR_RGB = range(4)  # kinds of the kernel
_FORMS: Final = {"yuv420p": (1, 1), "yuv422p": (1, 0), "yuv444p": (0, 0), "yuv440p": (0, 1)}


@lru_cache(maxsize=32)
def constants(matrix: int, full_range: bool) -> Int32:
    """Return black, luma, red_v, green_u, green_v, blue_u: shape [6], int32, the last five in units of 2**-14.

    Rounded from exact fractions: with Kr and Kb the shares of red and blue, luma is scaled by 255/219 and
    chroma by 255/224 (by 1 in full range), red_v = 2 (1 - Kr), blue_u = 2 (1 - Kb), green_u = blue_u Kb / Kg,
    green_v = red_v Kr / Kg. A matrix that is unspecified or unknown is BT.601's, as in FFmpeg.
    """
    red, blue = map(Fraction, _LIGHTS.get(matrix, _LIGHTS[5]))
    green = 1 - red - blue
    luma, chroma = (Fraction(1), Fraction(1)) if full_range else (Fraction(255, 219), Fraction(255, 224))
    red_v, blue_u = 2 * (1 - red) * chroma, 2 * (1 - blue) * chroma
    scaled = (luma, red_v, blue_u * blue / green, red_v * red / green, blue_u)
    return np.array([0 if full_range else 16, *(round(c * (1 << 14)) for c in scaled)], np.int32)


class Pixels(NamedTuple):
    """Where packed RGB boxes lie."""

    addresses: UInt64  # [U] of a box's first pixel
    strides: Int  # [U] bytes from one row to the next
    memory: NDArray[np.uint8]  # what they lie in


class _Scratch(threading.local):
    """The memory of this thread that holds the boxes of its last call."""

    def __init__(self) -> None:
        self.pixels = np.empty(0, np.uint8)


_scratch: Final = _Scratch()


def to_rgb(
    frames: "Sequence[av.VideoFrame]",
    boxes_U4: Int32,
    rotation: int,
    full_range: bool,
    matrix: int,
    out: NDArray[np.uint8] | None = None,
) -> Pixels:
    """Convert a box of each frame to packed RGB, upright, with the GIL released.

    The arithmetic is in integers (``_frames.c``), the same on every machine; chroma is the nearest sample.

    Args:
        frames: U decoded frames: planar YUV 4:2:0, 4:2:2, 4:4:4, gray, GBR of 8 to 14 bits, or NV12.
        boxes_U4: shape [U, 4], int32: top, left, height, width in the upright picture.
        rotation: degrees clockwise that show the frames upright: 0, 90, 180 or 270.
        full_range: whether luma uses 0 to 255; formats named yuvj always do.
        matrix: AVColorSpace number.
        out: shape [n], uint8, contiguous, where the boxes go end to end; by default memory of this thread.

    Returns:
        the boxes, one after the other; in the thread's memory they are valid until it calls again.

    Raises:
        DataError: a pixel format that H.264 does not have.
        ValueError: a box leaves its picture, or ``out`` is too small.
    """
    boxes_U4 = np.ascontiguousarray(boxes_U4, np.int32)
    widths = boxes_U4[:, 3].astype(np.int64) * 3
    ends = np.cumsum((widths * boxes_U4[:, 2] + 63) & ~63)
    offsets = np.concatenate([[0], ends[:-1]]).astype(np.int64)
    if out is None:
        if len(_scratch.pixels) < ends[-1]:
            _scratch.pixels = np.empty(int(ends[-1]) * 5 // 4, np.uint8)
        out = _scratch.pixels
    planes = np.zeros((len(frames), 3, 3), np.int64)
    forms = np.empty((len(frames), 7), np.int32)
    for i, frame in enumerate(frames):  # about 4 us per frame
        forms[i] = form_of(frame)
        for k, plane in enumerate(frame.planes[:3]):
            planes[i, k] = plane.buffer_ptr, plane.line_size, plane.buffer_size
    full = full_range or any(frame.format.name.startswith("yuvj") for frame in frames[:1])
    _frames.to_rgb(planes, forms, boxes_U4, offsets, constants(matrix, full), out, rotation)
    return Pixels(offsets.astype(np.uint64) + np.uint64(out.ctypes.data), widths, out)


def form_of(frame: "av.VideoFrame") -> tuple[int, int, int, int, int, int, int]:
    """Return height, width, shifts of chroma, bits and kind of a frame, and whether it has two fields."""
    name = frame.format.name
    plain, bits = name.replace("yuvj", "yuv"), 8
    deep = re.fullmatch(r"([a-z0-9]+?p|gray|gbrp)(9|10|12|14)le", plain)
    if deep:
        plain, bits = deep[1], int(deep[2])
    if plain in _FORMS:
        return (frame.height, frame.width, *_FORMS[plain], bits, _YUV, int(frame.interlaced_frame))
    if plain in ("gray", "gbrp", "nv12"):
        kind = {"gray": _GRAY, "gbrp": _PLANAR_RGB, "nv12": _SEMI}[plain]
        return (
            frame.height,
            frame.width,
            int(kind == _SEMI),
            int(kind == _SEMI),
            bits,
            kind,
            int(frame.interlaced_frame),
        )
    msg = f"video: frames are {name}; read are {', '.join(_FORMS)}, gray, gbrp of 8 to 14 bits and nv12. Encode again"
    raise DataError(msg)
