"""Compile a chain of image transforms to one pass over the pixels.

Each step only moves boxes (`crop_and_resize`). So any legal chain is an integer crop box, an antialiased resize, an
integer window, a flip, and a table of 256 entries per channel. ``_pixels.c`` does all of it in one call for many
images. Pixels equal torchvision's uint8 tensor path bit for bit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, cast, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.errors import DataError, PlanError, shown
from spiral_stream.host_dtypes import host_dtype, rounded
from spiral_stream.seeding import uniforms
from spiral_stream.transforms import _pixels
from spiral_stream.transforms.image.crop_and_resize import (
    BICUBIC,
    TRANSFORMS,
    CenterCrop,
    Draw,
    FitToShape,
    ImageTransform,
    Normalize,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
)
from spiral_stream.transforms.image.placement import Geometry, Placement
from spiral_stream.transforms.transform import Transform

__all__ = [
    "TRANSFORMS",
    "CenterCrop",
    "ImageProgram",
    "ImageTransform",
    "Normalize",
    "RandomCrop",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "Resize",
    "compile_image",
]

# B images of a batch, H height, W width, C channels; one-dimensional arrays are [B]

Int32 = NDArray[np.int32]
UInt64 = NDArray[np.uint64]
Float32 = NDArray[np.float32]

DTYPES: Final = ("uint8", "float16", "bfloat16", "float32")
LAYOUTS: Final = ("nchw", "nhwc")


@final
@dataclass(frozen=True, slots=True)
class ImageProgram:
    """A compiled chain: it turns decoded images into one array. It has no state, so threads may share it."""

    steps: tuple[ImageTransform, ...]
    normalize: Normalize | None
    dtype: str
    layout: str
    numbers: tuple[int, ...] = ()  # of each step among those of its name, where other steps stand before; else counted

    @property
    def deterministic(self) -> bool:
        """Whether no step draws random numbers."""
        return all(step.deterministic for step in self.steps)

    @property
    def cubic(self) -> bool:
        """Whether the resize is bicubic."""
        return any(isinstance(step, Resize) and step.interpolation == BICUBIC for step in self.steps)

    @property
    def output_shape(self) -> tuple[int, ...] | None:
        """Shape of one output image, in the layout; None if it depends on the images."""
        size: tuple[int, int] | None = None
        for step in self.steps:
            size = step.size_after(size)
        return None if size is None else self.sized(*size)

    def fitted(self, size: tuple[int, int]) -> "ImageProgram":
        """Return the program of a batch whose images have this (height, width), where the batch says it."""
        steps = tuple(step.fitted(size) if isinstance(step, FitToShape) else step for step in self.steps)
        return replace(self, steps=steps)

    @property
    def fits(self) -> bool:
        """Whether the batch says the size of images."""
        return any(isinstance(step, FitToShape) for step in self.steps)

    def shape(self, geometry: Geometry) -> tuple[int, ...]:
        """Return the shape of one output image of this geometry, in the layout."""
        return self.sized(geometry.out_h, geometry.out_w)

    def geometry(self, heights: Int32, widths: Int32, keys: UInt64) -> Geometry:
        """Place every image of a batch.

        Args:
            heights: shape [B], int32, B at least 1: rows of each decoded image.
            widths: shape [B], int32: columns.
            keys: shape [B], uint64, from `spiral_stream.seeding.sample_keys`.

        Raises:
            DataError: an image is smaller than a crop, or images end in different sizes; ``row`` is its place.
        """
        return self.geometries(heights, widths, keys).geometry()

    def geometries(self, heights: Int32, widths: Int32, keys: UInt64) -> Placement:
        """Place every image of a batch, whose results may differ in size; arguments as of `geometry`.

        Raises:
            DataError: an image is smaller than a crop; ``row`` is its place.
        """
        at = Placement.untouched(np.asarray(heights), np.asarray(widths))
        seen: dict[str, int] = {}
        resized = False
        for i, step in enumerate(self.steps):
            nth = self.numbers[i] if self.numbers else seen.get(step.NAME, 0)
            seen[step.NAME] = nth + 1
            at = step.place(at, _drawer(keys, step.NAME, nth), resized=resized)
            resized = resized or step.RESIZES
        return at

    def cut(self, images: Sequence[NDArray[np.uint8]], keys: UInt64) -> list[NDArray[np.uint8]]:
        """Return the transformed images one by one, of a program to uint8 NHWC; their sizes may differ.

        Raises:
            DataError: an image is smaller than a crop; ``row`` is its place.
        """
        if not self.steps:
            return list(images)
        sizes = np.array([each.shape[:2] for each in images], np.int32)
        at = self.geometries(sizes[:, 0], sizes[:, 1], keys)
        out = [np.empty((h, w, 3), np.uint8) for h, w in zip(at.window_h.tolist(), at.window_w.tolist(), strict=True)]
        addresses, strides = np.empty(1, np.uint64), np.empty(1, np.int64)
        heights, widths = np.empty(1, np.int32), np.empty(1, np.int32)
        for i, image in enumerate(images):  # 25 us each, next to 300 of the kernel
            _pixels.locate([image], addresses, strides, heights, widths)
            self.render(at.only(i).geometry(), addresses, strides, heights, widths, out[i][None])
        return out

    def stacked(self, images: Sequence[NDArray[np.uint8]], keys: UInt64) -> NDArray[np.generic]:
        """Transform images into an array of its own, where the plan does not know their size; as `run`."""
        sizes = np.array([each.shape[:2] for each in images], np.int32)
        shape = self.shape(self.geometry(sizes[:, 0], sizes[:, 1], keys))
        out = np.empty((len(images), *shape), host_dtype(self.dtype))
        self.run(images, keys, out)
        return out

    def need_shape(self, images: Sequence[NDArray[np.uint8]], keys: UInt64, shape: tuple[int, ...]) -> None:
        """Refuse images that end in another size than planned.

        Raises:
            DataError: one does; ``row`` is its place.
        """
        sizes = np.array([each.shape[:2] for each in images], np.int32)
        at = self.geometries(sizes[:, 0], sizes[:, 1], keys)
        wanted = shape[1:] if self.layout == "nchw" else shape[:2]
        other = np.flatnonzero((at.window_h != wanted[0]) | (at.window_w != wanted[1]))
        if len(other):
            i = int(other[0])
            msg = (
                f"images: a step returned {sizes[i, 0]} x {sizes[i, 1]} pixels (height x width), so the image ends as "
                f"{at.window_h[i]} x {at.window_w[i]}; the plan has {wanted[0]} x {wanted[1]}. Put Resize({tuple(wanted)}) "
                "after the step, or return images of the size that came in"
            )
            raise DataError(msg, row=i)

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
        """Transform pixels that lie anywhere in memory, without a Python object per image.

        Args:
            addresses: shape [B], uint64: where each packed RGB uint8 image begins. The caller keeps the memory (a
                mapped file, an Arrow buffer) alive until this returns.
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
        geometry: Geometry,
        addresses: UInt64,
        strides: NDArray[np.int64],
        heights: Int32,
        widths: Int32,
        out: NDArray[np.generic],
    ) -> None:
        """Do the second half of `run_at`, for a known geometry. Only pixels of the boxes are read.

        Args:
            geometry: from `geometry`, or from `Geometry.inside_boxes`.
            addresses: shape [B], uint64: where each image, or each box, begins.
            strides: shape [B], int64.
            heights: shape [B], int32.
            widths: shape [B], int32.
            out: as in `run`.

        Raises:
            ValueError: ``out`` does not fit.
        """
        expected = (len(addresses), *self.shape(geometry))
        if out.shape != expected or out.dtype != host_dtype(self.dtype) or not out.flags.c_contiguous:
            msg = f"out is {out.dtype} {out.shape}. Give a C-contiguous {self.dtype} array of shape {expected}"
            raise ValueError(msg)
        _pixels.render(
            np.ascontiguousarray(addresses, np.uint64),
            np.ascontiguousarray(strides, np.int64),
            np.ascontiguousarray(heights, np.int32),
            np.ascontiguousarray(widths, np.int32),
            geometry.boxes(),
            out,
            geometry.out_h,
            geometry.out_w,
            out.itemsize,
            self.layout == "nchw",
            self._table(),
            self._constants(),
            cubic=self.cubic,
        )

    def on_device(self) -> "tuple[ImageProgram, Float32, Float32]":
        """Split the program in two: a part for the host that ends in uint8 NHWC, and the rest for a device.

        The rest is ``(pixels * float32(1 / 255) - mean) / std`` in float32, cast to the program's dtype and layout. For
        a uint8 program the rest is the change of layout alone.

        Returns:
            the uint8 program; mean, shape [3], float32; std, shape [3], float32.
        """
        constants = self._constants()
        return replace(self, normalize=None, dtype="uint8", layout="nhwc"), constants[1:4], constants[4:7]

    def sized(self, height: int, width: int) -> tuple[int, ...]:
        """Return the shape of an output image of this size, in the layout."""
        return (3, height, width) if self.layout == "nchw" else (height, width, 3)

    def _constants(self) -> Float32:
        """Return 1/255, mean and std: shape [7], float32."""
        mean, std = ((0.0,) * 3, (1.0,) * 3) if self.normalize is None else (self.normalize.mean, self.normalize.std)
        return np.array([1 / 255, *mean, *std], np.float32)

    def _table(self) -> NDArray[np.generic]:
        """Return the value of each byte per channel: shape [3, 256], computed as torchvision does in float32."""
        if self.dtype == "uint8":
            return np.empty(0, np.uint8)
        constants = self._constants()
        scaled = np.arange(256, dtype=np.float32) * constants[0]
        with np.errstate(over="ignore"):
            table = (scaled[None, :] - constants[1:4, None]) / constants[4:7, None]
            return rounded(table) if self.dtype == "bfloat16" else cast("NDArray[np.generic]", table.astype(self.dtype))


def compile_image(transforms: Sequence[Transform], *, dtype: str, layout: str) -> ImageProgram:
    """Check a chain of transforms, and compile it.

    Without `Normalize`, floating-point pixels are scaled to [0, 1], as by torchvision's ``ToDtype(scale=True)``; uint8
    pixels are not scaled.

    Args:
        transforms: in order; may be empty.
        dtype: "uint8", "bfloat16", "float16" or "float32".
        layout: "nchw" or "nhwc", the batch first.

    Raises:
        PlanError: a dtype, layout or transform is unknown, or the order cannot be done in one pass.
    """
    for what, given, known in (("dtype", dtype, DTYPES), ("layout", layout, LAYOUTS)):
        if given not in known:
            msg = f"images: {what} {shown(given)} is unknown; known are {', '.join(known)}"
            raise PlanError(msg)
    steps: list[ImageTransform] = []
    normalize: Normalize | None = None
    for step in transforms:
        if normalize is not None:
            msg = f"images: {type(step).__name__} stands after Normalize. Put Normalize last"
            raise PlanError(msg)
        if isinstance(step, Normalize):
            normalize = step
        elif isinstance(step, ImageTransform):
            _check_fusable(steps, step)
            steps.append(step)
        else:
            raise no_transform(step, TRANSFORMS, "")
    if normalize is not None and dtype == "uint8":
        msg = "images: Normalize has no place in uint8. Ask for dtype float16, bfloat16 or float32, or drop Normalize"
        raise PlanError(msg)
    return ImageProgram(tuple(steps), normalize, dtype, layout)


def no_transform(step: object, known: Mapping[str, type], more: str) -> PlanError:
    """Return the error for what is no step of a chain: a class or a name in place of a transform, or something else.

    Args:
        step: what was given.
        known: the transforms by name.
        more: what else a chain takes, for the message.
    """
    named = known.get(step) if isinstance(step, str) else None
    if named is None and isinstance(step, type) and step in known.values():
        named = step
    if named is not None:
        given = "the name of a transform" if isinstance(step, str) else "a class"
        return PlanError(f"images: {shown(step)} is {given}; a chain takes transforms. Give {named.__name__}(...)")
    names = ", ".join(each.__name__ for each in known.values())
    return PlanError(f"images: {shown(step)} is not an image transform. Give one of {names}, with its arguments{more}")


def _check_fusable(before: Sequence[ImageTransform], step: ImageTransform) -> None:
    if not step.RESIZES:
        return
    name = type(step).__name__
    for earlier in before:
        if earlier.RESIZES:
            msg = f"images: {name} resizes again after {type(earlier).__name__}. Keep one, pixels are resized once"
            raise PlanError(msg)
        if isinstance(earlier, RandomHorizontalFlip):
            msg = f"images: {name} stands after RandomHorizontalFlip. Put RandomHorizontalFlip after {name}"
            raise PlanError(msg)


def _drawer(keys: UInt64, name: str, nth: int) -> Draw:
    return lambda count: uniforms(keys, name, nth, count)
