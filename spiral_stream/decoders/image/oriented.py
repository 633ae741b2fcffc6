"""Turn images upright: the EXIF tag Orientation says how a camera was held.

Reading the tag of a JPEG looks at the heads of its segments: 2 to 4 us, where decoding takes 800. Other formats are asked
through Pillow; it turns TIFF by itself, with or without this room. A tag that is damaged or out of range turns nothing.
"""

from dataclasses import dataclass
from io import BytesIO
from typing import Any, ClassVar, Final, Self, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.decoders.decoder import Decoder
from spiral_stream.decoders.limits import IMAGES, SampleLimits

# H W C image

Pixels = NDArray[np.uint8]

UPRIGHT: Final = 1
_TURNS: Final = 8  # values of the tag
_SIDEWAYS: Final = 5  # from here on rows are columns
_TAG: Final = 0x0112
_SHORT: Final = 3
_ENTRY: Final = 12  # bytes
_JPEG: Final = b"\xff\xd8\xff"
_ALONE: Final = frozenset((0x01, *range(0xD0, 0xD9)))  # markers without a length
_ENDS: Final = frozenset((0xD9, 0xDA))  # of the headers: end of image, start of pixels
_APP1: Final = 0xE1
_EXIF: Final = b"Exif\0\0"


@final
@dataclass(frozen=True)
class Oriented(Decoder):
    """The pixels of another decoder, turned and mirrored as EXIF says. Height and width are those of the turned image.

    Args:
        inner: the decoder.
        limits: of a sample.
    """

    NAME: ClassVar[str] = "oriented"

    inner: Decoder
    limits: SampleLimits = IMAGES

    @property
    def kind(self) -> str:
        return self.inner.kind

    @property
    def channels(self) -> int:
        return self.inner.channels

    @property
    def dtype(self) -> str:
        return self.inner.dtype

    def shrunk(self, pixels: NDArray[Any], shorter_side: int) -> NDArray[Any]:
        return self.inner.shrunk(pixels, shorter_side)

    def within(self, limits: SampleLimits) -> Self:
        return type(self)(self.inner.within(limits), limits)

    def decode(self, data: bytes | memoryview) -> Pixels:
        return turned(self.inner.decode(data), orientation(data))

    def size(self, data: bytes | memoryview) -> tuple[int, int]:
        height, width = self.inner.size(data)
        return (width, height) if orientation(data) >= _SIDEWAYS else (height, width)


def inner_of(decoder: Decoder) -> Decoder:
    """Return the decoder whose pixels are turned, or the decoder itself."""
    return decoder.inner if isinstance(decoder, Oriented) else decoder


def orientation(data: bytes | memoryview) -> int:
    """Return the value of the tag, from 1 (upright) to 8; 1 where nothing says otherwise."""
    view = memoryview(data).cast("B")
    found = _of_jpeg(view) if bytes(view[:3]) == _JPEG else _of_others(view)
    return found if UPRIGHT <= found <= _TURNS else UPRIGHT


def turned(pixels: Pixels, tag: int) -> Pixels:
    """Return the upright image, C-contiguous.

    Args:
        pixels: shape [H, W, 3].
        tag: as `orientation` returns it.
    """
    if tag == UPRIGHT:
        return pixels
    if tag >= _SIDEWAYS:
        pixels = pixels.transpose(1, 0, 2)
    rows, columns = {2: (1, -1), 3: (-1, -1), 4: (-1, 1), 6: (1, -1), 7: (-1, -1), 8: (-1, 1)}.get(tag, (1, 1))
    return np.ascontiguousarray(pixels[::rows, ::columns])


def _of_jpeg(view: memoryview) -> int:
    at = 2
    while at + 4 <= len(view) and view[at] == 0xFF:  # noqa: PLR2004  each segment begins so
        marker = view[at + 1]
        if marker == 0xFF:  # noqa: PLR2004  filling
            at += 1
        elif marker in _ALONE:
            at += 2
        elif marker in _ENDS:
            break
        else:
            stop = at + 2 + int.from_bytes(view[at + 2 : at + 4], "big")
            if marker == _APP1 and bytes(view[at + 4 : at + 10]) == _EXIF:
                return _of_tiff(bytes(view[at + 10 : stop]))
            at = stop
    return UPRIGHT


def _of_tiff(tags: bytes) -> int:
    """The tag in the first directory of EXIF data."""
    order = {b"II": "little", b"MM": "big"}.get(tags[:2])
    if order is None:
        return UPRIGHT

    def number(at: int, size: int) -> int:
        return int.from_bytes(tags[at : at + size], "little" if order == "little" else "big")

    start = number(4, 4)
    for at in range(start + 2, min(start + 2 + _ENTRY * number(start, 2), len(tags) - _ENTRY + 1), _ENTRY):
        if number(at, 2) == _TAG:
            return number(at + 8, 2) if number(at + 2, 2) == _SHORT else UPRIGHT
    return UPRIGHT


def _of_others(view: memoryview) -> int:
    from PIL import Image

    try:
        with Image.open(BytesIO(view)) as image:
            found = UPRIGHT if image.format == "TIFF" else image.getexif().get(_TAG, UPRIGHT)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001  Pillow's plugins raise whatever they meet; the decoder says what is wrong with the image
        return UPRIGHT
    return found if isinstance(found, int) else UPRIGHT
