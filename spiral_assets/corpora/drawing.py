"""Draw demo images: 1/f backgrounds with a horizon, and several objects of one class.

JPEG decoding costs what the coefficients cost, so the pictures have the spectrum
and the grain of photographs. Shape and pattern show the class; colours are
independent of it, so the mean colour of an image says nothing. Noise
fields are made once and cropped: an image costs about 4 CPU ms with its encoding.
"""

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

# C channels, H W image, S S the square an object is drawn in
Plane = NDArray[np.float32]

FIELD_SIDE: Final = 1024
LONGEST_SIDE: Final = 580
LANDSCAPE_SHARE: Final = 0.75
CONTRAST: Final = 80  # grey levels between the two colours of an object
GREY: Final = (0.299, 0.587, 0.114)


class Painter:
    """Draws images by number. Holds its noise fields and a canvas, so one thread uses one painter.

    Args:
        seed: two painters of one seed draw the same images, in any order.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        rng = np.random.default_rng([seed, 0])
        self._textures = [noise(rng, slope=1.1), noise(rng, slope=0.9, stretch=5.0), noise(rng, slope=1.3)]
        self._tint = noise(rng, slope=1.8)
        self._grain = noise(rng, slope=0.25)
        self._canvas = np.empty(3 * LONGEST_SIDE * LONGEST_SIDE, np.float32)

    def draw(self, number: int, label: int) -> NDArray[np.uint8]:
        """Draw image ``number`` with objects of class ``label``.

        Returns:
            shape [H, W, 3], uint8 RGB; the sides vary around 500 x 375, `LANDSCAPE_SHARE` of them lie flat.
        """
        rng = np.random.default_rng([self._seed, 1, number])
        long = int(rng.integers(430, LONGEST_SIDE))
        short = int(long / rng.choice([1.33, 1.33, 1.33, 1.5, 1.25, 1.78]))
        height, width = (short, long) if rng.random() < LANDSCAPE_SHARE else (long, short)
        canvas = self._canvas[: 3 * height * width].reshape(3, height, width)
        horizon = int(height * rng.uniform(0.15, 0.85))
        detail = float(np.clip(rng.lognormal(2.45, 0.4), 4, 26))  # grey levels; decides the file's size
        self._background(canvas[:, :horizon], rng, detail * 0.6)
        self._background(canvas[:, horizon:], rng, detail)
        for _ in range(int(rng.integers(3, 7))):
            self._object(canvas, label, rng)
        image = np.empty((height, width, 3), np.uint8)
        np.clip(canvas, 0, 255, out=canvas)
        for channel in range(3):
            image[..., channel] = canvas[channel]
        return image

    def _background(self, region: Plane, rng: np.random.Generator, detail: float) -> None:
        """Fill ``region``, shape [3, h, W], with one coloured texture under a light gradient."""
        _, height, width = region.shape
        light = cut(self._textures[rng.integers(3)], height, width, rng) * np.float32(rng.uniform(18, 38))
        light += cut(self._grain, height, width, rng) * np.float32(detail)
        top, bottom = rng.uniform(-30, 30, 2)
        light += np.linspace(top, bottom, height, dtype=np.float32)[:, None]
        tint = cut(self._tint, height, width, rng)
        base, gain, shift = rng.uniform(60, 190) + rng.normal(0, 20, 3), rng.uniform(0.85, 1.1, 3), rng.normal(0, 10, 3)
        for channel in range(3):
            np.multiply(tint, np.float32(shift[channel]), out=region[channel])
            region[channel] += light * np.float32(gain[channel])
            region[channel] += np.float32(base[channel])

    def _object(self, canvas: Plane, label: int, rng: np.random.Generator) -> None:
        """Blend one object of class ``label`` into ``canvas``, shape [3, H, W]; it may lie partly outside."""
        _, height, width = canvas.shape
        side = int(min(height, width) * rng.uniform(0.25, 0.55))
        top, left = (int(rng.integers(-side // 4, extent - 3 * side // 4)) for extent in (height, width))
        rows = slice(max(top, 0), min(top + side, height))
        columns = slice(max(left, 0), min(left + side, width))
        y = (np.arange(rows.start, rows.stop, dtype=np.float32)[:, None] - top) * np.float32(2 / side) - 1
        x = (np.arange(columns.start, columns.stop, dtype=np.float32) - left) * np.float32(2 / side) - 1
        turn = rng.uniform(-0.5, 0.5)
        cos, sin = np.float32(np.cos(turn)), np.float32(np.sin(turn))
        u, v = x * cos + y * sin, y * cos - x * sin
        inside, pattern = SHAPES[label](u, v)
        alpha = np.clip(inside * np.float32(side / 3) + np.float32(0.5), 0, 1)
        shade: Plane = 1 + np.float32(rng.uniform(-0.3, 0.3)) * x + np.float32(rng.uniform(-0.3, 0.3)) * y
        shade += cut(self._grain, len(y), len(x), rng) * np.float32(rng.uniform(0.02, 0.09))
        first, second = _two_colours(rng)
        for channel in range(3):
            paint = pattern * np.float32(first[channel] - second[channel]) + np.float32(second[channel])
            paint *= shade
            part = canvas[channel, rows, columns]
            paint -= part
            paint *= alpha
            part += paint


def noise(rng: np.random.Generator, slope: float, stretch: float = 1.0) -> Plane:
    """Noise of mean 0 and deviation 1 with amplitude ``f ** -slope``; ``stretch`` > 1 flattens it.

    Returns:
        shape [FIELD_SIDE, FIELD_SIDE], float32, periodic.
    """
    vertical = np.fft.fftfreq(FIELD_SIDE)[:, None]
    horizontal = np.fft.rfftfreq(FIELD_SIDE) * stretch
    frequency = np.maximum(np.hypot(vertical, horizontal), 2 / FIELD_SIDE)
    field = np.fft.irfft2(np.fft.rfft2(rng.standard_normal((FIELD_SIDE, FIELD_SIDE))) * frequency**-slope)
    field -= field.mean()
    return np.asarray(field / field.std(), np.float32)


def cut(field: Plane, height: int, width: int, rng: np.random.Generator) -> Plane:
    """Return a part of a noise field as a view; its sides are less than `FIELD_SIDE`."""
    top, left = rng.integers(0, FIELD_SIDE - height), rng.integers(0, FIELD_SIDE - width)
    return field[top : top + height, left : left + width]


def _two_colours(rng: np.random.Generator) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return two RGB colours at least `CONTRAST` apart, so that their pattern is visible."""
    while True:
        first, second = rng.uniform(10, 245, (2, 3))
        if abs(float((first - second) @ GREY)) > CONTRAST:
            return first, second


# A shape takes object coordinates, shape [S, S], the object filling [-1, 1], and returns how far inside a
# pixel lies (negative: outside) and which of two colours it has (0 to 1).


def _ball(u: Plane, v: Plane) -> tuple[Plane, Plane]:
    radius = np.hypot(u, v)
    return np.float32(0.95) - radius, np.clip(1.1 - np.hypot(u + 0.35, v + 0.35), 0, 1)


def _ring(u: Plane, v: Plane) -> tuple[Plane, Plane]:
    radius = np.hypot(u, v)
    return np.float32(0.22) - np.abs(radius - np.float32(0.72)), _soft(radius - np.float32(0.72))


def _diamond(u: Plane, v: Plane) -> tuple[Plane, Plane]:
    inside = 1 - np.abs(u) - np.abs(v)
    return inside, _soft(np.sin(7 * u + 7 * v) * np.sin(7 * u - 7 * v))


def _flag(u: Plane, v: Plane) -> tuple[Plane, Plane]:
    return np.minimum(np.float32(0.95) - np.abs(u), np.float32(0.62) - np.abs(v)), _soft(np.sin(11 * u))


def _ladder(u: Plane, v: Plane) -> tuple[Plane, Plane]:
    inside = np.minimum(np.float32(0.5) - np.abs(u), np.float32(0.98) - np.abs(v))
    return inside, np.minimum(_soft(np.sin(14 * v)), _soft(np.float32(0.34) - np.abs(u)))


def _star(u: Plane, v: Plane) -> tuple[Plane, Plane]:
    radius, wave = np.hypot(u, v), _five_fold(u, v)
    point = (wave + 1) * np.float32(0.5)
    return np.float32(0.36) + np.float32(0.62) * point * point - radius, point


def _flower(u: Plane, v: Plane) -> tuple[Plane, Plane]:
    radius, wave = np.hypot(u, v), _five_fold(v, u)
    return np.float32(0.7) + np.float32(0.26) * wave - radius, _soft(np.float32(0.3) - radius)


def _cross(u: Plane, v: Plane) -> tuple[Plane, Plane]:
    across, along = np.abs(u), np.abs(v)
    wide, narrow = np.maximum(across, along), np.minimum(across, along)
    return np.minimum(np.float32(0.3) - narrow, np.float32(0.95) - wide), _soft(np.float32(0.15) - narrow)


def _target(u: Plane, v: Plane) -> tuple[Plane, Plane]:
    radius = np.hypot(u, v)
    return np.float32(0.96) - radius, _soft(np.sin(17 * radius))


def _dice(u: Plane, v: Plane) -> tuple[Plane, Plane]:
    inside = np.float32(0.78) - np.maximum(np.abs(u), np.abs(v))
    return inside, _soft(np.cos(8 * u) + np.cos(8 * v) - np.float32(0.9))


def _soft(signed: Plane) -> Plane:
    """A step at 0 with an edge of a few pixels."""
    return np.asarray(np.clip(signed * 6 + np.float32(0.5), 0, 1), np.float32)


def _five_fold(u: Plane, v: Plane) -> Plane:
    """``cos(5 * angle)`` by its Chebyshev polynomial: a fifth of the cost of an arctangent."""
    cos = v / np.maximum(np.hypot(u, v), np.float32(1e-6))
    square = cos * cos
    return np.asarray(cos * (5 - 20 * square + 16 * square * square), np.float32)


SHAPES: Final[tuple[Callable[[Plane, Plane], tuple[Plane, Plane]], ...]] = (
    _ball, _ring, _diamond, _flag, _ladder, _star, _flower, _cross, _target, _dice,
)  # fmt: skip
CLASSES: Final = tuple(shape.__name__.removeprefix("_") for shape in SHAPES)
