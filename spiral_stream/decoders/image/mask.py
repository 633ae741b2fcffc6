"""Decode masks: images whose values are labels, which no step may change.

| the file has | mode | values |
|---|---|---|
| gray of 8 bits | L | as stored |
| a palette | L | the indexes, as in Pascal VOC |
| 1 bit | L | 0 and 1 |
| gray of 1, 2 or 4 bits | L | as Pillow gives them: spread to 0 to 255 |
| gray of 8 or 16 bits | I;16 | as stored |
| colours | RGB | as stored; a palette is looked up |

Whatever does not fit its mode is refused: nothing is converted.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, Self, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.decoders.decoder import Decoder
from spiral_stream.decoders.image.image import opened, size_of
from spiral_stream.decoders.limits import IMAGES, SampleLimits
from spiral_stream.errors import DataError

# H W C mask

_GRAY16: Final = ("I;16", "I;16L", "I;16B", "I;16N")


@final
@dataclass(frozen=True)
class MaskDecoder(Decoder):
    """A mask as [H, W, 1] or [H, W, 3]; uint8, or uint16 for mode ``"I;16"``."""

    NAME: ClassVar[str] = "mask"

    mode: str = "L"
    limits: SampleLimits = IMAGES

    @property
    def kind(self) -> str:
        return f"mask {self.mode}"

    @property
    def channels(self) -> int:
        return 3 if self.mode == "RGB" else 1

    @property
    def dtype(self) -> str:
        return "uint16" if self.mode == "I;16" else "uint8"

    def within(self, limits: SampleLimits) -> Self:
        return replace(self, limits=limits)

    def size(self, data: bytes | memoryview) -> tuple[int, int]:
        return size_of(self.NAME, data, self.limits.pixels)

    def decode(self, data: bytes | memoryview) -> NDArray[Any]:
        with opened(self.NAME, data, self.limits.pixels) as image:
            found = image.mode
            fits = {
                "L": found in ("L", "P", "1"),
                "I;16": found in ("L", *_GRAY16),
                "RGB": found in ("RGB", "P"),
            }
            if fits[self.mode]:
                values = np.asarray(image.convert("RGB") if self.mode == "RGB" else image)
                return np.array(values, self.dtype, order="C").reshape(image.height, image.width, self.channels)
            size = f"{image.height} x {image.width}"
        way = {"RGB": 'mode="RGB" reads colours', **dict.fromkeys(_GRAY16, 'mode="I;16" reads 16 bits')}.get(found)
        msg = (
            f"mask: the {size} file is of mode {found}, which mode={self.mode!r} does not read without changing values. "
            f"{way or 'Store labels as a gray or palette PNG'}, or convert the file"
        )
        raise DataError(msg)

    def shrunk(self, pixels: NDArray[Any], shorter_side: int) -> NDArray[Any]:
        height, width = pixels.shape[:2]
        shorter, longer = min(height, width), max(height, width)
        if shorter <= shorter_side:
            return pixels
        other = shorter_side * longer // shorter
        rows, columns = (other, shorter_side) if height >= width else (shorter_side, other)
        down = np.minimum(np.arange(rows) * height // rows, height - 1)
        across = np.minimum(np.arange(columns) * width // columns, width - 1)
        return np.ascontiguousarray(pixels[down[:, None], across])
