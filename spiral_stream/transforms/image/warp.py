"""Transforms that sample an image along an affine map: `RandomRotation` and `RandomAffine`.

The map is torchvision's, around the image's centre, and the size stays. Bilinear values differ from torchvision's by at
most 1 of 255. The nearest pixel is another one only where two are equally near (about 0.01 % of pixels). Sines and
cosines are series of products and sums, so that every machine draws the same map.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import pi
from typing import ClassVar, Final, final

import numpy as np

from spiral_stream.arguments import check, class_door, is_number, one_of
from spiral_stream.errors import PlanError, shown
from spiral_stream.transforms import _augment
from spiral_stream.transforms.image.pixel_transform import (
    Matrix,
    Pixels,
    PixelTransform,
    between,
    checked_color,
    checked_label,
    checked_pair,
    draw,
    sides,
)
from spiral_stream.transforms.transform import Transform

INTERPOLATION: Final = one_of(("nearest", "bilinear"), '"nearest" or "bilinear"')
_TERMS: Final = 13  # of the series of sine and cosine: 1e-16 up to pi


class Warp(PixelTransform):
    """A transform that samples along an affine map."""

    MOVES: ClassVar[bool] = True
    deterministic: ClassVar[bool] = False

    interpolation: str
    fill: int | tuple[int, int, int]
    mask_fill: int

    def evaluation(self) -> tuple[Transform, ...]:
        return ()

    def apply(self, pixels: Pixels, key: np.uint64) -> Pixels:
        moved = self.centred(*sides(pixels), key)
        return warped(pixels, moved, bytes(self.fill), linear=self.interpolation == "bilinear")

    def apply_to_mask(self, pixels: Pixels, key: np.uint64) -> Pixels:
        return warped(pixels, self.centred(*sides(pixels), key), mask_pixel(pixels, self.mask_fill), linear=False)

    def matrix(self, height: int, width: int, key: np.uint64) -> Matrix:
        return from_corner(self.centred(height, width, key), height, width)

    def centred(self, height: int, width: int, key: np.uint64) -> Matrix:
        """Return where points go, counted from the image's centre."""
        raise NotImplementedError

    def _check(self) -> None:
        name = type(self).__name__
        check(self, name, " is ", interpolation=INTERPOLATION)
        object.__setattr__(self, "fill", checked_color(name, "fill", self.fill))
        checked_label(name, self.mask_fill)


@final
@class_door(PlanError)
@dataclass(frozen=True)
class RandomRotation(Warp):
    """Rotate around the centre by a random angle. The size stays, and corners are filled.

    Args:
        degrees: ``d`` draws from [-d, d]; or (least, most). Positive angles turn counter-clockwise.
        interpolation: ``"nearest"`` (as torchvision) or ``"bilinear"``. Masks are always sampled by the nearest pixel.
        fill: value outside the image: a byte, or three.
        mask_fill: value outside a mask.

    Raises:
        PlanError: an argument is out of range.

    Examples:
        >>> steps = [spiral.transforms.Resize((16, 16)), spiral.transforms.RandomRotation(15)]
        >>> image = spiral.Stack("image", decode="jpeg", transforms=steps)
        >>> samples.collate(batch_size=8, fields={"image": image}).to_numpy()[0]["image"].shape
        (8, 3, 16, 16)
    """

    NAME: ClassVar[str] = "random_rotation"

    degrees: float | tuple[float, float]
    interpolation: str = "nearest"
    fill: int | tuple[int, int, int] = 0
    mask_fill: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "degrees", _angles("RandomRotation", "degrees", self.degrees))
        self._check()

    def centred(self, height: int, width: int, key: np.uint64) -> Matrix:
        del height, width
        return affine(-between(float(draw(key, 1)[0]), self.degrees))  # type: ignore[arg-type]  # a pair


@final
@class_door(PlanError)
@dataclass(frozen=True)
class RandomAffine(Warp):
    """Rotate, shift, scale and shear by random amounts, around the centre. The size stays, and gaps are filled.

    Args:
        degrees: ``d`` draws from [-d, d]; or (least, most). Positive angles turn clockwise, as torchvision's.
        translate: greatest shift as fractions of width and height: (0.1, 0.1).
        scale: (least, most) of the factor.
        shear: degrees along x: ``s`` draws from [-s, s]; or (least, most); or four numbers, for x and y.
        interpolation: ``"nearest"`` (as torchvision) or ``"bilinear"``. Masks are always sampled by the nearest pixel.
        fill: value outside the image: a byte, or three.
        mask_fill: value outside a mask.

    Raises:
        PlanError: an argument is out of range.

    Examples:
        >>> warp = spiral.transforms.RandomAffine(10, translate=(0.1, 0.1), scale=(0.9, 1.1))
        >>> steps = [spiral.transforms.Resize((16, 16)), warp]
        >>> image = spiral.Stack("image", decode="jpeg", transforms=steps)
        >>> samples.collate(batch_size=8, fields={"image": image}).to_numpy()[0]["image"].shape
        (8, 3, 16, 16)
    """

    NAME: ClassVar[str] = "random_affine"

    degrees: float | tuple[float, float]
    translate: tuple[float, float] | None = None
    scale: tuple[float, float] | None = None
    shear: float | tuple[float, float] | tuple[float, float, float, float] | None = None
    interpolation: str = "nearest"
    fill: int | tuple[int, int, int] = 0
    mask_fill: int = 0

    def __post_init__(self) -> None:
        name = "RandomAffine"
        object.__setattr__(self, "degrees", _angles(name, "degrees", self.degrees))
        if self.translate is not None:
            pair = tuple(self.translate) if isinstance(self.translate, Sequence) else (self.translate,)
            if len(pair) != 2 or not all(is_number(each) and 0 <= each <= 1 for each in pair):  # noqa: PLR2004  x, y
                msg = f"{name}: translate is {shown(self.translate)}. Give fractions of width and height, from 0 to 1"
                raise PlanError(msg)
            object.__setattr__(self, "translate", tuple(map(float, pair)))
        if self.scale is not None:
            object.__setattr__(self, "scale", checked_pair(name, "scale", self.scale, 1e-3, 1e3))
        if isinstance(self.shear, Sequence) and len(self.shear) == 4:  # noqa: PLR2004  x, y
            x, y = (
                checked_pair(name, "shear", self.shear[:2], -89, 89),
                checked_pair(name, "shear", self.shear[2:], -89, 89),
            )
            object.__setattr__(self, "shear", (*x, *y))
        elif self.shear is not None:
            object.__setattr__(self, "shear", _angles(name, "shear", self.shear, 89))
        self._check()

    def centred(self, height: int, width: int, key: np.uint64) -> Matrix:
        u = draw(key, 6).tolist()
        shift = (0.0, 0.0)
        if self.translate is not None:
            x, y = self.translate[0] * width, self.translate[1] * height
            shift = (float(round(between(u[1], (-x, x)))), float(round(between(u[2], (-y, y)))))
        scale = 1.0 if self.scale is None else between(u[3], self.scale)
        shear: tuple[float, ...] = (0.0, 0.0) if self.shear is None else tuple(self.shear)  # type: ignore[arg-type]  # two or four
        along_x = 0.0 if self.shear is None else between(u[4], (shear[0], shear[1]))
        along_y = between(u[5], (shear[2], shear[3])) if len(shear) == 4 else 0.0  # noqa: PLR2004  x, y
        return affine(between(u[0], self.degrees), shift, scale, (along_x, along_y))  # type: ignore[arg-type]  # a pair


def affine(
    angle: float, shift: tuple[float, float] = (0, 0), scale: float = 1.0, shear: tuple[float, float] = (0, 0)
) -> Matrix:
    """Return torchvision's affine map of points counted from its centre, shape [2, 3].

    Args:
        angle: degrees, clockwise as the image is seen.
        shift: pixels to the right and down.
        scale: factor.
        shear: degrees along x and y.
    """
    sine, cosine = _sine_cosine(angle)
    sine_y, cosine_y = _sine_cosine(shear[1])
    sine_x, cosine_x = _sine_cosine(shear[0])
    tangent = sine_x / cosine_x
    a = (cosine * cosine_y + sine * sine_y) / cosine_y  # cos(angle - shear y) / cos(shear y)
    c = (sine * cosine_y - cosine * sine_y) / cosine_y
    b, d = -(a * tangent + sine), cosine - c * tangent
    return np.array([[scale * a, scale * b, shift[0]], [scale * c, scale * d, shift[1]]])


def warped(pixels: Pixels, moved: Matrix, fill: bytes, *, linear: bool) -> Pixels:
    """Return the image whose points are moved.

    Args:
        pixels: shape [H, W, C].
        moved: shape [2, 3]: where points go, counted from the centre.
        fill: one pixel, for places that nothing moves to.
        linear: bilinear sampling, for uint8 RGB; else the nearest pixel.
    """
    (a, b, x), (c, d, y) = moved.tolist()
    det = a * d - b * c
    back = [d / det, -b / det, (b * y - d * x) / det, -c / det, a / det, (c * x - a * y) / det]
    out = np.empty_like(pixels)
    _augment.warp(pixels, out, *sides(pixels), np.array(back, np.float32), fill, linear)
    return out


def from_corner(moved: Matrix, height: int, width: int) -> Matrix:
    """Return a map of points counted from the image's corner, of one of points counted from its centre."""
    middle = np.array([width / 2, height / 2])
    out = moved.copy()
    out[:, 2] += middle - moved[:, :2] @ middle
    return out


def mask_pixel(pixels: Pixels, value: int) -> bytes:
    """Return a pixel of a mask whose channels have this value; values beyond its type are cut to the largest."""
    return np.full(pixels.shape[2], min(value, int(np.iinfo(pixels.dtype).max)), pixels.dtype).tobytes()


def _sine_cosine(degrees: float) -> tuple[float, float]:
    """Sine and cosine, the same on every machine: their series, after turning by whole circles and quarters."""
    quarters = round(degrees / 90)
    x = (degrees - 90 * quarters) * pi / 180
    sine = cosine = 0.0
    for k in range(_TERMS, -1, -1):  # Horner, of x**2
        sine = 1 - sine * x * x / ((2 * k + 2) * (2 * k + 3))
        cosine = 1 - cosine * x * x / ((2 * k + 1) * (2 * k + 2))
    sine *= x
    return ((sine, cosine), (cosine, -sine), (-sine, -cosine), (-cosine, sine))[quarters % 4]


def _angles(name: str, what: str, given: object, most: float = 3600) -> tuple[float, float]:
    if is_number(given):
        if given < 0:
            msg = f"{name}: {what} is {shown(given)}. Give a number from 0 on, or (least, most)"
            raise PlanError(msg)
        given = (-given, given)
    return checked_pair(name, what, given, -most, most)
