"""Chains of image transforms that need more than one pass, and chains of masks.

A chain is cut where a step changes pixels. What stands between two such steps only moves boxes, and is one pass of the
fused kernel (`transforms.image.image`). The first pass reads the decoded image, or only its crop, and the last one writes the
batch. Pixels are uint8 from pass to pass. A mask goes through the same steps by its nearest pixels (`transforms.image.nearest`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar, cast, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.errors import DataError, PlanError, shown
from spiral_stream.seeding import transform_keys
from spiral_stream.transforms import function_step
from spiral_stream.transforms.image import albumentations_step, nearest, processor_steps, torchvision_step
from spiral_stream.transforms.image.albumentations_step import is_albumentations
from spiral_stream.transforms.image.color import ColorJitter, GaussianBlur, Grayscale, RandomGrayscale
from spiral_stream.transforms.image.crop_and_resize import TRANSFORMS, ImageTransform, Normalize
from spiral_stream.transforms.image.erasing import RandomErasing
from spiral_stream.transforms.image.image import (
    DTYPES,
    LAYOUTS,
    Float32,
    ImageProgram,
    UInt64,
    compile_image,
    no_transform,
)
from spiral_stream.transforms.image.pixel_transform import Pixels, PixelTransform
from spiral_stream.transforms.image.processor_steps import is_processor
from spiral_stream.transforms.image.rand_augment import RandAugment
from spiral_stream.transforms.image.torchvision_step import Torchvision, is_torchvision
from spiral_stream.transforms.image.warp import RandomAffine, RandomRotation
from spiral_stream.transforms.python import Function
from spiral_stream.transforms.transform import AsNumbers, Transform

# B images, H height, W width, C channels

PIXEL_TRANSFORMS: Final[Mapping[str, type[PixelTransform]]] = {
    kind.NAME: kind
    for kind in (
        *(ColorJitter, Grayscale, RandomGrayscale, GaussianBlur),
        *(RandomErasing, RandomRotation, RandomAffine, RandAugment),
    )
}
MASK_DTYPES: Final = ("uint8", "uint16", "int16", "int32", "int64", "float32")
MASK_LAYOUTS: Final = ("nhw", "nchw", "nhwc")
Step = Transform | Function


@final
@dataclass(frozen=True, slots=True)
class Link:
    """A step of a chain that changes pixels, and the name and number by which it draws."""

    step: PixelTransform | Function
    name: str
    nth: int

    def keys(self, keys: UInt64) -> UInt64:
        """Return the samples' keys for this step, shape [B]."""
        return transform_keys(keys, self.name, self.nth)

    def size_after(self, size: tuple[int, int] | None) -> tuple[int, int] | None:
        """The (height, width) after this step; a function is expected to keep them."""
        return size if isinstance(self.step, Function) else self.step.size_after(size)

    def apply(self, pixels: Pixels, key: np.uint64, *, mask: bool = False) -> Pixels:
        """Transform one image or mask."""
        if isinstance(self.step, Function):
            return function_step.call(self.step, pixels, key)
        return self.step.apply_to_mask(pixels, key) if mask else self.step.apply(pixels, key)


@final
@dataclass(frozen=True, slots=True)
class ImageChain:
    """A compiled chain with steps that change pixels. It has no state, so threads may share it."""

    parts: tuple[ImageProgram | Link, ...]  # the first and the last are programs

    @property
    def head(self) -> ImageProgram:
        """What is done first: crops, a resize and a flip, to uint8 [B, H, W, 3]."""
        assert isinstance(self.parts[0], ImageProgram)
        return self.parts[0]

    @property
    def last(self) -> ImageProgram:
        """What is done last, and how pixels leave."""
        assert isinstance(self.parts[-1], ImageProgram)
        return self.parts[-1]

    @property
    def dtype(self) -> str:
        """Of the batch."""
        return self.last.dtype

    @property
    def layout(self) -> str:
        """Of the batch."""
        return self.last.layout

    @property
    def steps(self) -> tuple[ImageTransform, ...]:
        """The steps that are done first."""
        return self.head.steps

    @property
    def deterministic(self) -> bool:
        """Whether no step draws random numbers."""
        links = [each.step for each in self.parts if isinstance(each, Link)]
        drawn = any(each.random if isinstance(each, Function) else not each.deterministic for each in links)
        return not drawn and all(each.deterministic for each in self.parts if isinstance(each, ImageProgram))

    @property
    def output_shape(self) -> tuple[int, ...] | None:
        """Shape of one output image, in the layout; None if it depends on the images."""
        size: tuple[int, int] | None = None
        for part in self.parts:
            if isinstance(part, Link):
                size = part.size_after(size)
            else:
                for step in part.steps:
                    size = step.size_after(size)
        return None if size is None else self.last.sized(*size)

    def run(self, images: Sequence[Pixels], keys: UInt64, out: NDArray[np.generic]) -> None:
        """Transform decoded images into ``out``; see `ImageProgram.run`."""
        self.finish(self.head.cut(images, keys), keys, out)

    def finish(self, images: Sequence[Pixels] | Pixels, keys: UInt64, out: NDArray[np.generic]) -> None:
        """Do all but `head`.

        Args:
            images: B arrays [H, W, 3], uint8 (or one array of them), which may be overwritten; sizes may differ.
            keys: shape [B], uint64.
            out: shape [B, *output_shape], of the chain's dtype.

        Raises:
            DataError: a step fails, or images end in another size than planned; ``row`` is the image.
        """
        done = self.changed(images, keys)
        self.last.need_shape(done, keys, out.shape[1:])
        self.last.run(done, keys, out)

    def stacked(self, images: Sequence[Pixels], keys: UInt64) -> NDArray[np.generic]:
        """Transform images into an array of its own, where the plan does not know their size."""
        return self.last.stacked(self.changed(self.head.cut(images, keys), keys), keys)

    def changed(self, images: Sequence[Pixels] | Pixels, keys: UInt64) -> list[Pixels]:
        """Return images as they are before the last part, given what the first one left."""
        now = list(images)
        for part in self.parts[1:-1]:
            if isinstance(part, ImageProgram):
                now = part.cut(now, keys)
                continue
            part_keys = part.keys(keys)
            for i, pixels in enumerate(now):  # a step takes 0.1 to 2 ms per image
                now[i] = _applied(part, pixels, part_keys, i)
        return now

    def on_device(self) -> "tuple[ImageChain, Float32, Float32]":
        """Split the chain in two, as `ImageProgram.on_device`."""
        host, mean, std = self.last.on_device()
        return replace(self, parts=(*self.parts[:-1], host)), mean, std


@final
@dataclass(frozen=True, slots=True)
class MaskProgram:
    """A compiled chain of masks: boxes are cut and resized by their nearest pixels, and values leave as they are."""

    parts: tuple[ImageProgram | Link, ...]
    channels: int
    dtype: str
    layout: str

    @property
    def deterministic(self) -> bool:
        """Whether no step draws random numbers."""
        return ImageChain(self.parts).deterministic

    @property
    def output_shape(self) -> tuple[int, ...] | None:
        """Shape of one output mask, in the layout; None if it depends on the masks."""
        found = ImageChain((*self.parts, _PLAIN)).output_shape
        return None if found is None else self._shape(found[0], found[1])

    def run(self, masks: Sequence[Pixels], keys: UInt64, out: NDArray[np.generic]) -> None:
        """Transform decoded masks into ``out``.

        Args:
            masks: B arrays [H, W, channels]; sizes may differ.
            keys: shape [B], uint64.
            out: shape [B, *output_shape]; overwritten.

        Raises:
            DataError: masks end in another size than planned; ``row`` is the mask.
        """
        for i, mask in enumerate(self._changed(masks, keys)):  # 0.1 to 0.5 ms each
            if self._shape(*mask.shape[:2]) != out.shape[1:]:
                msg = f"masks of one batch end in different sizes: {mask.shape[:2]} and {out.shape[1:]} (mask {i} of the call)"
                raise DataError(msg, row=i)
            moved = (
                mask.transpose(2, 0, 1) if self.layout == "nchw" else mask[:, :, 0] if self.layout == "nhw" else mask
            )
            out[i] = moved

    def stacked(self, masks: Sequence[Pixels], keys: UInt64) -> NDArray[np.generic]:
        """Transform masks into an array of its own, where the plan does not know their size."""
        done = self._changed(masks, keys)
        out = np.empty((len(done), *self._shape(*done[0].shape[:2])), self.dtype)
        replace(self, parts=(_PLAIN,)).run(done, keys, out)
        return out

    def _changed(self, masks: Sequence[Pixels], keys: UInt64) -> list[Pixels]:
        now = list(masks)
        for part in self.parts:
            if isinstance(part, ImageProgram):
                if part.steps:
                    sizes = np.array([each.shape[:2] for each in now], np.int32)
                    geometry = part.geometries(sizes[:, 0], sizes[:, 1], keys)
                    now = [nearest.cut(each, geometry, i) for i, each in enumerate(now)]
                continue
            part_keys = part.keys(keys)
            for i, mask in enumerate(now):
                now[i] = _applied(part, mask, part_keys, i, mask=True)
        return now

    def _shape(self, height: int, width: int) -> tuple[int, ...]:
        if self.layout == "nhw":
            return (height, width)
        return (self.channels, height, width) if self.layout == "nchw" else (height, width, self.channels)


_PLAIN: Final = ImageProgram((), None, "uint8", "nhwc")
Program = ImageProgram | ImageChain | MaskProgram
P = TypeVar("P", bound=Program)


def as_steps(transforms: Sequence[Any]) -> tuple[Any, ...]:
    """Return what a user gave as steps of a plan: transforms of torchvision and functions become values of it.

    Raises:
        PlanError: one cannot stand in a chain.
        MissingExtraError: torchvision is not installed.
    """
    out: list[Any] = []
    for each in transforms:
        if isinstance(each, Transform | Function | AsNumbers | type):
            out.append(each)
        elif is_torchvision(each):
            parts = torchvision_step.wrapped(each)
            out += as_steps(parts) if any(not isinstance(part, Transform | AsNumbers) for part in parts) else parts
        elif is_albumentations(each):
            out += albumentations_step.wrapped(each)
        elif is_processor(each):
            out += processor_steps.wrapped(each)
        else:
            out.append(function_step.wrapped(each) if callable(each) else each)
    return tuple(out)


def settled(transforms: Sequence[Any]) -> tuple[tuple[Any, ...], str | None]:
    """Return what a user gave as steps of a plan, and the dtype of numbers that they turn pixels into; None if they do not.

    Raises:
        PlanError: one cannot stand in a chain, or pixels are changed behind that point.
        MissingExtraError: torchvision is not installed.
    """
    steps = as_steps(transforms)
    at = next((i for i, each in enumerate(steps) if isinstance(each, AsNumbers)), None)
    if at is None:
        return steps, None
    behind = [each for each in steps[at:] if not isinstance(each, AsNumbers | Normalize)]
    if behind:
        what = getattr(behind[0], "title", type(behind[0]).__name__)
        msg = f"images: {what} stands behind what turns pixels into numbers (ToDtype, ToTensor). Put it before that"
        raise PlanError(msg)
    last = [each for each in steps[at:] if isinstance(each, AsNumbers)][-1]
    return (*steps[:at], *(each for each in steps[at:] if not isinstance(each, AsNumbers))), last.dtype


def pixel_dtype(given: str | None, transforms: Sequence[Any]) -> str:
    """Return the dtype of a chain's pixels: what is asked for, else uint8, or float32 behind `Normalize`."""
    return given or ("float32" if any(isinstance(each, Normalize) for each in transforms) else DTYPES[0])


def compile_chain(transforms: Sequence[Step], *, dtype: str, layout: str) -> ImageProgram | ImageChain:
    """Check a chain of transforms of images, and compile it.

    Args:
        transforms: in order; may be empty.
        dtype: "uint8", "float16" or "float32".
        layout: "nchw" or "nhwc", the batch first.

    Raises:
        PlanError: a dtype, layout or transform is unknown, or an order cannot be done.
    """
    for step in transforms:
        if not isinstance(step, ImageTransform | PixelTransform | Function | Normalize):
            more = "; a transform of torchvision.transforms.v2; or a function of a uint8 [H, W, 3] array"
            raise no_transform(step, {**TRANSFORMS, **PIXEL_TRANSFORMS}, more)
    if not any(isinstance(each, PixelTransform | Function) for each in transforms):
        return compile_image(transforms, dtype=dtype, layout=layout)  # type: ignore[arg-type]  # no function is among them
    runs = _runs(transforms)
    last = runs[-1]
    parts: list[ImageProgram | Link] = []
    for run in runs:
        if isinstance(run, Link):
            parts.append(run)
            continue
        how = (dtype, layout) if run is last else (DTYPES[0], "nhwc")
        program = compile_image([step for step, _ in run], dtype=how[0], layout=how[1])
        parts.append(replace(program, numbers=tuple(nth for step, nth in run if isinstance(step, ImageTransform))))
    return ImageChain(tuple(parts))


def compile_mask(transforms: Sequence[Step], *, channels: int, dtype: str, layout: str) -> MaskProgram:
    """Check a chain of transforms of masks, and compile it. Steps that change colours leave masks as they are.

    Args:
        transforms: in order; may be empty.
        channels: 1 or 3.
        dtype: one of `MASK_DTYPES`.
        layout: one of `MASK_LAYOUTS`; "nhw" is for one channel.

    Raises:
        PlanError: a dtype, layout or transform is unknown, or an order cannot be done.
    """
    for what, given, known in (("dtype", dtype, MASK_DTYPES), ("layout", layout, MASK_LAYOUTS)):
        if given not in known:
            msg = f"masks: {what} {shown(given)} is unknown; known are {', '.join(known)}"
            raise PlanError(msg)
    if layout == "nhw" and channels != 1:
        msg = 'masks: layout "nhw" is for one channel. Give mode="L", or layout "nchw" or "nhwc"'
        raise PlanError(msg)
    compile_chain(transforms, dtype="float32", layout=LAYOUTS[0])  # what images refuse is refused alike
    parts: list[ImageProgram | Link] = []
    for each in _runs([step for step in transforms if not isinstance(step, Normalize)]):
        if isinstance(each, Link):
            parts.append(each)
        else:
            steps = [(step, nth) for step, nth in each if isinstance(step, ImageTransform)]
            parts.append(ImageProgram(tuple(s for s, _ in steps), None, DTYPES[0], "nhwc", tuple(n for _, n in steps)))
    return MaskProgram(tuple(parts), channels, dtype, layout)


def programs_in(program: Program) -> tuple[ImageProgram | Link, ...]:
    """Return the parts of a program: itself, where it has none."""
    return (program,) if isinstance(program, ImageProgram) else program.parts


def fits_to_batch(program: Program) -> bool:
    """Return whether the batch says the size of what a program makes (`FitToShape`)."""
    return any(isinstance(part, ImageProgram) and part.fits for part in programs_in(program))


def fitted(program: P, size: tuple[int, int]) -> P:
    """Return the program of a batch whose pixels have this (height, width), where the batch says it."""
    if isinstance(program, ImageProgram):
        return cast("P", program.fitted(size))
    parts = tuple(part.fitted(size) if isinstance(part, ImageProgram) else part for part in program.parts)
    return cast("P", replace(program, parts=parts))


def moves_beyond_boxes(program: Program) -> str | None:
    """Return a step after which crops, one resize and a flip do not say where pixels are from; None if there is none."""
    for at, part in enumerate(programs_in(program)):
        if isinstance(part, ImageProgram):
            steps = part.steps if at else ()
            if steps:
                return f"{type(steps[0]).__name__} after a step that changes pixels"
        elif isinstance(part.step, Function):
            return f"function {part.step.name}, which may be one that"
        elif part.step.MOVES:
            return type(part.step).__name__
    return None


def random_moves(program: Program) -> list[object]:
    """Return the steps of a chain that move pixels at random."""
    out: list[object] = []
    for part in programs_in(program):
        if isinstance(part, ImageProgram):
            out += [each for each in part.steps if not each.deterministic]
        elif isinstance(part.step, PixelTransform) and part.step.MOVES and not part.step.deterministic:
            out.append(part.step)
    return out


def _runs(transforms: Sequence[Step]) -> list[Link | list[tuple[Transform, int]]]:
    """Return the chain cut at the steps that change pixels; each other step comes with its number of that name."""
    seen: dict[str, int] = {}
    runs: list[Link | list[tuple[Transform, int]]] = [[]]
    for step in transforms:
        name = _drawn_as(step)
        nth = seen.get(name, 0)
        seen[name] = nth + 1
        current = runs[-1]
        if isinstance(step, PixelTransform | Function):
            if not isinstance(current, Link) and any(isinstance(each, Normalize) for each, _ in current):
                what = step.name if isinstance(step, Function) else type(step).__name__
                msg = f"images: {what} stands after Normalize. Put Normalize last"
                raise PlanError(msg)
            runs += [Link(step, name, nth), []]
        else:
            assert isinstance(current, list)
            current.append((step, nth))
    return runs


def _drawn_as(step: Step) -> str:
    """Return the name by which a step draws; equal steps of an image and its mask draw alike."""
    if isinstance(step, Function):
        return function_step.NAME
    return f"{step.NAME}.{step.title}" if isinstance(step, Torchvision) else step.NAME


def _applied(link: Link, pixels: Pixels, keys: UInt64, i: int, *, mask: bool = False) -> Pixels:
    try:
        return link.apply(_writable(pixels), keys[i], mask=mask)
    except DataError as error:
        error.row = i
        raise


def _writable(pixels: Pixels) -> NDArray[Any]:
    return pixels if pixels.flags.writeable and pixels.flags.c_contiguous else np.array(pixels, order="C")
