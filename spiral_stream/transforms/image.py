"""Image transforms, and how a chain of them becomes one pass over the pixels.

Each transform only moves boxes: `RandomResizedCrop` and `CenterCrop` choose one,
`Resize` and `RandomResizedCrop` set the size it is resized to, `CenterCrop` after
a resize cuts a window, `RandomHorizontalFlip` marks a mirror. So any legal chain
is an integer crop box -> antialiased bilinear resize -> integer window -> flip ->
256-entry table a channel, which ``_pixels.c`` does in one call for many images.
Boxes follow torchvision.transforms.v2; pixels equal its uint8 tensor path bit for
bit. All geometry is array code: about 1 us an image for 256 images.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Context, Decimal
from typing import ClassVar, Final, cast, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.errors import DataError, PlanError
from spiral_stream.seeding import uniforms
from spiral_stream.transforms import _pixels
from spiral_stream.transforms.placement import Geometry, Placement, at_row, portable_exp, sized_to_shorter
from spiral_stream.transforms.transform import Transform, checked_range, checked_size, is_number

# B images of a batch, H height, W width, C channels; one-dimensional arrays are [B]

Int = NDArray[np.int64]
Int32 = NDArray[np.int32]
UInt64 = NDArray[np.uint64]
Float32 = NDArray[np.float32]
Draw = Callable[[int], NDArray[np.float64]]

DTYPES: Final = ("uint8", "float16", "float32")
LAYOUTS: Final = ("nchw", "nhwc")
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
        low, high = (float(Decimal(r).ln(_DIGITS)) for r in self.ratio)
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
            msg = f"RandomHorizontalFlip: p is {self.p!r}; it must be a number from 0 to 1"
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
        h, w = _pair(self.size)
        small = np.flatnonzero((at.window_h < h) | (at.window_w < w))
        if len(small):
            i = int(small[0])
            msg = (
                f"CenterCrop: image {i} of the call is {at.window_h[i]} x {at.window_w[i]} (height x width) there, "
                f"smaller than the {h} x {w} asked for. Put Resize({max(h, w)}) or larger before it, or filter small "
                "images out"
            )
            raise at_row(DataError(msg), i)
        top = np.rint((at.window_h - h) / 2).astype(np.int64)
        left = np.rint((at.window_w - w) / 2).astype(np.int64)
        left = np.where(at.flip, at.window_w - w - left, left)  # boxes are kept as before the mirror
        high, wide = np.full_like(top, h), np.full_like(left, w)
        if not resized:
            return at.crop(top, left, high, wide)
        return replace(
            at, window_top=at.window_top + top, window_left=at.window_left + left, window_h=high, window_w=wide
        )

    def size_after(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        del size
        return _pair(self.size)


@final
@dataclass(frozen=True)
class Normalize(Transform):
    """(x - mean) / std a channel, of pixels scaled to [0, 1]; the last step of a chain."""

    NAME: ClassVar[str] = "normalize"

    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            given = getattr(self, name)
            if not isinstance(given, Sequence) or len(given) != 3 or not all(map(is_number, given)):  # noqa: PLR2004  R, G, B
                msg = f"Normalize: {name} is {given!r}; give three numbers, for red, green and blue"
                raise PlanError(msg)
            object.__setattr__(self, name, tuple(float(value) for value in given))
        if min(self.std) <= 0:
            msg = f"Normalize: std is {self.std}; every entry must be greater than 0"
            raise PlanError(msg)

    @property
    def deterministic(self) -> bool:
        return True


TRANSFORMS: Final[Mapping[str, type[Transform]]] = {
    kind.NAME: kind for kind in (RandomResizedCrop, RandomHorizontalFlip, Resize, CenterCrop, Normalize)
}


@final
@dataclass(frozen=True, slots=True)
class ImageProgram:
    """A compiled chain: decoded pixels in, one array of the batch out. Stateless, so threads may share it."""

    steps: tuple[ImageTransform, ...]
    normalize: Normalize | None
    dtype: str
    layout: str

    @property
    def deterministic(self) -> bool:
        """Whether no step draws."""
        return all(step.deterministic for step in self.steps)

    @property
    def output_shape(self) -> tuple[int, ...] | None:
        """Shape of one image in the layout; None if it depends on the images."""
        size: tuple[int, int] | None = None
        for step in self.steps:
            size = step.size_after(size)
        return None if size is None else self._shape(*size)

    def shape(self, geometry: Geometry) -> tuple[int, ...]:
        """Shape of one image in the layout, for this geometry."""
        return self._shape(geometry.out_h, geometry.out_w)

    def geometry(self, heights: Int32, widths: Int32, keys: UInt64) -> Geometry:
        """Place every image of a batch.

        Args:
            heights: shape [B], int32, B at least 1: rows of each decoded image.
            widths: shape [B], int32: columns.
            keys: shape [B], uint64, from `spiral_stream.seeding.sample_keys`.

        Raises:
            DataError: an image is smaller than a crop, or sizes differ at the end of a chain that fixes none.
        """
        at = Placement.whole(np.asarray(heights), np.asarray(widths))
        seen: dict[str, int] = {}
        resized = False
        for step in self.steps:
            nth = seen.get(step.NAME, 0)
            seen[step.NAME] = nth + 1
            at = step.place(at, _drawer(keys, step.NAME, nth), resized=resized)
            resized = resized or step.RESIZES
        return at.geometry()

    def run(self, images: Sequence[NDArray[np.uint8]], keys: UInt64, out: NDArray[np.generic]) -> None:
        """Transform decoded images into ``out``, with the GIL released.

        Args:
            images: B arrays [H, W, 3], uint8, each with packed pixels; sizes may differ. They must stay
                alive and unchanged until this returns.
            keys: shape [B], uint64.
            out: shape [B, *shape], C-contiguous, of the program's dtype; overwritten.

        Raises:
            DataError: see `geometry`.
            ValueError: an array has another shape, dtype or memory order.
        """
        count = len(images)
        addresses, strides = np.empty(count, np.uint64), np.empty(count, np.int64)
        heights, widths = np.empty(count, np.int32), np.empty(count, np.int32)
        _pixels.locate(images, addresses, strides, heights, widths)
        self.run_at(addresses, strides, heights, widths, keys, out)

    def run_at(
        self,
        addresses: UInt64,
        strides: NDArray[np.int64],
        heights: Int32,
        widths: Int32,
        keys: UInt64,
        out: NDArray[np.generic],
    ) -> None:
        """Transform pixels that lie anywhere in memory, without a Python object an image.

        Args:
            addresses: shape [B], uint64: where each packed RGB uint8 image begins. The caller
                answers for the memory (a mapped file, an Arrow buffer) until this returns.
            strides: shape [B], int64: bytes from one row to the next, at least 3 * width.
            heights: shape [B], int32.
            widths: shape [B], int32.
            keys: shape [B], uint64.
            out: as in `run`.

        Raises:
            DataError: see `geometry`.
            ValueError: ``out`` does not fit.
        """
        if len(addresses):
            self.render(self.geometry(heights, widths, keys), addresses, strides, heights, widths, out)

    def render(
        self,
        placed: Geometry,
        addresses: UInt64,
        strides: NDArray[np.int64],
        heights: Int32,
        widths: Int32,
        out: NDArray[np.generic],
    ) -> None:
        """The second half of `run_at`, where the geometry is known. Reads pixels of the boxes only.

        Args:
            placed: from `geometry`, or from `Geometry.inside_boxes`.
            addresses: shape [B], uint64: where each image, or each box, begins.
            strides: shape [B], int64.
            heights: shape [B], int32.
            widths: shape [B], int32.
            out: as in `run`.

        Raises:
            ValueError: ``out`` does not fit.
        """
        expected = (len(addresses), *self.shape(placed))
        if out.shape != expected or out.dtype != np.dtype(self.dtype) or not out.flags.c_contiguous:
            msg = f"out is {out.dtype} {out.shape}; give a C-contiguous {self.dtype} array of shape {expected}"
            raise ValueError(msg)
        _pixels.render(
            np.ascontiguousarray(addresses, np.uint64),
            np.ascontiguousarray(strides, np.int64),
            np.ascontiguousarray(heights, np.int32),
            np.ascontiguousarray(widths, np.int32),
            placed.boxes(),
            out,
            placed.out_h,
            placed.out_w,
            out.itemsize,
            self.layout == "nchw",
            self._table(),
            self._constants(),
        )

    def on_device(self) -> "tuple[ImageProgram, Float32, Float32]":
        """Split off what a device does better: the same program ending in uint8 NHWC, then mean and std.

        The rest is, in float32, ``(pixels * float32(1 / 255) - mean) / std``, cast to the
        program's dtype and laid out as it says; a uint8 program only changes the layout.

        Returns:
            the uint8 program, mean of shape [3] and std of shape [3], float32.
        """
        constants = self._constants()
        return replace(self, normalize=None, dtype="uint8", layout="nhwc"), constants[1:4], constants[4:7]

    def _shape(self, height: int, width: int) -> tuple[int, ...]:
        return (3, height, width) if self.layout == "nchw" else (height, width, 3)

    def _constants(self) -> Float32:
        """Shape [7], float32: 1/255, mean, std."""
        mean, std = ((0.0,) * 3, (1.0,) * 3) if self.normalize is None else (self.normalize.mean, self.normalize.std)
        return np.array([1 / 255, *mean, *std], np.float32)

    def _table(self) -> NDArray[np.generic]:
        """Shape [3, 256] of the dtype: each byte's value, in the order of torchvision's float32 operations."""
        if self.dtype == "uint8":
            return np.empty(0, np.uint8)
        constants = self._constants()
        scaled = np.arange(256, dtype=np.float32) * constants[0]
        with np.errstate(over="ignore"):
            table = (scaled[None, :] - constants[1:4, None]) / constants[4:7, None]
            return cast("NDArray[np.generic]", table.astype(self.dtype))


def compile_image(transforms: Sequence[Transform], *, dtype: str, layout: str) -> ImageProgram:
    """Check a chain and make it one program.

    A floating dtype without `Normalize` is scaled to [0, 1], as torchvision's
    ``ToDtype(scale=True)``; uint8 is left as it is.

    Args:
        transforms: in order; may be empty.
        dtype: "uint8", "float16" or "float32".
        layout: "nchw" or "nhwc", the batch first.

    Raises:
        PlanError: unknown dtype, layout or transform, or an order that cannot be done in one pass.
    """
    for what, given, known in (("dtype", dtype, DTYPES), ("layout", layout, LAYOUTS)):
        if given not in known:
            msg = f"images: {what} {given!r} is unknown; known are {', '.join(known)}"
            raise PlanError(msg)
    steps: list[ImageTransform] = []
    normalize: Normalize | None = None
    for step in transforms:
        if normalize is not None:
            msg = f"images: {type(step).__name__} stands after Normalize; put Normalize last"
            raise PlanError(msg)
        if isinstance(step, Normalize):
            normalize = step
        elif isinstance(step, ImageTransform):
            _check_fusable(steps, step)
            steps.append(step)
        else:
            msg = f"images: {step!r} is not an image transform; known are {', '.join(TRANSFORMS)}"
            raise PlanError(msg)
    if normalize is not None and dtype == "uint8":
        msg = "images: Normalize has no place in uint8; ask for dtype float16 or float32, or drop Normalize"
        raise PlanError(msg)
    return ImageProgram(tuple(steps), normalize, dtype, layout)


def _check_fusable(before: Sequence[ImageTransform], step: ImageTransform) -> None:
    if not step.RESIZES:
        return
    name = type(step).__name__
    for earlier in before:
        if earlier.RESIZES:
            msg = f"images: {name} resizes again after {type(earlier).__name__}; keep one, pixels are resized once"
            raise PlanError(msg)
        if isinstance(earlier, RandomHorizontalFlip):
            msg = f"images: {name} stands after RandomHorizontalFlip; put RandomHorizontalFlip after {name}"
            raise PlanError(msg)


def _drawer(keys: UInt64, name: str, nth: int) -> Draw:
    return lambda count: uniforms(keys, name, nth, count)


def _pair(size: int | tuple[int, int]) -> tuple[int, int]:
    return size if isinstance(size, tuple) else (size, size)
