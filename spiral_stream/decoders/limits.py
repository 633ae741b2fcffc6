"""How much one sample may ask for: decoded pixels, decoded frames, encoded bytes.

A header of some hundred bytes may claim gigabytes of pixels. What a sample claims is compared with these limits before
anything is allocated, and more is a `DataError`: what the plan says of samples that cannot be read holds for it. The
limits are a field's (``Stack(..., max_pixels=...)``), since with ``on_error="skip"`` they decide which samples a batch
holds; at their defaults they enter no fingerprint.
"""

from dataclasses import dataclass
from typing import Final, final

from spiral_stream.errors import DataError


@final
@dataclass(frozen=True, slots=True)
class SampleLimits:
    """What one sample may have at most."""

    pixels: int  # of an image, or of each frame
    frames: int  # that are decoded for it
    bytes: int  # encoded, that are read for it


IMAGES: Final = SampleLimits(
    pixels=1 << 26, frames=1, bytes=1 << 30
)  # 67 million: more than cameras have, 200 MB decoded
# The largest frame that any level of H.264 has (139,264 macroblocks, 8,704 x 4,096), and 2.4 hours at 30 frames a second.
CLIPS: Final = SampleLimits(pixels=139_264 * 256, frames=1 << 18, bytes=1 << 30)
KEPT_BYTES: Final = 1 << 32  # of one clip in a cache


def need_pixels(name: str, height: int, width: int, most: int) -> None:
    """Refuse a picture that claims too many pixels.

    Raises:
        DataError: says the ways out.
    """
    if height * width > most:
        msg = (
            f"{name}: the header claims {height} x {width} pixels, more than the {most:,} that a sample may have; shrink it, "
            "filter it out, or raise max_pixels of the field"
        )
        raise DataError(msg)


def need_frames(decoded: int, encoded_bytes: int, limits: SampleLimits) -> None:
    """Refuse a clip that asks for too much work.

    Args:
        decoded: frames that are decoded for it.
        encoded_bytes: that are read for it.
        limits: of the sample.

    Raises:
        DataError: says the ways out.
    """
    for found, most, what, way in (
        (decoded, limits.frames, "frames are decoded", "frames"),
        (encoded_bytes, limits.bytes, "bytes are read", "bytes"),
    ):
        if found > most:
            msg = (
                f"video: {found:,} {what} for this sample, more than the {most:,} that one may have; shorten its segment, "
                f"encode the file with more key frames, filter it out, or raise max_{way} of the field"
            )
            raise DataError(msg)
