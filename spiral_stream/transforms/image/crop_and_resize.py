"""The image transforms that crop, resize, flip and normalize. Each moves boxes; none touches pixels.

`RandomResizedCrop`, `CenterCrop` and `RandomCrop` choose a box of the source. `Resize` and `RandomResizedCrop` set the
size that the box is resized to. A crop after a resize cuts a window of the result. `RandomHorizontalFlip` marks images
to be mirrored. `Normalize` comes last and moves no box.

Boxes are those of torchvision.transforms.v2. Random numbers are drawn from each sample's own key. The geometry is array
code and costs about 1 us per image, for 256 images.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Context, Decimal
from functools import lru_cache
from typing import ClassVar, Final, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.arguments import check, class_door, is_number, one_of
from spiral_stream.errors import DataError, PlanError, shown
from spiral_stream.transforms.image.placement import Placement, portable_exp, sized_to_cover, sized_to_shorter
from spiral_stream.transforms.transform import Transform, checked_chance, checked_range, checked_size, plain

# B images of a batch; one-dimensional arrays are [B]

Int = NDArray[np.int64]
Draw = Callable[[int], NDArray[np.float64]]

BILINEAR: Final = "bilinear"
BICUBIC: Final = "bicubic"
_INTERPOLATIONS: Final = one_of((BILINEAR, BICUBIC))
_TRIES: Final = 10  # boxes that RandomResizedCrop tries before it takes the centre, as torchvision
_DIGITS: Final = Context(prec=28)  # logarithms in software: math.log differs between C libraries


class ImageTransform(Transform):
    """A transform that moves boxes.

    Examples:
        >>> isinstance(spiral.transforms.Resize(64), spiral.transforms.ImageTransform)
        True
    """

    RESIZES: ClassVar[bool] = False  # whether it resizes; a chain may do so once

    @abstractmethod
    def place(self, at: Placement, draw: Draw, *, resized: bool) -> Placement:
        """Move the boxes of a batch.

        Args:
            at: the boxes so far.
            draw: ``draw(n)`` gives n random numbers per image: shape [B, n], float64 in [0, 1).
            resized: whether an earlier step has resized.

        Raises:
            DataError: an image is too small; ``row`` is its place in the batch.
        """

    @abstractmethod
    def size_after(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        """The (height, width) after this step; None if it depends on the image."""


@final
@class_door(PlanError)
@dataclass(frozen=True)
class RandomResizedCrop(ImageTransform):
    """Cut a box of random area and ratio, and resize it to ``size``.

    Ten boxes are tried. If none fits, the central box of the nearest ratio is taken, as in torchvision.

    Args:
        size: pixels of both sides, or (height, width).
        scale: bounds of the box's area, as a fraction of the image's.
        ratio: bounds of the box's width / height, drawn log-uniformly.

    Raises:
        PlanError: the size or a range is out of bounds.

    Examples:
        >>> steps = [spiral.RandomResizedCrop(16, scale=(0.2, 1.0))]
        >>> samples.collate(
        ...     batch_size=8, fields={"image": spiral.Stack("image", decode="jpeg", transforms=steps)}
        ... ).to_numpy()[0]["image"].shape
        (8, 3, 16, 16)
    """

    NAME: ClassVar[str] = "random_resized_crop"
    RESIZES: ClassVar[bool] = True
    deterministic: ClassVar[bool] = False

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

    def evaluation(self) -> tuple[Transform, ...]:
        """Resize to 8/7 of the longer target side, and crop the centre: 224 -> Resize(256), CenterCrop(224)."""
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
        """Return top, left, height and width of each box.

        Columns 2t and 2t + 1 of ``u`` are the area and ratio of try t; the last two columns are the place.
        """
        low, high = map(logarithm, self.ratio)
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
@class_door(PlanError)
@dataclass(frozen=True)
class RandomHorizontalFlip(ImageTransform):
    """Mirror the image left to right with probability ``p``.

    Args:
        p: from 0 to 1.

    Raises:
        PlanError: ``p`` is out of range.

    Examples:
        >>> steps = [spiral.transforms.Resize((16, 16)), spiral.RandomHorizontalFlip(0.5)]
        >>> image = spiral.Stack("image", decode="jpeg", transforms=steps)
    """

    NAME: ClassVar[str] = "random_horizontal_flip"

    p: float = 0.5

    def __post_init__(self) -> None:
        object.__setattr__(self, "p", checked_chance("RandomHorizontalFlip", self.p))

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
@class_door(PlanError)
@dataclass(frozen=True)
class Resize(ImageTransform):
    """Resize by antialiased interpolation, as torchvision does for uint8 tensors.

    Args:
        size: pixels of the shorter side; the longer side keeps the ratio, rounded down to a whole pixel. Or exactly
            (height, width).
        interpolation: ``"bilinear"``, or ``"bicubic"``, as vision-language models often have it.

    Raises:
        PlanError: the size is out of range, or the interpolation unknown.

    Examples:
        >>> spiral.Stack("image", decode="jpeg", transforms=[spiral.transforms.Resize((16, 16))]).column
        'image'
    """

    NAME: ClassVar[str] = "resize"
    RESIZES: ClassVar[bool] = True
    deterministic: ClassVar[bool] = True

    size: int | tuple[int, int]
    interpolation: str = BILINEAR

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", checked_size("Resize", self.size))
        check(self, "Resize", " is ", interpolation=_INTERPOLATIONS)

    def __repr__(self) -> str:  # EXPLAIN shows it, as before for what is left out
        more = "" if self.interpolation == BILINEAR else f", interpolation={self.interpolation!r}"
        return f"Resize(size={self.size!r}{more})"

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


@dataclass(frozen=True)
class _Centred(ImageTransform):
    """Cut the centre of an image; a subclass says how what is left over is halved."""

    deterministic: ClassVar[bool] = True

    size: int | tuple[int, int]

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", checked_size(type(self).__name__, self.size))

    @staticmethod
    @abstractmethod
    def half(room_B: Int) -> Int:
        """Return how many of the rows or columns that are left over lie before the crop."""

    def place(self, at: Placement, draw: Draw, *, resized: bool) -> Placement:
        del draw
        room_h, room_w = _room(type(self).__name__, at, self.size)
        return _window(at, self.size, self.half(room_h), self.half(room_w), resized=resized)

    def size_after(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        del size
        return _pair(self.size)


@final
@class_door(PlanError)
@dataclass(frozen=True)
class CenterCrop(_Centred):
    """Cut the centre of the image. A smaller image is a `DataError`; nothing is padded.

    Args:
        size: pixels of both sides, or (height, width).

    Raises:
        PlanError: the size is out of range.

    Examples:
        >>> steps = [spiral.transforms.Resize(20), spiral.transforms.CenterCrop(16)]
        >>> samples.collate(
        ...     batch_size=8, fields={"image": spiral.Stack("image", decode="jpeg", transforms=steps)}
        ... ).to_numpy().spec()["image"].shape
        (3, 16, 16)
    """

    NAME: ClassVar[str] = "center_crop"

    @staticmethod
    def half(room_B: Int) -> Int:
        return np.rint(room_B / 2).astype(np.int64)


@final
@class_door(PlanError)
@dataclass(frozen=True)
class CenterCropDown(_Centred):
    """As `CenterCrop`, where an odd rest is halved downward: the crop of Hugging Face's image processors.

    Args:
        size: pixels of both sides, or (height, width).

    Raises:
        PlanError: the size is out of range.

    Examples:
        >>> steps = [spiral.transforms.Resize(20), spiral.transforms.CenterCropDown(16)]
        >>> samples.collate(
        ...     batch_size=8, fields={"image": spiral.Stack("image", decode="jpeg", transforms=steps)}
        ... ).to_numpy().spec()["image"].shape
        (3, 16, 16)
    """

    NAME: ClassVar[str] = "center_crop_down"

    @staticmethod
    def half(room_B: Int) -> Int:
        return room_B // 2


@final
@class_door(PlanError)
@dataclass(frozen=True)
class RandomCrop(ImageTransform):
    """Cut a window at a random place, each place equally likely. A smaller image is a `DataError`; nothing is padded.

    Args:
        size: pixels of both sides, or (height, width).

    Raises:
        PlanError: the size is out of range.

    Examples:
        >>> steps = [spiral.transforms.Resize(20), spiral.transforms.RandomCrop(16)]
        >>> samples.collate(
        ...     batch_size=8, fields={"image": spiral.Stack("image", decode="jpeg", transforms=steps)}
        ... ).to_numpy()[0]["image"].shape
        (8, 3, 16, 16)
    """

    NAME: ClassVar[str] = "random_crop"
    deterministic: ClassVar[bool] = False

    size: int | tuple[int, int]

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", checked_size("RandomCrop", self.size))

    def evaluation(self) -> tuple[Transform, ...]:
        """Crop the centre."""
        return (CenterCrop(self.size),)

    def place(self, at: Placement, draw: Draw, *, resized: bool) -> Placement:
        room_h, room_w = _room("RandomCrop", at, self.size)
        return _window(at, self.size, *_drawn_corner(draw(2), room_h, room_w), resized=resized)

    def size_after(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        del size
        return _pair(self.size)


@dataclass(frozen=True)
class _Covering(ImageTransform):
    """Resize until an image covers a size, and crop what stands out; a subclass says the size, or that the batch does."""

    NAME: ClassVar[str] = "fit_to_shape"
    RESIZES: ClassVar[bool] = True

    crop: str = "center"

    @property
    def deterministic(self) -> bool:
        return self.crop != "random"

    @property
    def target(self) -> tuple[int, int] | None:
        """Height and width; None before a batch says them."""
        return None

    def place(self, at: Placement, draw: Draw, *, resized: bool) -> Placement:
        del resized  # `compile_image` refuses a second resize
        assert self.target is not None
        high, wide = self.target
        if self.crop == "none":
            return at.resize(np.full_like(at.height, high), np.full_like(at.width, wide))
        at = at.resize(*sized_to_cover(at.height, at.width, self.target))
        room_h, room_w = at.window_h - high, at.window_w - wide
        if self.crop == "center":
            return _window(at, self.target, CenterCrop.half(room_h), CenterCrop.half(room_w), resized=True)
        return _window(at, self.target, *_drawn_corner(draw(2), room_h, room_w), resized=True)

    def size_after(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        del size
        return self.target


@final
@class_door(PlanError)
@dataclass(frozen=True)
class FitToShape(_Covering):
    """Resize and crop to the shape of the batch, which `batching.OneShape` says.

    The image is resized until it covers the shape, with its aspect ratio, and what stands out is cropped.

    Args:
        crop: ``"center"``, ``"random"`` for a crop that is drawn for each sample, or ``"none"`` to crop nothing: then the
            image is stretched to the shape.

    Raises:
        PlanError: ``crop`` is none of these.

    Examples:
        >>> steps = [spiral.transforms.FitToShape(crop="random"), spiral.RandomHorizontalFlip()]
        >>> image = spiral.Stack("image", decode="jpeg", transforms=steps)
        >>> formed = spiral.batching.OneShape([(16, 16), (16, 24)], height="width // 2")
        >>> shaped = samples.collate(batch_size=4, formation=formed, fields={"image": image}).to_numpy()
        >>> shaped[0]["image"].shape[2] == 16
        True
    """

    def __post_init__(self) -> None:
        check(self, "FitToShape", crop=one_of(("center", "random", "none")))

    def evaluation(self) -> tuple[Transform, ...]:
        """Crop the centre."""
        return (FitToShape("center"),) if self.crop == "random" else (self,)

    def fitted(self, size: tuple[int, int]) -> ImageTransform:
        """Return the step of a batch of this (height, width)."""
        return _Fitted(self.crop, size)


@final
@dataclass(frozen=True)
class _Fitted(_Covering):
    """`FitToShape` of one batch."""

    size: tuple[int, int] = (1, 1)

    @property
    def target(self) -> tuple[int, int] | None:
        return self.size


@final
@class_door(PlanError)
@dataclass(frozen=True)
class Normalize(Transform):
    """Compute ``(x - mean) / std`` per channel, of pixels scaled to [0, 1]. The last step of a chain.

    The field is float32, unless it says ``dtype="float16"`` or ``"bfloat16"``.

    Args:
        mean: three numbers, for red, green and blue.
        std: three numbers above 0, for red, green and blue.

    Raises:
        PlanError: one of them is not that.

    Examples:
        >>> steps = [
        ...     spiral.transforms.Resize((16, 16)),
        ...     spiral.Normalize(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
        ... ]
        >>> image = spiral.Stack("image", decode="jpeg", transforms=steps, dtype="float32")
        >>> samples.collate(batch_size=8, fields={"image": image}).to_numpy()[0]["image"].dtype
        dtype('float32')
    """

    NAME: ClassVar[str] = "normalize"
    deterministic: ClassVar[bool] = True

    mean: Sequence[float]
    std: Sequence[float]

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            given = plain(getattr(self, name))
            if not isinstance(given, Sequence) or len(given) != 3 or not all(map(is_number, given)):  # noqa: PLR2004  R, G, B
                msg = f"Normalize: {name} is {shown(given)}. Give three numbers, for red, green and blue"
                raise PlanError(msg)
            object.__setattr__(self, name, tuple(float(value) for value in given))
        if min(self.std) <= 0:
            msg = f"Normalize: std is {self.std}; every entry must be greater than 0"
            raise PlanError(msg)


TRANSFORMS: Final[Mapping[str, type[Transform]]] = {
    kind.NAME: kind
    for kind in (
        RandomResizedCrop,
        RandomHorizontalFlip,
        Resize,
        CenterCrop,
        CenterCropDown,
        RandomCrop,
        FitToShape,
        Normalize,
    )
}


@lru_cache(maxsize=64)
def logarithm(ratio: float) -> float:
    """Natural logarithm, the same on every machine. It costs 65 us, more than a clip's geometry, so it is remembered."""
    return float(Decimal(ratio).ln(_DIGITS))


def _room(name: str, at: Placement, size: int | tuple[int, int]) -> tuple[Int, Int]:
    """Return the rows and columns that a crop leaves over.

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
        raise DataError(msg, row=i)
    return at.window_h - h, at.window_w - w


def _drawn_corner(u: NDArray[np.float64], room_h: Int, room_w: Int) -> tuple[Int, Int]:
    """Return the top and the left of a crop, each place of the room equally likely; ``u`` has shape [B, 2]."""
    return np.floor(u[:, 0] * (room_h + 1)).astype(np.int64), np.floor(u[:, 1] * (room_w + 1)).astype(np.int64)


def _window(at: Placement, size: int | tuple[int, int], top: Int, left: Int, *, resized: bool) -> Placement:
    """Cut a window. Its place counts in the mirrored image; boxes count in the image before it is mirrored."""
    h, w = _pair(size)
    left = np.where(at.flip, at.window_w - w - left, left)
    high, wide = np.full_like(top, h), np.full_like(left, w)
    if not resized:
        return at.crop(top, left, high, wide)
    return replace(at, window_top=at.window_top + top, window_left=at.window_left + left, window_h=high, window_w=wide)


def _pair(size: int | tuple[int, int]) -> tuple[int, int]:
    return size if isinstance(size, tuple) else (size, size)
