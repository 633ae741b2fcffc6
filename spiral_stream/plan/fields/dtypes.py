"""The dtype and shape of each field of a batch, from the plan alone: `field_spec`.

A copied column says its own in `fields.stack.Stack.spec`, and a token field in its ``dtype_name`` (`fields.sequence`).
Clips follow from `plan.fields.clips.clip_parts`, images are found here. Columns before `collate` have Arrow types: each
node's ``schema()`` (`nodes`). JAX may deliver a narrower integer (`adapters.jax`).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from spiral_stream.arguments import is_integer
from spiral_stream.batching.padding_width import common_multiple
from spiral_stream.decoders.decoder import Decoder
from spiral_stream.decoders.image.mask import MaskDecoder
from spiral_stream.decoders.image.oriented import Oriented
from spiral_stream.decoders.registry import CLIPS, decoder
from spiral_stream.errors import PlanError
from spiral_stream.fields.field import Field, FieldSpec
from spiral_stream.fields.pad import Pad
from spiral_stream.fields.sequence import SequenceField
from spiral_stream.fields.stack import Stack
from spiral_stream.plan.fields.clips import clip_parts, limits_of, shorthands
from spiral_stream.plan.fields.image_lists import is_image_list, is_list_mask, list_length
from spiral_stream.plan.fields.sounds import is_sound, sound_selection
from spiral_stream.semantic import AUDIO_REF, BYTES_REF, H264_REF, JPEG_REF, is_list, semantic_of
from spiral_stream.transforms.chain import MaskProgram, Program, as_steps, compile_chain, compile_mask, pixel_dtype


def image_parts(field: Stack) -> tuple[Decoder, Program]:
    """Return the decoder and the compiled transforms of a field of images or masks.

    Raises:
        PlanError: unknown decoder, or transforms that do not form a legal chain.
    """
    assert field.decode is not None
    if (field.stride, field.random_start, field.short) != (None, False, "pad"):
        msg = f'sequence_length, stride, random_start and short are of clips, decode="h264"; decode={field.decode!r} reads images'
        raise PlanError(msg)
    chain = as_steps((*shorthands(field), *field.transforms))
    reader: Decoder = decoder(field.decode)
    if field.interpolation == "nearest":
        reader = MaskDecoder(field.mode or "RGB")
        program: Program = _mask_program(field, reader, chain)
    else:
        program = compile_chain(chain, dtype=pixel_dtype(field.dtype, chain), layout=field.layout or "nchw")
    found = Oriented(reader) if field.orient else reader
    return found.within(limits_of(field, found.limits)), program


def _mask_program(field: Stack, reader: MaskDecoder, chain: Sequence[Any]) -> MaskProgram:
    dtype = field.dtype or ("int32" if reader.dtype == "uint16" else "uint8")
    if not np.can_cast(reader.dtype, dtype):
        msg = f"masks of mode {field.mode!r} hold {reader.dtype}, which dtype={dtype!r} cannot. Give int32 or int64"
        raise PlanError(msg)
    layout = field.layout or ("nhw" if reader.channels == 1 else "nchw")
    return compile_mask(chain, channels=reader.channels, dtype=dtype, layout=layout)


def field_specs(fields: Sequence[tuple[str, Field]], have: pa.Schema) -> dict[str, FieldSpec]:
    """Return dtype and shape of every field of a batch, by name; ``have`` are the columns that it is collated from."""
    out = {name: field_spec(name, field, have.field(field.column)) for name, field in fields}
    for name, field in fields:
        try:
            out[name] = field.spec_among(out[name], [each for _, each in fields])
        except PlanError as error:
            msg = f"collate: field {name!r}: {error}"
            raise PlanError(msg) from error
        if isinstance(field, SequenceField) and field.IN_SLOT:
            _, length = widths_of(fields, field.column)
            out[name] = replace(out[name], shape=(length, *out[name].shape[1:]))
        column = have.field(field.column)
        if is_image_list(field, column) or is_list_mask(field, column):
            out[name] = replace(out[name], shape=(list_length(fields, column), *out[name].shape[1:]))
    return out


def widths_of(fields: Sequence[tuple[str, Field]], column: str) -> tuple[int, int | None]:
    """Return the number that T is a multiple of for all padded fields of a column, and T itself if one of them says it.

    Raises:
        PlanError: two fields say different lengths, or the length is no multiple.
    """
    shared = together(fields, column) or (column,)
    some = [field for _, field in fields if isinstance(field, SequenceField) and field.column in shared]
    multiple = common_multiple(field.multiple for field in some)
    lengths = sorted({field.fixed for field in some if field.fixed is not None})
    if len(lengths) > 1:
        msg = f"collate: fields of {column!r} share their width, and say {lengths}. Give one length"
        raise PlanError(msg)
    length = lengths[0] if lengths else None
    if length is not None and length % multiple:
        msg = f"collate: length={length} of {column!r} is no multiple of {multiple}, which its fields pad to. Change one of them"
        raise PlanError(msg)
    return multiple, length


def together(fields: Sequence[tuple[str, Field]], column: str) -> tuple[str, ...]:
    """Return the token columns that share their width with a column, itself included; empty if there is no other."""
    pairs = [(field.column, field.also) for _, field in fields if isinstance(field, Pad) and field.also is not None]
    found = {column}
    for _ in pairs:
        for pair in pairs:
            found |= set(pair) if found & set(pair) else set()
    return tuple(sorted(found)) if len(found) > 1 else ()


def field_spec(name: str, field: Field, column: pa.Field) -> FieldSpec:
    """Return dtype and shape of a field of every kind, images and clips included.

    Raises:
        PlanError: the column cannot be represented so; the message starts with the field's name.
    """
    try:
        if not isinstance(field, Stack) or field.decode is None:
            return field.spec(column)
        if field.decode in CLIPS:
            _need_semantic(field, column, H264_REF)
            selection, frames = clip_parts(field)
            frame = frames.output_shape or _unsized(frames, 3)
            shape = (None if field.sequence_length is None else selection.sequence_length, *frame)
            return FieldSpec(frames.dtype, shape, field.layout or "ntchw", field.device)
        if is_sound(field):
            _need_semantic(field, column, AUDIO_REF)
            chosen = sound_selection(field)
            return FieldSpec(field.dtype or "float32", (chosen.channels, chosen.length), None, field.device)
        decoder(field.decode)  # an unknown one is no reason to register the column anew
        _need_semantic(field, column, JPEG_REF)
        reader, program = image_parts(field)
        if is_image_list(field, column):
            return _list_spec(field, column, program)
        _need_no_list(field)
        shape = program.output_shape or _unsized(program, reader.channels)
        return FieldSpec(program.dtype, shape, program.layout, field.device)
    except PlanError as error:
        msg = f"collate: field {name!r}: {error}"
        raise PlanError(msg) from error


def _unsized(program: Program, channels: int) -> tuple[int | None, ...]:
    """The shape of an image whose size the plan does not say."""
    shapes = {"nchw": (channels, None, None), "nhwc": (None, None, channels), "nhw": (None, None)}
    return shapes[program.layout]


def _need_no_list(field: Stack) -> None:
    if field.sequence_length is not None or field.draws_alike:
        what = "draws_alike" if field.draws_alike else "sequence_length"
        more = "" if field.draws_alike else ', and of clips, decode="h264"'
        msg = f"{what} is of lists of images{more}; {field.column!r} has one image per row. Leave it out"
        raise PlanError(msg)


def _list_spec(field: Stack, column: pa.Field, program: Program) -> FieldSpec:
    if program.output_shape is None:
        msg = "images of a list need one size. End with transforms=[..., Resize((224, 224))], or RandomResizedCrop(224)"
        raise PlanError(msg)
    least = column.type.list_size if pa.types.is_fixed_size_list(column.type) else 1
    said = field.sequence_length
    if said is not None and not is_integer(said, least):
        msg = f"sequence_length={said!r} of a column of {column.type}. Give a whole number of at least {least}, or leave it out"
        raise PlanError(msg)
    length = list_length([("", field)], column)
    return FieldSpec(program.dtype, (length, *program.output_shape), program.layout, field.device)


def _need_semantic(field: Stack, column: pa.Field, semantic: str) -> None:
    if semantic_of(column) == H264_REF and semantic != H264_REF:
        msg = f'{field.column!r} is {H264_REF}, which decode={field.decode!r} does not read. Give decode="h264"'
        raise PlanError(msg)
    if is_list(column.type) and semantic != JPEG_REF:
        msg = f'{field.column!r} has a list of references per row, and one is decoded. Use List("{field.column}") for the bytes'
        raise PlanError(msg)
    if semantic == AUDIO_REF and semantic_of(column) == BYTES_REF:  # the decoder finds out
        return
    if semantic_of(column) != semantic:
        msg = (
            f"decode={field.decode!r} needs a column of type {semantic}; {field.column!r} is "
            f"{semantic_of(column) or column.type}. Register it with semantic={{'{field.column}': '{semantic}'}}"
        )
        raise PlanError(msg)
