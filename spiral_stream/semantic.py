"""Semantic references: columns whose values name bytes, such as an image file or a range of a video.

The logical type travels in the Arrow field's metadata under ``spiral:semantic``
(for example ``image/jpeg-ref``). Storage of a reference column is one of

* ``binary`` / ``large_binary`` / a Lance blob: the bytes lie inline,
* ``utf8``: path or ``file://`` URI of a whole file,
* ``struct<uri, offset, length, ...>``: a byte range inside a file (a tar member),
* ``struct<bytes, path>``, as Hugging Face stores images: the bytes, or where there are none the path of a whole file,
* a list of one of these: several references per row.

Reading a reference column's metadata reads no payload.
"""

from collections.abc import Mapping
from typing import Final

import pyarrow as pa

from spiral_stream.errors import PlanError

SEMANTIC: Final = b"spiral:semantic"
SHAPE: Final = b"spiral:shape"  # metadata of a column of arrays of one shape: its dimensions, such as 3,224,224
JPEG_REF: Final = "image/jpeg-ref"
H264_REF: Final = "video/h264-ref"
AUDIO_REF: Final = "audio/ref"
BYTES_REF: Final = "application/bytes-ref"  # of no kind that is known
BYTES: Final = "bytes"  # of struct<bytes, path>
PATH: Final = "path"
HEIGHT: Final = "height"  # of an image, in a column of sizes
WIDTH: Final = "width"
SEMANTIC_TYPES: Final = (JPEG_REF, H264_REF, AUDIO_REF, BYTES_REF)


def said_shape(field: pa.Field) -> tuple[int, ...] | None:
    """The shape that each value of a column of lists has, where its source says one; the lists are in C order."""
    said = (field.metadata or {}).get(SHAPE)
    return None if said is None else tuple(map(int, said.split(b",")))


def semantic_of(field: pa.Field) -> str | None:
    """The semantic type of a column, or None for an ordinary one."""
    raw = (field.metadata or {}).get(SEMANTIC)
    return None if raw is None else raw.decode()


def with_semantic(schema: pa.Schema, semantic: Mapping[str, str]) -> pa.Schema:
    """Mark columns of ``schema`` as semantic references.

    Raises:
        PlanError: a column is missing, a type name is unknown, or the column's
            storage cannot hold a reference.
    """
    for name, kind in semantic.items():
        if name not in schema.names:
            msg = f"semantic: {name!r} is not a column; there are {', '.join(schema.names)}. Name the column that refers to files"
            raise PlanError(msg)
        if kind not in SEMANTIC_TYPES:
            msg = f"semantic: {kind!r} of {name!r} is unknown; known are {', '.join(SEMANTIC_TYPES)}"
            raise PlanError(msg)
        at = schema.get_field_index(name)
        field = schema.field(at)
        if not holds_reference(field.type):
            msg = (
                f"semantic: {name!r} is {field.type}, which cannot name bytes; a reference is binary (inline), "
                "utf8 (a file), struct<uri, offset, length> (a byte range), struct<bytes, path>, or a list of one of them. "
                "Name such a column, or leave it out"
            )
            raise PlanError(msg)
        schema = schema.set(at, field.with_metadata({**(field.metadata or {}), SEMANTIC: kind.encode()}))
    return schema


def holds_reference(kind: pa.DataType) -> bool:
    """Whether values of a type can name bytes, or hold them."""
    if is_list(kind):
        return not is_list(kind.value_type) and holds_reference(kind.value_type)
    if pa.types.is_struct(kind):
        names = {kind.field(i).name for i in range(kind.num_fields)}
        return names >= {"uri", "offset", "length"} or names >= {"kind", "position", "size"} or is_media(kind)
    return is_inline(kind) or is_text(kind) or isinstance(kind, pa.BaseExtensionType)


def is_inline(kind: pa.DataType) -> bool:
    """Whether values of a type are the bytes themselves."""
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def is_media(kind: pa.DataType) -> bool:
    """Whether a type is struct<bytes, path>: the bytes, or where they lie."""
    if not pa.types.is_struct(kind) or kind.num_fields != len((BYTES, PATH)):
        return False
    types = {kind.field(at).name: kind.field(at).type for at in range(kind.num_fields)}
    if types.keys() != {BYTES, PATH} or all(map(pa.types.is_null, types.values())):
        return False
    data, path = types[BYTES], types[PATH]  # pandas writes a part that is null in all rows as a column of type null
    return (is_inline(data) or pa.types.is_null(data)) and (is_text(path) or pa.types.is_null(path))


def file_names(references: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray | None:
    """Return the texts by which references name files, null where the bytes are there; None if their type names no file.

    Args:
        references: not lists of them.
    """
    import pyarrow.compute as pc

    kind = references.type
    if is_media(kind):
        held = pc.is_valid(pc.struct_field(references, BYTES))
        return pc.if_else(held, pa.scalar(None, pa.utf8()), pc.struct_field(references, PATH).cast(pa.utf8()))
    if pa.types.is_struct(kind) and "uri" in kind.names:
        return pc.struct_field(references, "uri")
    return references if is_text(kind) else None


def is_text(kind: pa.DataType) -> bool:
    """Whether a type is text, as Arrow writes it by default."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_ragged(kind: pa.DataType) -> bool:
    """Whether a type is a list of any number of values."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def is_list(kind: pa.DataType) -> bool:
    """Whether a type is a list of values."""
    return is_ragged(kind) or bool(pa.types.is_fixed_size_list(kind))


def is_sizes(kind: pa.DataType) -> bool:
    """Whether values of a type are lists of heights and widths of images."""
    if not is_ragged(kind) or not pa.types.is_struct(kind.value_type):
        return False
    sides = {field.name: field.type for field in kind.value_type}
    return {HEIGHT, WIDTH} <= set(sides) and all(pa.types.is_integer(sides[each]) for each in (HEIGHT, WIDTH))


def need_sizes(where: str, column: pa.Field) -> None:
    """Refuse a column that does not hold heights and widths of images.

    Raises:
        PlanError: says what it is, and how one is made.
    """
    if not is_sizes(column.type):
        msg = (
            f"{where}: sizes={column.name!r} is {column.type}. Name a column of list<struct<height, width>>, whole numbers; "
            f'of encoded images .map(spiral.transforms.ImageSizes("images") >> {column.name!r}) makes one, and '
            ".cache() behind it keeps it"
        )
        raise PlanError(msg)


def is_number(kind: pa.DataType) -> bool:
    """Whether values of a type are integers or floats."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))
