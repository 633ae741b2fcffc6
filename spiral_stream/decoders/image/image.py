"""Images: JPEG by libjpeg-turbo, everything else by Pillow, and the JPEG encoder of the cache.

The pixel reference is libjpeg-turbo with the accurate integer DCT (ISLOW) and fancy chroma upsampling, called through
simplejpeg, which releases the GIL. Pixels equal those of torchvision.io.decode_image and of Pillow bit for bit. EXIF
orientation is ignored, as in torchvision by default.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from io import BytesIO
from typing import TYPE_CHECKING, ClassVar, Final, Self, final

import numpy as np
import simplejpeg
from numpy.typing import NDArray

from spiral_stream.decoders.decoder import Decoder
from spiral_stream.decoders.limits import IMAGES, SampleLimits, need_pixels
from spiral_stream.errors import DataError

if TYPE_CHECKING:
    from PIL import Image

# H W C image; channels are red, green, blue

Pixels = NDArray[np.uint8]

_SIGNATURES: Final = (
    (b"\x89PNG\r\n\x1a\n", "PNG"),
    (b"GIF8", "GIF"),
    (b"BM", "BMP"),
    (b"II*\0", "TIFF"),
    (b"MM\0*", "TIFF"),
)
_START: Final = b"\xff\xd8\xff"
_CODES: Final = re.compile(r"0x[0-9a-fA-F]+")  # bytes of the file in libjpeg's messages


@final
@dataclass(frozen=True)
class JpegDecoder(Decoder):
    """``decode="jpeg"``: baseline and progressive JPEG; images of other formats go through Pillow.

    Gray becomes three equal channels. CMYK and YCCK go through Pillow, without a colour profile. Data that end early,
    and everything else that libjpeg-turbo warns about, raise `DataError`. The warnings matter: of 121 JPEGs with three
    changed bytes that libjpeg-turbo noticed, it only warned about 118, and torchvision returns their damaged pixels.
    """

    NAME: ClassVar[str] = "jpeg"

    limits: SampleLimits = IMAGES

    def within(self, limits: SampleLimits) -> Self:
        return replace(self, limits=limits)

    def decode(self, data: bytes | memoryview) -> Pixels:
        return decode_jpeg(data, self.limits.pixels)

    def shrunk(self, pixels: Pixels, shorter_side: int) -> Pixels:
        return shrink(pixels, shorter_side)

    def size(self, data: bytes | memoryview) -> tuple[int, int]:
        view = _bytes_of(self.NAME, data)
        header = _jpeg_header(view, self.limits.pixels)
        return _pillow_size(self.NAME, view, self.limits.pixels) if header is None else header[:2]


@final
@dataclass(frozen=True)
class PillowDecoder(Decoder):
    """``decode="image"``: any format that Pillow opens; of several frames, the first.

    The image is converted to RGB: palettes are looked up, alpha is dropped, 16-bit gray keeps its high byte. JPEGs give
    the same pixels as with `JpegDecoder`, but slower.
    """

    NAME: ClassVar[str] = "image"

    limits: SampleLimits = IMAGES

    def within(self, limits: SampleLimits) -> Self:
        return replace(self, limits=limits)

    def decode(self, data: bytes | memoryview) -> Pixels:
        return _pillow_pixels(self.NAME, _bytes_of(self.NAME, data), self.limits.pixels)

    def shrunk(self, pixels: Pixels, shorter_side: int) -> Pixels:
        return shrink(pixels, shorter_side)

    def size(self, data: bytes | memoryview) -> tuple[int, int]:
        return _pillow_size(self.NAME, _bytes_of(self.NAME, data), self.limits.pixels)


def decode_jpeg(data: bytes | memoryview, most_pixels: int = IMAGES.pixels) -> Pixels:
    """Decode a JPEG: `JpegDecoder.decode` with a limit of pixels.

    Raises:
        DataError: the bytes are not a whole JPEG, or claim more than ``most_pixels``.
    """
    view = _bytes_of(JpegDecoder.NAME, data)
    header = _jpeg_header(view, most_pixels)
    if header is None or header[2] in {"CMYK", "YCCK"}:
        return _pillow_pixels(JpegDecoder.NAME, view, most_pixels)
    try:
        pixels: Pixels = simplejpeg.decode_jpeg(view, "RGB", strict=True)
    except ValueError as error:
        found = "ends before its pixels are complete" if "remature end" in str(error) else "is damaged"
        msg = (
            f"jpeg: the {header[0]} x {header[1]} image {found}, {view.nbytes:,} bytes ({_CODES.sub('...', str(error))}). "
            'Fetch it again, filter it out, or take what can be read with decode="image"'
        )
        raise DataError(msg) from error
    return pixels


def encode_jpeg(pixels: Pixels, quality: int) -> bytes:
    """Encode a JPEG for a lossy cache: 4:2:0, accurate DCT.

    Args:
        pixels: shape [H, W, 3], uint8, RGB.
        quality: 1 to 100.

    Raises:
        ValueError: the quality is out of range, or the array is not of this shape and type.
    """
    if not 1 <= quality <= 100:  # noqa: PLR2004  libjpeg's own scale
        msg = f"encode_jpeg: quality is {quality}; it must be from 1 to 100"
        raise ValueError(msg)
    encoded: bytes = simplejpeg.encode_jpeg(np.ascontiguousarray(pixels), quality, "RGB", "420")
    return encoded


def shrink(pixels: Pixels, shorter_side: int) -> Pixels:
    """Shrink an image to a shorter side of ``shorter_side``. Images at or below it are returned as they are.

    The longer side becomes ``shorter_side * longer // shorter``, and the filter is bilinear and antialiased: both as in
    `Resize`.

    Args:
        pixels: shape [H, W, 3], uint8.
        shorter_side: at least 1.

    Returns:
        shape [h, w, 3], uint8.
    """
    from spiral_stream.transforms import _pixels

    height, width = pixels.shape[:2]
    shorter, longer = min(height, width), max(height, width)
    if shorter <= shorter_side:
        return pixels
    other = shorter_side * longer // shorter
    target = np.empty((other, shorter_side, 3) if height >= width else (shorter_side, other, 3), np.uint8)
    _pixels.resize(np.ascontiguousarray(pixels), target)
    return target


def codec_version() -> str:
    """Return the library and version behind JPEG bytes and pixels, for fingerprints of lossy caches."""
    return f"simplejpeg {simplejpeg.__version__}"


def _bytes_of(name: str, data: bytes | memoryview | None) -> memoryview:
    """Return the data as unsigned bytes.

    Raises:
        DataError: the data is null or empty.
    """
    if data is None:
        msg = f"{name}: the value is null. Filter it out before sample, with ~col(...).is_null()"
        raise DataError(msg)
    view = memoryview(data).cast("B")
    if not view.nbytes:
        msg = f"{name}: the value is empty (0 bytes). Write the image again, or filter the row out"
        raise DataError(msg)
    return view


def _jpeg_header(view: memoryview, most_pixels: int) -> tuple[int, int, str] | None:
    """Read height, width and colour space. Returns None if Pillow must look.

    TurboJPEG knows seven chroma subsamplings, and fails on any other as on a damaged header. libjpeg, through Pillow,
    decodes all of them and tells the two cases apart.

    Raises:
        DataError: the data is no image, or claims more than ``most_pixels``.
    """
    head = bytes(view[:16])
    if not head.startswith(_START):
        if _kind_of(head) is not None:  # a folder of images may have some of other formats
            return None
        msg = (  # nothing of the bytes is shown: a reference may name any file
            f"jpeg: the data ({view.nbytes:,} bytes) start with something else, not JPEG's ff d8 ff or the signature of another "
            "image format. Check the column or the file"
        )
        raise DataError(msg)
    try:
        height, width, colors, _ = simplejpeg.decode_jpeg_header(view)
    except ValueError:
        return None
    if height * width > most_pixels:
        need_pixels(JpegDecoder.NAME, height, width, most_pixels)
    return int(height), int(width), str(colors)


def _pillow_size(name: str, view: memoryview, most_pixels: int) -> tuple[int, int]:
    """Read (height, width) from a header with Pillow.

    Raises:
        DataError: Pillow does not open it, or it claims more than ``most_pixels``.
    """
    from PIL import Image

    try:
        with Image.open(BytesIO(view), formats=_formats()) as image:
            height, width = image.height, image.width
    except MemoryError:
        raise
    except Exception as error:  # Pillow's plugins raise whatever their parsers meet
        raise DataError(_pillow_fault(name, view, most_pixels, error)) from error
    need_pixels(name, height, width, most_pixels)
    return height, width


def _pillow_pixels(name: str, view: memoryview, most_pixels: int) -> Pixels:
    """Decode with Pillow, to RGB.

    Raises:
        DataError: Pillow cannot open or decode it, or its mode has no agreed colours.
    """
    with opened(name, view, most_pixels) as image:
        if image.mode not in {"I", "F"}:
            return _rgb(image)
        found = f"{image.height} x {image.width} pixels of mode {image.mode}"
    msg = f"{name}: {found} cannot be shown: 32 bits have no agreed range. Convert it, or filter it out"
    raise DataError(msg)


@contextmanager
def opened(name: str, data: bytes | memoryview, most_pixels: int) -> "Iterator[Image.Image]":
    """Open an image with Pillow, for a ``with`` block that decodes it.

    Raises:
        DataError: Pillow cannot open it, the block cannot decode it, or it claims more than ``most_pixels``.
    """
    from PIL import Image

    view = _bytes_of(name, data)
    try:
        with Image.open(BytesIO(view), formats=_formats()) as image:
            need_pixels(name, image.height, image.width, most_pixels)
            yield image
    except (MemoryError, DataError):
        raise
    except Exception as error:  # Pillow's plugins raise whatever their parsers meet
        raise DataError(_pillow_fault(name, view, most_pixels, error)) from error


def size_of(name: str, data: bytes | memoryview, most_pixels: int) -> tuple[int, int]:
    """Read (height, width) of any image that Pillow opens.

    Raises:
        DataError: Pillow does not open it, or it claims more than ``most_pixels``.
    """
    return _pillow_size(name, _bytes_of(name, data), most_pixels)


def _rgb(image: "Image.Image") -> Pixels:
    if isinstance(image.info.get("transparency"), bytes):
        del image.info["transparency"]  # alpha of a palette is dropped like any other; Pillow would warn of it
    if not image.mode.startswith("I;16"):
        return np.asarray(image.convert("RGB"))
    gray = (np.asarray(image, np.uint16) >> 8).astype(np.uint8)
    return np.repeat(gray[:, :, None], 3, axis=2)


@cache
def _formats() -> tuple[str, ...]:
    """Return the formats that Pillow may open: all but those that start a program (Ghostscript) or ask the system."""
    from PIL import Image

    Image.init()
    return tuple(each for each in Image.ID if each not in {"EPS", "WMF"})


def _pillow_fault(name: str, view: memoryview, most_pixels: int, error: Exception) -> str:
    from PIL import Image, UnidentifiedImageError

    head = bytes(view[:16])
    kind = "JPEG" if head.startswith(_START) else _kind_of(head)
    if kind is None and isinstance(error, UnidentifiedImageError):
        return f"{name}: {view.nbytes:,} bytes are no image that is read here. Check the column or the file"
    if isinstance(error, UnidentifiedImageError):
        why = "its header cannot be read"
    elif isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
        most = min(most_pixels, 2 * (Image.MAX_IMAGE_PIXELS or most_pixels))  # Pillow has a limit of its own
        why = f"its header claims more than the {most:,} pixels that a sample may have"
    else:  # what Pillow says may quote the bytes
        why = "it ends early" if "truncated" in str(error).lower() else f"Pillow raises {type(error).__name__}"
    return (
        f"{name}: the {kind or 'image'} of {view.nbytes:,} bytes is damaged or cannot be shown ({why}). "
        "Fetch it again, or filter it out"
    )


def _kind_of(head: bytes) -> str | None:
    for signature, kind in _SIGNATURES:
        if head.startswith(signature):
            return kind
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "WebP"
    if head[4:8] == b"ftyp":
        return "AVIF or HEIF"
    return None
