"""`RandAugment`: a few random operations at one magnitude, as Cubuk et al. 2019 (arXiv 1909.13719).

The operations, their order and their magnitudes are torchvision's. Masks, boxes and key points follow those that move
pixels; torchvision refuses them.
"""

from dataclasses import dataclass
from typing import ClassVar, Final, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.arguments import check, class_door, integer
from spiral_stream.errors import PlanError
from spiral_stream.transforms import _augment
from spiral_stream.transforms.image.color import BRIGHTNESS, CONTRAST, SATURATION, adjust
from spiral_stream.transforms.image.pixel_transform import (
    Matrix,
    Pixels,
    PixelTransform,
    checked_color,
    checked_label,
    draw,
    sides,
)
from spiral_stream.transforms.image.warp import INTERPOLATION, affine, from_corner, mask_pixel, warped
from spiral_stream.transforms.transform import Transform

OPERATIONS: Final = (
    *("Identity", "ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate"),
    *("Brightness", "Color", "Contrast", "Sharpness", "Posterize", "Solarize", "AutoContrast", "Equalize"),
)
_MOVING: Final = frozenset(OPERATIONS[1:6])
_MOST: Final = {
    **dict.fromkeys(("ShearX", "ShearY"), 0.3),
    "Rotate": 30.0,
    **dict.fromkeys(("Brightness", "Color", "Contrast", "Sharpness"), 0.9),
}
_KINDS: Final = {"Brightness": BRIGHTNESS, "Contrast": CONTRAST, "Color": SATURATION}
_HALF: Final = 0.5
_SHIFT: Final = 150 / 331  # of the side, at the greatest magnitude


@final
@class_door(PlanError)
@dataclass(frozen=True)
class RandAugment(PixelTransform):
    """Apply ``num_ops`` random operations of 14 at one magnitude.

    Args:
        num_ops: operations in a row.
        magnitude: from 0 to ``num_magnitude_bins - 1``.
        num_magnitude_bins: steps of the magnitude.
        interpolation: ``"nearest"`` (as torchvision) or ``"bilinear"``, for operations that move pixels.
        fill: value outside the image: a byte, or three.
        mask_fill: value outside a mask.

    Raises:
        PlanError: an argument is out of range.

    Examples:
        >>> steps = [spiral.transforms.Resize((16, 16)), spiral.transforms.RandAugment(num_ops=2, magnitude=9)]
        >>> image = spiral.Stack("image", decode="jpeg", transforms=steps)
        >>> samples.collate(batch_size=8, fields={"image": image}).to_numpy()[0]["image"].shape
        (8, 3, 16, 16)
    """

    NAME: ClassVar[str] = "rand_augment"
    MOVES: ClassVar[bool] = True

    num_ops: int = 2
    magnitude: int = 9
    num_magnitude_bins: int = 31
    interpolation: str = "nearest"
    fill: int | tuple[int, int, int] = 0
    mask_fill: int = 0

    def __post_init__(self) -> None:
        count = integer(0, 1 << 10, "a whole number from 0 to 1024")
        bins = integer(2, 1 << 10, "a whole number from 2 to 1024")
        check(self, "RandAugment", " is ", num_ops=count, magnitude=count, num_magnitude_bins=bins)
        if self.magnitude >= self.num_magnitude_bins:
            msg = f"RandAugment: magnitude {self.magnitude} of {self.num_magnitude_bins}. Give one below num_magnitude_bins"
            raise PlanError(msg)
        check(self, "RandAugment", " is ", interpolation=INTERPOLATION)
        object.__setattr__(self, "fill", checked_color("RandAugment", "fill", self.fill))
        checked_label("RandAugment", self.mask_fill)

    @property
    def deterministic(self) -> bool:
        return self.num_ops == 0

    def evaluation(self) -> tuple[Transform, ...]:
        return ()

    def operations(self, key: np.uint64) -> list[tuple[str, int]]:
        """Return the names of the drawn operations, each with the sign of its magnitude."""
        u = draw(key, 2 * self.num_ops).tolist() if self.num_ops else []
        return [
            (OPERATIONS[int(a * len(OPERATIONS))], -1 if b <= _HALF else 1)
            for a, b in zip(u[::2], u[1::2], strict=True)
        ]

    def apply(self, pixels: Pixels, key: np.uint64) -> Pixels:
        for name, sign in self.operations(key):
            moved = self._moved(name, sign, *sides(pixels))
            if moved is not None:
                pixels = warped(pixels, moved, bytes(self.fill), linear=self.interpolation == "bilinear")
            elif name in _KINDS:
                adjust(pixels, [(_KINDS[name], 1 + sign * self._magnitude(name))])
            elif name == "Sharpness":
                sharper = np.empty_like(pixels)
                _augment.sharpen(pixels, sharper, *sides(pixels), 1 + sign * self._magnitude(name))
                pixels = sharper
            elif name != "Identity":
                _augment.look_up(pixels, self._table(name, pixels))
        return pixels

    def apply_to_mask(self, pixels: Pixels, key: np.uint64) -> Pixels:
        for name, sign in self.operations(key):
            moved = self._moved(name, sign, *sides(pixels))
            if moved is not None:
                pixels = warped(pixels, moved, mask_pixel(pixels, self.mask_fill), linear=False)
        return pixels

    def matrix(self, height: int, width: int, key: np.uint64) -> Matrix | None:
        product: Matrix | None = None
        for name, sign in self.operations(key):
            moved = self._moved(name, sign, height, width)
            if moved is not None:
                step = from_corner(moved, height, width)
                product = step if product is None else step @ np.vstack([product, [0, 0, 1]])
        return product

    def _magnitude(self, name: str) -> float:
        return _MOST[name] * self.magnitude / (self.num_magnitude_bins - 1)

    def _moved(self, name: str, sign: int, height: int, width: int) -> Matrix | None:
        """Return where an operation moves points, counted from the centre; None if it moves none."""
        if name not in _MOVING:
            return None
        if name == "Rotate":
            return affine(-sign * self._magnitude(name))
        if name in ("TranslateX", "TranslateY"):
            side = width if name == "TranslateX" else height
            shift = sign * float(int(_SHIFT * side * self.magnitude / (self.num_magnitude_bins - 1)))
            return affine(0, (shift, 0) if name == "TranslateX" else (0, shift))
        slope = sign * self._magnitude(name)  # its arc tangent is the angle, and the corner stays
        across = name == "ShearX"
        flat = np.array([[1, -slope, 0], [0, 1, 0]] if across else [[1, 0, 0], [-slope, 1, 0]], np.float64)
        middle = np.array([width / 2, height / 2])
        flat[:, 2] = flat[:, :2] @ middle - middle
        return flat

    def _table(self, name: str, pixels: Pixels) -> NDArray[np.uint8]:
        """Return what an operation makes of each byte per channel, shape [3, 256]."""
        byte = np.arange(256)
        if name == "Posterize":
            bits = int(np.rint(8 - np.float32(self.magnitude) / np.float32((self.num_magnitude_bins - 1) / 4)))
            return np.tile((byte & (((1 << bits) - 1) << (8 - bits))).astype(np.uint8), (3, 1))
        if name == "Solarize":
            threshold = 255 * (1 - self.magnitude / (self.num_magnitude_bins - 1))
            return np.tile(np.where(byte >= threshold, 255 - byte, byte).astype(np.uint8), (3, 1))
        counts = np.empty((3, 256), np.int64)
        _augment.count(pixels, counts)
        return np.stack([(_stretched if name == "AutoContrast" else _equalized)(each) for each in counts])


def _stretched(counts: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Return the table that stretches the bytes that occur to 0 to 255."""
    byte, present = np.arange(256, dtype=np.float32), np.flatnonzero(counts)
    low, high = np.float32(present[0]), np.float32(present[-1])
    if low == high:
        return np.arange(256, dtype=np.uint8)
    scale = (high - low) * np.float32(1 / 255)
    table: NDArray[np.uint8] = np.clip((byte - low) / scale, 0, 255).astype(np.uint8)
    return table


def _equalized(counts: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Return the table that levels the histogram, as Pillow does."""
    step = (counts.sum() - counts[np.flatnonzero(counts)[-1]]) // 255
    if step == 0:
        return np.arange(256, dtype=np.uint8)
    before = np.concatenate([[0], counts.cumsum()[:-1] + step // 2])
    table: NDArray[np.uint8] = np.clip(before // step, 0, 255).astype(np.uint8)
    return table
