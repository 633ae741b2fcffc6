"""Colour transforms and blur: `ColorJitter`, `Grayscale`, `RandomGrayscale`, `GaussianBlur`.

The arithmetic is torchvision's on uint8 tensors, in C (`_augment.c`). One adjustment differs by at most 1 of 255 from
torchvision's, and four in a row by at most 4; fewer than 0.2 % of values differ by more than 2. Means are exact here, and
rounded in torchvision.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Final, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.arguments import class_door, is_integer, is_number
from spiral_stream.errors import DataError, PlanError, shown
from spiral_stream.transforms import _augment
from spiral_stream.transforms.image.pixel_transform import (
    Pixels,
    PixelTransform,
    between,
    checked_pair,
    draw,
)
from spiral_stream.transforms.image.placement import portable_exp
from spiral_stream.transforms.transform import Transform, checked_chance

BRIGHTNESS, CONTRAST, SATURATION, HUE, GRAY = range(5)  # kinds of `_augment.adjust`
_MOST: Final = 100.0  # a factor beyond it leaves black and white
_PAIR: Final = 2
_FAINT: Final = -60.0  # e**-60 of a weight is nothing in float32


@final
@class_door(PlanError)
@dataclass(frozen=True)
class ColorJitter(PixelTransform):
    """Change brightness, contrast, saturation and hue by random factors, in random order.

    Args:
        brightness: ``b`` draws a factor from [max(0, 1 - b), 1 + b]; or (least, most).
        contrast: likewise.
        saturation: likewise.
        hue: ``h`` draws a turn from [-h, h], with h up to 0.5; or (least, most).
        p: probability that the image is changed at all.

    Raises:
        PlanError: a range or probability is out of bounds.

    Examples:
        >>> steps = [spiral.transforms.Resize((16, 16)), spiral.transforms.ColorJitter(0.4, 0.4, 0.2, 0.1, p=0.8)]
        >>> image = spiral.Stack("image", decode="jpeg", transforms=steps)
        >>> samples.collate(batch_size=8, fields={"image": image}).to_numpy()[0]["image"].dtype
        dtype('uint8')
    """

    NAME: ClassVar[str] = "color_jitter"
    deterministic: ClassVar[bool] = False

    brightness: float | tuple[float, float] = 0.0
    contrast: float | tuple[float, float] = 0.0
    saturation: float | tuple[float, float] = 0.0
    hue: float | tuple[float, float] = 0.0
    p: float = 1.0

    def __post_init__(self) -> None:
        for name in ("brightness", "contrast", "saturation"):
            object.__setattr__(self, name, _range(name, getattr(self, name), 1.0, 0.0, _MOST))
        object.__setattr__(self, "hue", _range("hue", self.hue, 0.0, -0.5, 0.5))
        object.__setattr__(self, "p", checked_chance("ColorJitter", self.p))

    def evaluation(self) -> tuple[Transform, ...]:
        return ()

    def apply(self, pixels: Pixels, key: np.uint64) -> Pixels:
        u = draw(key, 8)
        if u[0] >= self.p:
            return pixels
        ranges = (self.brightness, self.contrast, self.saturation, self.hue)
        factors = [between(float(at), each) for at, each in zip(u[1:5], ranges, strict=True)]  # type: ignore[arg-type]  # pairs
        still = [(1.0, 1.0)] * 3 + [(0.0, 0.0)]
        order = [kind for kind in _shuffled(u[5:8]) if ranges[kind] != still[kind]]
        adjust(pixels, [(kind, factors[kind]) for kind in order])
        return pixels


@final
@dataclass(frozen=True)
class Grayscale(PixelTransform):
    """Replace colours by three equal channels of gray: 0.2989 red, 0.587 green and 0.114 blue.

    Examples:
        >>> steps = [spiral.transforms.Resize((16, 16)), spiral.transforms.Grayscale()]
        >>> image = spiral.Stack("image", decode="jpeg", transforms=steps)
        >>> samples.collate(batch_size=8, fields={"image": image}).to_numpy()[0]["image"].shape
        (8, 3, 16, 16)
    """

    NAME: ClassVar[str] = "grayscale"
    deterministic: ClassVar[bool] = True

    def apply(self, pixels: Pixels, key: np.uint64) -> Pixels:
        del key
        adjust(pixels, [(GRAY, 0.0)])
        return pixels


@final
@class_door(PlanError)
@dataclass(frozen=True)
class RandomGrayscale(PixelTransform):
    """`Grayscale` with probability ``p``.

    Args:
        p: from 0 to 1.

    Raises:
        PlanError: ``p`` is out of range.

    Examples:
        >>> steps = [spiral.transforms.Resize((16, 16)), spiral.transforms.RandomGrayscale(0.2)]
        >>> image = spiral.Stack("image", decode="jpeg", transforms=steps)
        >>> samples.collate(batch_size=8, fields={"image": image}).to_numpy()[0]["image"].shape
        (8, 3, 16, 16)
    """

    NAME: ClassVar[str] = "random_grayscale"

    p: float = 0.1

    def __post_init__(self) -> None:
        object.__setattr__(self, "p", checked_chance("RandomGrayscale", self.p))

    @property
    def deterministic(self) -> bool:
        return self.p in (0, 1)

    def evaluation(self) -> tuple[Transform, ...]:
        return ()

    def apply(self, pixels: Pixels, key: np.uint64) -> Pixels:
        if draw(key, 1)[0] < self.p:
            adjust(pixels, [(GRAY, 0.0)])
        return pixels


@final
@class_door(PlanError)
@dataclass(frozen=True)
class GaussianBlur(PixelTransform):
    """Blur with a Gaussian of random width. Borders are mirrored.

    Args:
        kernel_size: odd number of pixels across and down, or (down, across) as torchvision's (height, width).
        sigma: standard deviation in pixels, or (least, most) of a random one.
        p: probability that the image is blurred.

    Raises:
        PlanError: a size is even, or a range or probability is out of bounds.

    Examples:
        >>> steps = [spiral.transforms.Resize((16, 16)), spiral.transforms.GaussianBlur(5, (0.1, 2.0), p=0.5)]
        >>> image = spiral.Stack("image", decode="jpeg", transforms=steps)
        >>> samples.collate(batch_size=8, fields={"image": image}).to_numpy()[0]["image"].shape
        (8, 3, 16, 16)
    """

    NAME: ClassVar[str] = "gaussian_blur"

    kernel_size: int | tuple[int, int]
    sigma: float | tuple[float, float] = (0.1, 2.0)
    p: float = 1.0

    def __post_init__(self) -> None:
        size = self.kernel_size
        sides = tuple(size) if isinstance(size, Sequence) else (size, size)
        if len(sides) != _PAIR or not all(is_integer(n, 1) and n % 2 for n in sides):
            msg = f"GaussianBlur: kernel_size is {shown(size)}. Give an odd number of pixels, or two: (down, across)"
            raise PlanError(msg)
        object.__setattr__(self, "kernel_size", sides)
        sigma = (self.sigma, self.sigma) if is_number(self.sigma) else self.sigma
        object.__setattr__(self, "sigma", checked_pair("GaussianBlur", "sigma", sigma, 1e-3, 1e3))
        object.__setattr__(self, "p", checked_chance("GaussianBlur", self.p))

    @property
    def deterministic(self) -> bool:
        least, most = self.sigma  # type: ignore[misc]  # a pair
        return least == most and self.p in (0, 1)

    def evaluation(self) -> tuple[Transform, ...]:
        return (self,) if self.deterministic else ()

    def apply(self, pixels: Pixels, key: np.uint64) -> Pixels:
        u = draw(key, 2)
        if u[0] >= self.p:
            return pixels
        down, across = self.kernel_size  # type: ignore[misc]  # a pair
        return blurred(pixels, between(float(u[1]), self.sigma), down, across)  # type: ignore[arg-type]  # a pair


def adjust(pixels: Pixels, steps: Sequence[tuple[int, float]]) -> None:
    """Adjust colours in place: pairs of kind and factor, one after another."""
    if steps:
        kinds, factors = zip(*steps, strict=True)
        _augment.adjust(pixels, np.array(kinds, np.int32), np.array(factors, np.float32))


def blurred(pixels: Pixels, sigma: float, down: int, across: int) -> Pixels:
    """Return the blurred image.

    Raises:
        DataError: the image is smaller than half of the kernel.
    """
    height, width = pixels.shape[:2]
    if down // 2 >= height or across // 2 >= width:
        msg = (
            f"GaussianBlur: the image is {height} x {width} there, too small for a kernel of {down} x {across}. Put Resize "
            "before it, or take a smaller kernel_size"
        )
        raise DataError(msg)
    out = np.empty_like(pixels)
    _augment.blur(pixels, out, height, width, _weights(across, sigma), _weights(down, sigma))
    return out


@lru_cache(maxsize=256)
def _weights(size: int, sigma: float) -> NDArray[np.float32]:
    """Return the weights of torchvision's Gaussian, shape [size]."""
    reach = (size - 1) / (2 * np.sqrt(2.0))
    x = np.linspace(-reach, reach, size) / sigma
    weights = portable_exp(np.maximum(-x * x, _FAINT))
    found: NDArray[np.float32] = (weights / weights.sum()).astype(np.float32)
    return found


def _range(what: str, given: object, centre: float, low: float, high: float) -> tuple[float, float]:
    if is_number(given):
        if given < 0:
            msg = f"ColorJitter: {what} is {shown(given)}. Give a number from 0 on, or (least, most)"
            raise PlanError(msg)
        given = (max(low, centre - given), centre + given)
    return checked_pair("ColorJitter", what, given, low, high)


def _shuffled(u: NDArray[np.float64]) -> list[int]:
    """Return 0 to 3 in the order that three random numbers choose (Fisher and Yates)."""
    left = list(range(4))
    first = [left.pop(int(each * len(left))) for each in u.tolist()]
    return first + left
