"""Lists of images in a plan: how many images a row of the batch has, and the masks that tell them from padding."""

from collections.abc import Sequence
from typing import TypeGuard

import pyarrow as pa

from spiral_stream.decoders.registry import CLIPS, SOUNDS
from spiral_stream.errors import PlanError
from spiral_stream.fields.field import Field
from spiral_stream.fields.pad import PadMask
from spiral_stream.fields.stack import Stack
from spiral_stream.semantic import is_list, semantic_of


def is_image_list(field: Field, column: pa.Field) -> TypeGuard[Stack]:
    """Whether a field decodes a list of images per row."""
    decodes = isinstance(field, Stack) and field.decode is not None and field.decode not in (*CLIPS, *SOUNDS)
    return decodes and is_list(column.type)


def is_list_mask(field: Field, column: pa.Field) -> TypeGuard[PadMask]:
    """Whether a field tells the images of lists from padding."""
    return isinstance(field, PadMask) and semantic_of(column) is not None and is_list(column.type)


def list_length(fields: Sequence[tuple[str, Field]], column: pa.Field) -> int | None:
    """Return how many images every row of a column has in a batch; None where its longest list decides.

    Raises:
        PlanError: fields of the column say different lengths.
    """
    said = {
        name: field.sequence_length if isinstance(field, Stack) else field.length
        for name, field in fields
        if field.column == column.name and (is_image_list(field, column) or is_list_mask(field, column))
    }
    lengths = sorted({each for each in said.values() if each is not None})
    if len(lengths) > 1:
        msg = f"collate: fields of {column.name!r} share their length, and say {lengths}. Give one length"
        raise PlanError(msg)
    if lengths:
        return lengths[0]
    return int(column.type.list_size) if pa.types.is_fixed_size_list(column.type) else None


def list_columns(fields: Sequence[tuple[str, Field]], have: pa.Schema) -> list[str]:
    """Return the columns whose lists of images are decoded."""
    return list(dict.fromkeys(f.column for _, f in fields if is_image_list(f, have.field(f.column))))


def check_lists(fields: Sequence[tuple[str, Field]], have: pa.Schema) -> None:
    """Refuse different lengths for one column, and masks of lists that no field decodes.

    Raises:
        PlanError: names the mask, and the field that it needs.
    """
    decoded = list_columns(fields, have)
    for name in decoded:
        list_length(fields, have.field(name))
    for name, field in fields:
        column = have.field(field.column)
        if is_list_mask(field, column) and field.column not in decoded:
            msg = (
                f"collate: field {name!r}: PadMask({field.column!r}) goes with images, and no field decodes this column. Add "
                f'Stack({field.column!r}, decode="image", transforms=[...])'
            )
            raise PlanError(msg)
