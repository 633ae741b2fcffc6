"""What a batch will hold under each name, and which names are images."""

from typing import Any

import pyarrow as pa

from spiral_stream.decoders.decoder import Decoder, decoder
from spiral_stream.errors import PlanError
from spiral_stream.fields.field import Field, FieldSpec
from spiral_stream.fields.stack import Stack
from spiral_stream.schema import JPEG_REF, semantic_of
from spiral_stream.transforms.image import ImageProgram, compile_image


def is_image(field: Field) -> bool:
    """Whether the field decodes a reference instead of copying a column."""
    return isinstance(field, Stack) and field.decode is not None


def image_parts(field: Stack) -> tuple[Decoder, ImageProgram]:
    """The decoder and the compiled transforms of an image field.

    Raises:
        PlanError: unknown decoder, or transforms that do not form a legal chain.
    """
    assert field.decode is not None
    return decoder(field.decode), compile_image(
        field.transforms, dtype=field.dtype or "uint8", layout=field.layout or "nchw"
    )


def field_spec(name: str, field: Field, column: pa.Field) -> FieldSpec:
    """`Field.spec` for every kind of field, images included.

    Raises:
        PlanError: the column cannot be represented so; the message starts with the field's name.
    """
    try:
        if not isinstance(field, Stack) or field.decode is None:
            return field.spec(column)
        _need_images(field, column)
        _, program = image_parts(field)
        unknown: tuple[Any, ...] = (3, None, None) if (field.layout or "nchw") == "nchw" else (None, None, 3)
        return FieldSpec(field.dtype or "uint8", program.output_shape or unknown, field.layout or "nchw", field.device)
    except PlanError as error:
        msg = f"collate: field {name!r}: {error}"
        raise PlanError(msg) from error


def _need_images(field: Stack, column: pa.Field) -> None:
    if semantic_of(column) != JPEG_REF:
        msg = (
            f"decode={field.decode!r} needs a column of type {JPEG_REF}; {field.column!r} is "
            f"{semantic_of(column) or column.type}. Register it with semantic={{'{field.column}': '{JPEG_REF}'}}"
        )
        raise PlanError(msg)
