"""Limits of one sample: decoded pixels, decoded frames, encoded bytes.

A header of some hundred bytes may claim gigabytes of pixels. Claims are compared with these limits before anything is
allocated. A sample that exceeds one raises `DataError`, so the plan's ``on_error`` applies to it.

Limits belong to the field (``Stack(..., max_pixels=...)``), because with ``on_error="skip"`` they decide which samples a
batch holds. Default limits are part of no fingerprint.
"""

from dataclasses import dataclass
from typing import Final, final

from spiral_stream.errors import DataError


@final
@dataclass(frozen=True, slots=True)
class SampleLimits:
    """The most that one sample may have.

    Attributes:
        pixels: pixels of an image, or of each frame of a clip.
        frames: frames decoded for the sample.
        bytes: encoded bytes read for the sample.
    """

    pixels: int
    frames: int
    bytes: int


# 67 million pixels: more than cameras have, and 200 MB decoded.
IMAGES: Final = SampleLimits(pixels=1 << 26, frames=1, bytes=1 << 30)
# The largest frame of any H.264 level (139,264 macroblocks, 8,704 x 4,096), and 2.4 hours at 30 frames per second.
CLIPS: Final = SampleLimits(pixels=139_264 * 256, frames=1 << 18, bytes=1 << 30)
CACHED_CLIP_BYTES: Final = 1 << 32  # bytes of one clip in a cache


def need_pixels(name: str, height: int, width: int, most: int) -> None:
    """Refuse a picture that claims more than ``most`` pixels.

    Raises:
        DataError: it does; the message says the ways out.
    """
    if height * width > most:
        msg = (
            f"{name}: the header claims {height} x {width} pixels, more than the {most:,} that a sample may have. Shrink it, "
            "filter it out, or raise max_pixels of the field"
        )
        raise DataError(msg)


def need_frames(decoded: int, encoded_bytes: int, limits: SampleLimits) -> None:
    """Refuse a clip that asks for too much work.

    Args:
        decoded: frames that would be decoded.
        encoded_bytes: encoded bytes that would be read.
        limits: the limits of the sample.

    Raises:
        DataError: a limit is exceeded; the message says the ways out.
    """
    for found, most, what, way in (
        (decoded, limits.frames, "frames are decoded", "frames"),
        (encoded_bytes, limits.bytes, "bytes are read", "bytes"),
    ):
        if found > most:
            msg = (
                f"video: {found:,} {what} for this sample, more than the {most:,} that one may have. Shorten its segment, "
                f"encode the file with more key frames, filter it out, or raise max_{way} of the field"
            )
            raise DataError(msg)
