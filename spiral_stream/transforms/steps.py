"""The steps of an image: each moves boxes, none touches pixels.

`RandomResizedCrop`, `CenterCrop` and `RandomCrop` choose a box, `Resize` and `RandomResizedCrop` set the
size it is resized to, the crops after a resize cut a window, `RandomHorizontalFlip` marks a mirror.
`Normalize` stands last and is no step of boxes. Boxes follow torchvision.transforms.v2; numbers are drawn
from the sample's own bits. All geometry is array code: about 1 us an image for 256 images.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Context, Decimal
from functools import lru_cache
from typing import ClassVar, Final, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.errors import DataError, PlanError, shown
from spiral_stream.transforms.placement import Placement, at_row, portable_exp, sized_to_shorter
from spiral_stream.transforms.transform import Transform, checked_range, checked_size, is_number

# B images of a batch; one-dimensional arrays are [B]

Int = NDArray[np.int64]
Draw = Callable[[int], NDArray[np.float64]]

_TRIES: Final = 10  # boxes that RandomResizedCrop tries before it takes the centre, as torchvision
_DIGITS: Final = Context(prec=28)  # logarithms in software: math.log differs between C libraries


class ImageTransform(Transform):
    """A step that moves boxes."""

    RESIZES: ClassVar[bool] = False  # sets the resized size, which a fused chain does once

    @abstractmethod
    def place(self, at: Placement, draw: Draw, *, resized: bool) -> Placement:
        """Move the boxes of a batch.

        Args:
            at: where the images stand.
            draw: numbers a sample -> shape [B, n], float64 in [0, 1), this step's own.
            resized: whether a step before this one has resized.

        Raises:
            DataError: an image is too small.
        """

    @abstractmethod
    def size_after(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        """The (height, width) that this step leaves; None where it depends on the image."""


@final
@dataclass(frozen=True)
class RandomResizedCrop(ImageTransform):
    """A box of random area and ratio, resized to ``size``.

    ``scale`` bounds the area as a part of the image, ``ratio`` bounds width / height
    (log-uniform). Ten boxes are tried; if none fits, the central box of the nearest
    ratio is taken, as in torchvision.
    """

    NAME: ClassVar[str] = "random_resized_crop"
    RESIZES: ClassVar[bool] = True

    size: int | tuple[int, int]
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", checked_size("RandomResizedCrop", self.size))
        object.__setattr__(self, "scale", checked_range("RandomResizedCrop", "scale", self.scale))
        object.__setattr__(self, "ratio", checked_range("RandomResizedCrop", "ratio", self.ratio))
        if self.scale[1] > 1:
            msg = f"RandomResizedCrop: scale {self.scale} asks for more than the image; its upper end is at most 1.0"
            raise PlanError(msg)

    @property
    def deterministic(self) -> bool:
        return False

    def evaluation(self) -> tuple[Transform, ...]:
        """Resize to 8/7 of the longer target side, then the centre: 224 -> Resize(256), CenterCrop(224)."""
        return Resize(-(-max(_pair(self.size)) * 8 // 7)), CenterCrop(self.size)

    def place(self, at: Placement, draw: Draw, *, resized: bool) -> Placement:
        del resized  # `compile_image` refuses a second resize
        boxes = self._boxes(at.height, at.width, draw(2 * _TRIES + 2))
        size_h, size_w = _pair(self.size)
        return at.crop(*boxes).resize(np.full_like(at.height, size_h), np.full_like(at.width, size_w))

    def size_after(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        del size
        return _pair(self.size)

    def _boxes(self, height: Int, width: Int, u: NDArray[np.float64]) -> tuple[Int, Int, Int, Int]:
        """Top, left, height, width of each box; columns 2t, 2t+1 of ``u`` are try t, the last two the place."""
        low, high = map(_logarithm, self.ratio)
        area = (height * width)[:, None] * (self.scale[0] + u[:, 0 : 2 * _TRIES : 2] * (self.scale[1] - self.scale[0]))
        aspect = portable_exp(low + u[:, 1 : 2 * _TRIES : 2] * (high - low))
        tried_w = np.rint(np.sqrt(area * aspect)).astype(np.int64)
        tried_h = np.rint(np.sqrt(area / aspect)).astype(np.int64)
        fits = (tried_w > 0) & (tried_w <= width[:, None]) & (tried_h > 0) & (tried_h <= height[:, None])
        found, first = fits.any(axis=1), fits.argmax(axis=1)
        row = np.arange(len(height))

        shape = width / height
        tall, wide = shape < self.ratio[0], shape > self.ratio[1]
        central_h = np.where(tall, np.maximum(1, np.rint(width / self.ratio[0])), height).astype(np.int64)
        central_w = np.where(wide, np.maximum(1, np.rint(height * self.ratio[1])), width).astype(np.int64)

        box_h = np.where(found, tried_h[row, first], central_h)
        box_w = np.where(found, tried_w[row, first], central_w)
        room_h, room_w = height - box_h, width - box_w
        top = np.where(found, np.floor(u[:, -2] * (room_h + 1)).astype(np.int64), room_h // 2)
        left = np.where(found, np.floor(u[:, -1] * (room_w + 1)).astype(np.int64), room_w // 2)
        return top, left, box_h, box_w


@final
@dataclass(frozen=True)
class RandomHorizontalFlip(ImageTransform):
    """Mirror left and right with probability ``p``."""

    NAME: ClassVar[str] = "random_horizontal_flip"

    p: float = 0.5

    def __post_init__(self) -> None:
        if not is_number(self.p) or not 0 <= self.p <= 1:
            msg = f"RandomHorizontalFlip: p is {shown(self.p)}; it must be a number from 0 to 1"
            raise PlanError(msg)
        object.__setattr__(self, "p", float(self.p))

    @property
    def deterministic(self) -> bool:
        return self.p in (0, 1)

    def evaluation(self) -> tuple[Transform, ...]:
        return ()

    def place(self, at: Placement, draw: Draw, *, resized: bool) -> Placement:
        del resized
        return replace(at, flip=at.flip ^ (draw(1)[:, 0] < self.p))

    def size_after(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        return size


@final
@dataclass(frozen=True)
class Resize(ImageTransform):
    """Resize the shorter side to ``size`` (the longer is cut to a whole pixel), or to exactly (height, width)."""

    NAME: ClassVar[str] = "resize"
    RESIZES: ClassVar[bool] = True

    size: int | tuple[int, int]

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", checked_size("Resize", self.size))

    @property
    def deterministic(self) -> bool:
        return True

    def place(self, at: Placement, draw: Draw, *, resized: bool) -> Placement:
        del draw, resized
        if isinstance(self.size, tuple):
            return at.resize(np.full_like(at.height, self.size[0]), np.full_like(at.width, self.size[1]))
        return at.resize(*sized_to_shorter(at.height, at.width, self.size))

    def size_after(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        if isinstance(self.size, tuple) or size is None:
            return self.size if isinstance(self.size, tuple) else None
        height, width = sized_to_shorter(np.array(size[0]), np.array(size[1]), self.size)
        return int(height), int(width)


@final
@dataclass(frozen=True)
class CenterCrop(ImageTransform):
    """The middle ``size`` of the image. A smaller image is an error, never padded."""

    NAME: ClassVar[str] = "center_crop"

    size: int | tuple[int, int]

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", checked_size("CenterCrop", self.size))

    @property
    def deterministic(self) -> bool:
        return True

    def place(self, at: Placement, draw: Draw, *, resized: bool) -> Placement:
        del draw
        room_h, room_w = _room("CenterCrop", at, self.size)
        top, left = np.rint(room_h / 2).astype(np.int64), np.rint(room_w / 2).astype(np.int64)
        return _window(at, self.size, top, left, resized=resized)

    def size_after(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        del size
        return _pair(self.size)


@final
@dataclass(frozen=True)
class RandomCrop(ImageTransform):
    """A window of ``size`` at a random place, each place equally likely. A smaller image is an error, never padded."""

    NAME: ClassVar[str] = "random_crop"

    size: int | tuple[int, int]

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", checked_size("RandomCrop", self.size))

    @property
    def deterministic(self) -> bool:
        return False

    def evaluation(self) -> tuple[Transform, ...]:
        """The middle."""
        return (CenterCrop(self.size),)

    def place(self, at: Placement, draw: Draw, *, resized: bool) -> Placement:
        room_h, room_w = _room("RandomCrop", at, self.size)
        u = draw(2)
        top, left = np.floor(u[:, 0] * (room_h + 1)).astype(np.int64), np.floor(u[:, 1] * (room_w + 1)).astype(np.int64)
        return _window(at, self.size, top, left, resized=resized)

    def size_after(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        del size
        return _pair(self.size)


@final
@dataclass(frozen=True)
class Normalize(Transform):
    """(x - mean) / std a channel, of pixels scaled to [0, 1]; the last step of a chain."""

    NAME: ClassVar[str] = "normalize"

    mean: Sequence[float]  # three: red, green, blue; kept as a tuple
    std: Sequence[float]  # likewise

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            given = getattr(self, name)
            if not isinstance(given, Sequence) or len(given) != 3 or not all(map(is_number, given)):  # noqa: PLR2004  R, G, B
                msg = f"Normalize: {name} is {shown(given)}; give three numbers, for red, green and blue"
                raise PlanError(msg)
            object.__setattr__(self, name, tuple(float(value) for value in given))
        if min(self.std) <= 0:
            msg = f"Normalize: std is {self.std}; every entry must be greater than 0"
            raise PlanError(msg)

    @property
    def deterministic(self) -> bool:
        return True


TRANSFORMS: Final[Mapping[str, type[Transform]]] = {
    kind.NAME: kind for kind in (RandomResizedCrop, RandomHorizontalFlip, Resize, CenterCrop, RandomCrop, Normalize)
}


@lru_cache(maxsize=64)
def _logarithm(ratio: float) -> float:
    """Natural logarithm, the same on every machine; 65 us where it is not remembered, more than a clip's geometry."""
    return float(Decimal(ratio).ln(_DIGITS))


def _room(name: str, at: Placement, size: int | tuple[int, int]) -> tuple[Int, Int]:
    """Rows and columns that a crop leaves over.

    Raises:
        DataError: an image is smaller than the crop.
    """
    h, w = _pair(size)
    small = np.flatnonzero((at.window_h < h) | (at.window_w < w))
    if len(small):
        i = int(small[0])
        msg = (
            f"{name}: image {i} of the call is {at.window_h[i]} x {at.window_w[i]} (height x width) there, "
            f"smaller than the {h} x {w} asked for. Put Resize({max(h, w)}) or larger before it, or filter small "
            "images out"
        )
        raise at_row(DataError(msg), i)
    return at.window_h - h, at.window_w - w


def _window(at: Placement, size: int | tuple[int, int], top: Int, left: Int, *, resized: bool) -> Placement:
    """Cut (height, width) at the places that are seen after the mirror; boxes are kept as before it."""
    h, w = _pair(size)
    left = np.where(at.flip, at.window_w - w - left, left)
    high, wide = np.full_like(top, h), np.full_like(left, w)
    if not resized:
        return at.crop(top, left, high, wide)
    return replace(at, window_top=at.window_top + top, window_left=at.window_left + left, window_h=high, window_w=wide)


def _pair(size: int | tuple[int, int]) -> tuple[int, int]:
    return size if isinstance(size, tuple) else (size, size)
