"""Clips in a plan: which frames a field takes, and what they cost a budget."""

from collections.abc import Iterator, Sequence
from math import prod
from typing import Final, TypeGuard, cast

import pyarrow as pa

from spiral_stream.decoders.limits import SampleLimits
from spiral_stream.decoders.registry import CLIPS
from spiral_stream.decoders.video.frame_selection import FrameSelection, Short
from spiral_stream.errors import PlanError
from spiral_stream.fields.field import Field
from spiral_stream.fields.stack import Stack
from spiral_stream.host_dtypes import host_dtype
from spiral_stream.transforms.chain import ImageChain, as_steps, compile_chain, pixel_dtype
from spiral_stream.transforms.image.crop_and_resize import CenterCrop, FitToShape, ImageTransform, RandomCrop, Resize
from spiral_stream.transforms.image.image import ImageProgram

LAYOUTS: Final = {"ntchw": "nchw", "nthwc": "nhwc"}  # of clips, and of their frames
TIMES: Final = ("start_time_ms", "duration_ms")  # columns: where a segment lies in its file


def check_times(relation: str, schema: pa.Schema) -> None:
    """Refuse times of segments that are no numbers of milliseconds.

    Raises:
        PlanError: says which column, and what would be right.
    """
    for column in TIMES:
        if column in schema.names and not pa.types.is_integer(kind := schema.field(column).type):
            msg = f"{relation}: {column!r} is {kind}; the times of segments are whole milliseconds: store them as int64"
            raise PlanError(msg)


def is_clip(field: Field) -> TypeGuard[Stack]:
    """Whether the field decodes clips."""
    return isinstance(field, Stack) and field.decode in CLIPS


def limits_of(field: Stack, default: SampleLimits) -> SampleLimits:
    """Return the limits of one sample of a decoded field: the field's own where it states them."""
    stated = (field.max_pixels, field.max_frames, field.max_bytes)
    usual = (default.pixels, default.frames, default.bytes)
    return SampleLimits(*(b if a is None else a for a, b in zip(stated, usual, strict=True)))


def clip_parts(field: Stack) -> tuple[FrameSelection, ImageProgram | ImageChain]:
    """Return which frames a clip field takes, and the compiled transforms of one frame.

    Raises:
        PlanError: no ``sequence_length``, transforms that do not form a legal chain, or none that fix the size. A batch may say
            both (`FitToShape`); then the number of frames is 1 here.
    """
    chain = as_steps((*shorthands(field), *field.transforms))
    fits = any(isinstance(step, FitToShape) for step in chain)
    if field.sequence_length is None and not fits:
        msg = f"decode={field.decode!r} needs the number of frames per clip. Add sequence_length=16"
        raise PlanError(msg)
    selection = FrameSelection(
        1 if field.sequence_length is None else field.sequence_length,
        field.stride,
        field.random_start,
        cast("Short", field.short),
    )
    layout = field.layout or "ntchw"
    if layout not in LAYOUTS:
        msg = f"clips: layout {layout!r} is unknown; known are {', '.join(LAYOUTS)}"
        raise PlanError(msg)
    program = compile_chain(chain, dtype=pixel_dtype(field.dtype, chain), layout=LAYOUTS[layout])
    if program.output_shape is None and not fits:
        msg = "clips of one batch need one size. Add crop=224, or transforms=[Resize((height, width))]"
        raise PlanError(msg)
    if isinstance(program, ImageChain) and program.head.output_shape is None and not program.head.fits:
        msg = "clips: the first steps that change pixels need frames of one size. Put crop=224 or Resize((height, width)) first"
        raise PlanError(msg)
    return selection, program


def clip_costs(fields: Sequence[tuple[str, Field]]) -> dict[str, int]:
    """Return what one sample counts against a budget: ``frames`` and ``bytes`` of its clips as they are delivered."""
    costs = {"frames": 0, "bytes": 0}
    for _, field in fields:
        if is_clip(field):
            selection, program = clip_parts(field)
            if program.output_shape is None:  # the batch says it, and has no budget
                continue
            costs["frames"] += selection.sequence_length
            costs["bytes"] += (
                selection.sequence_length * prod(program.output_shape) * host_dtype(program.dtype).itemsize
            )
    return costs


def shorthands(field: Stack) -> Iterator[ImageTransform]:
    """The transforms that a field's shorthands stand for."""
    if field.resize_shorter is not None:
        yield Resize(field.resize_shorter)
    if field.crop is not None:
        yield RandomCrop(field.crop) if field.random_crop else CenterCrop(field.crop)
