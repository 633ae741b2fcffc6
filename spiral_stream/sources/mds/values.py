"""Columns from the values of an MDS shard: as one copy where Arrow can, value by value where Python must look."""

import json
from collections.abc import Callable, Sequence
from io import BytesIO
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from spiral_stream.errors import shown
from spiral_stream.host_dtypes import numpy_dtype
from spiral_stream.semantic import is_number, is_text
from spiral_stream.sources.json.columns import column_of
from spiral_stream.sources.mds.encodings import ARRAY_TYPES, Encoding, MdsForm
from spiral_stream.sources.mds.samples import Int64, Span, gathered
from spiral_stream.sources.schema import GIVE
from spiral_stream.sources.tar.samples import INLINE, REFERENCE

CHECKED: Final = pa.struct([*list(REFERENCE), ("digest", pa.utf8())])  # compared wherever the bytes are read
SHAPE: Final = "_shape"  # after the name of an array's column
_PNG_MODES: Final = frozenset(("1", "L", "LA", "P", "RGB", "RGBA", "I;16"))
_INTEGER: Final = r"^(0|-?[1-9][0-9]{0,19})$"  # what Arrow reads as Python does
_FLOAT: Final = r"^-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?$|^-?inf$|^nan$"
_DIM_BYTES: Final = (1, 2, 4, 8)


def payload_array(span: Span, uri: str | None, kind: pa.DataType) -> pa.Array:
    """Return payload: references into a file, or bytes if there is no ``uri``."""
    return span.gathered() if uri is None else references(span, uri, span.starts, span.lengths, kind)


def references(span: Span, uri: str, starts: Int64, lengths: Int64, kind: pa.DataType) -> pa.StructArray:
    """Return references to byte ranges of one file: `REFERENCE`, or `CHECKED` with a digest of the bytes as they are now."""
    parts = [pa.repeat(pa.scalar(uri, pa.utf8()), len(starts)), pa.array(starts), pa.array(lengths)]
    if kind == CHECKED:
        ranges = zip(starts.tolist(), lengths.tolist(), strict=True)
        digests = [xxhash.xxh3_64_hexdigest(span.data[at : at + count]) for at, count in ranges]  # 1 us per value
        parts.append(pa.array([f"xxh3_64:{each}" for each in digests], pa.utf8()))
    return pa.StructArray.from_arrays(parts, fields=list(kind))


def images_array(encoding: Encoding, span: Span, uri: str | None, kind: pa.DataType) -> pa.Array:
    """Return lists of images, of such items: a number of them, their sizes, and one after the other."""
    starts, lengths, counts = _images(encoding, span)
    inner = gathered(span.data, starts, lengths) if uri is None else references(span, uri, starts, lengths, kind)
    return pa.ListArray.from_arrays(pa.array(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)), inner)


def pixels_array(encoding: Encoding, span: Span) -> pa.Array:
    """Return raw images as PNG, which keeps every pixel; lists of them as lists."""
    if encoding.form is MdsForm.PIXELS:
        return pa.array([_png_or_fault(span, row, span.bytes_of(row)) for row in range(len(span))], INLINE)
    starts, lengths, counts = _images(encoding, span)
    owners = np.repeat(np.arange(len(span)), counts).tolist()
    pngs = [
        _png_or_fault(span, row, span.data[start : start + length])
        for row, start, length in zip(owners, starts.tolist(), lengths.tolist(), strict=True)
    ]
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(pngs, INLINE))


def text_array(span: Span) -> pa.Array:
    """Return texts."""
    found = span.gathered()
    try:
        return found.cast(pa.large_utf8()).cast(pa.utf8())
    except pa.ArrowInvalid:
        return pa.array(_one_by_one(span, lambda data: str(data, "utf-8"), "text, which is UTF-8"), pa.utf8())


def number_array(encoding: Encoding, span: Span) -> pa.Array:
    """Return numbers of a fixed size."""
    assert encoding.dtype is not None
    return pa.array(np.frombuffer(span.gathered().buffers()[2], encoding.dtype, count=len(span)))


def written_array(encoding: Encoding, span: Span, kind: pa.DataType) -> pa.Array:
    """Return numbers that are written as text; whole ones that the column does not hold cannot be read.

    Args:
        encoding: of the column.
        span: the texts.
        kind: of the column.
    """
    is_float = encoding.dtype == "float64"
    try:
        texts = span.gathered().cast(pa.large_utf8())
        if pc.all(pc.match_substring_regex(texts, _FLOAT if is_float else _INTEGER), min_count=0).as_py():
            return texts.cast(kind)
    except pa.ArrowInvalid:
        pass  # one by one: 1 us per value
    if is_float:
        return pa.array(_one_by_one(span, lambda data: float(str(data, "utf-8")), "a number"), pa.float64())
    array, wrong = column_of("it", written_numbers(span), kind)
    span.wrong.extend(wrong)
    return array


def plain_array(encoding: Encoding, span: Span, kind: pa.DataType) -> pa.Array:
    """Return texts, numbers, or numbers written as text, as the index says them."""
    if encoding.form is MdsForm.WRITTEN:
        return written_array(encoding, span, kind)
    return text_array(span) if encoding.form is MdsForm.TEXT else number_array(encoding, span)


def declared_array(name: str, encoding: Encoding, span: Span, kind: pa.DataType) -> pa.Array:
    """Return texts or numbers as the type that a user declared; those that it does not hold cannot be read.

    Args:
        name: of the column.
        encoding: of the column: text, numbers, or numbers written as text.
        span: the values.
        kind: of the column.
    """
    if encoding.form is MdsForm.NUMBER:
        natural = number_array(encoding, span)
    elif encoding.form is MdsForm.TEXT or is_text(kind):
        natural = text_array(span)
    elif encoding.dtype == "float64" or pa.types.is_integer(kind):
        natural = written_array(encoding, span, kind if encoding.dtype != "float64" else pa.float64())
    else:
        array, wrong = column_of(name, written_numbers(span), kind, is_declared=True)
        span.wrong.extend(wrong)
        return array
    if natural.type == kind:
        return natural
    is_number = pa.types.is_floating(kind) or (pa.types.is_integer(kind) and pa.types.is_integer(natural.type))
    if is_text(kind) if is_text(natural.type) else is_number:
        try:
            return natural.cast(kind)
        except pa.ArrowException:
            pass  # one by one, as follows
    listed = natural.cast(pa.float64()) if pa.types.is_float16(natural.type) else natural
    array, wrong = column_of(name, listed.to_pylist(), kind, is_declared=True)
    span.wrong.extend(wrong)
    return array


def written_numbers(span: Span) -> list[int | None]:
    """Return whole numbers of any size that are written as text; None for what is none."""
    return _one_by_one(span, lambda data: int(str(data, "utf-8")), "a whole number")


def json_values(span: Span) -> list[Any]:
    """Return what ``json`` reads; None for what it does not."""
    return _one_by_one(span, lambda data: json.loads(str(data, "utf-8")), "JSON")


class Arrays(NamedTuple):
    """Arrays of a column: what their heads say, and where their values lie."""

    dtypes: Sequence[str | None]  # None for one whose head cannot be read
    shapes: Sequence[tuple[int, ...]]
    starts: Int64
    lengths: Int64


def arrays_of(encoding: Encoding, span: Span) -> Arrays:
    """Read the heads of arrays; those that contradict their sizes are noted as wrong."""
    if encoding.dtype is not None and (encoding.shape is not None or encoding.is_bare):
        item = np.dtype(encoding.dtype).itemsize
        shapes = [encoding.shape or (length // item,) for length in span.lengths.tolist()]
        found: list[str | None] = [encoding.dtype] * len(span)
        for row in np.flatnonzero(span.lengths % item).tolist():
            span.wrong.append((row, f"has {span.lengths[row]} bytes, which are no whole number of {encoding.dtype}"))
            found[row] = None
        return Arrays(found, shapes, span.starts, span.lengths)
    starts, dtypes, shapes = span.starts.copy(), [], []
    for row in range(len(span)):  # 2 us per array
        dtype, shape, head = _head(encoding, span.bytes_of(row))
        values = int(span.lengths[row]) - head
        if dtype is None or int(np.prod(shape, dtype=object)) * np.dtype(dtype).itemsize != values:
            span.wrong.append((row, f"is an array whose head says {dtype} {shape} before {max(values, 0):,} bytes"))
            dtype, head = None, 0
        starts[row] += head
        dtypes.append(dtype)
        shapes.append(shape)
    return Arrays(dtypes, shapes, starts, span.starts + span.lengths - starts)


def flat_array(name: str, arrays: Arrays, span: Span, kind: pa.DataType, *, is_declared: bool) -> pa.Array:
    """Return arrays as lists of their values in C order.

    Args:
        name: of the column, for messages.
        arrays: as `arrays_of` found them.
        span: that they are of.
        kind: of the column: a list, or a list of fixed size.
        is_declared: whether a user said what the column is; then arrays of other types are read if it holds their values.
    """
    dtype = numpy_dtype(kind.value_type) if is_number(kind.value_type) else None
    if is_declared and (dtype is None or not _is_natural(arrays, dtype, kind)):
        array, wrong = column_of(name, _lists(arrays, span), kind, is_declared=True)
        span.wrong.extend(wrong)
        return array
    assert dtype is not None
    lengths = arrays.lengths.copy()
    for row, found in enumerate(arrays.dtypes):
        if found == dtype.name:
            continue
        lengths[row] = 0
        if found is not None:
            span.wrong.append((row, f"is an array of {found}, and the column is {kind}. {GIVE}"))
    values = pa.array(np.frombuffer(gathered(span.data, arrays.starts, lengths).buffers()[2] or b"", dtype))
    values = values[: int(lengths.sum()) // dtype.itemsize]
    if pa.types.is_fixed_size_list(kind):
        return pa.FixedSizeListArray.from_arrays(values, type=kind)
    offsets = np.concatenate([[0], np.cumsum(lengths // dtype.itemsize)])
    return pa.LargeListArray.from_arrays(pa.array(offsets), values).cast(kind)


def _is_natural(arrays: Arrays, dtype: np.dtype[Any], kind: pa.DataType) -> bool:
    """Whether a column holds arrays as they are."""
    if any(found != dtype.name for found in arrays.dtypes):
        return False
    return not pa.types.is_fixed_size_list(kind) or bool((arrays.lengths == kind.list_size * dtype.itemsize).all())


def _lists(arrays: Arrays, span: Span) -> list[list[Any] | None]:
    """The values of arrays as Python's lists, some 30 ns per value; None for one whose head cannot be read."""
    found: list[list[Any] | None] = []
    for dtype, start, length in zip(arrays.dtypes, arrays.starts.tolist(), arrays.lengths.tolist(), strict=True):
        found.append(None if dtype is None else np.frombuffer(span.data[start : start + length], dtype).tolist())
    return found


def _head(encoding: Encoding, data: memoryview) -> tuple[str | None, tuple[int, ...], int]:
    """The type and shape of one array, and the bytes of its head."""
    at, dtype, shape = 0, encoding.dtype, encoding.shape
    if dtype is None:
        dtype, at = ARRAY_TYPES.get(data[0]) if len(data) else None, 1
    if shape is None:
        if len(data) <= at:
            return None, (), at
        dims, size = data[at] >> 2, _DIM_BYTES[data[at] & 3]
        found = data[at + 1 : at + 1 + dims * size]
        if len(found) < dims * size:
            return None, (), at
        shape, at = tuple(np.frombuffer(found, f"<u{size}").tolist()), at + 1 + dims * size
    return dtype, shape, at


def _images(encoding: Encoding, span: Span) -> tuple[Int64, Int64, Int64]:
    """Starts and lengths of all images, and how many each sample has."""
    starts, lengths, counts = [], [], np.zeros(len(span), np.int64)
    for row in range(len(span)):  # 5 us per sample
        data = span.bytes_of(row)[encoding.prefix :]
        count = int(np.frombuffer(data[:4], "<u4")[0]) if len(data) >= 4 else -1  # noqa: PLR2004
        head = 4 + 4 * count
        sizes = np.frombuffer(data[4:head], "<u4").astype(np.int64) if count >= 0 and head <= len(data) else None
        if sizes is None or head + int(sizes.sum()) != len(data):
            span.wrong.append(
                (row, f"is a list of {count:,} images in {len(data):,} bytes, which their sizes do not add up to")
            )
            continue
        first = int(span.starts[row]) + encoding.prefix + head
        starts.append(first + np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)[:count])
        lengths.append(sizes)
        counts[row] = count
    none = np.zeros(0, np.int64)
    return np.concatenate([none, *starts]), np.concatenate([none, *lengths]), counts


def _png_or_fault(span: Span, row: int, data: memoryview) -> bytes | None:
    try:
        return _png(data)
    except ValueError as error:
        span.wrong.append((row, f"is an image that cannot be read: {error}"))
        return None


def _png(data: memoryview) -> bytes:
    """Turn raw pixels into PNG.

    Raises:
        ValueError: the head is damaged, or PNG has no such pixels.
    """
    from PIL import Image

    if len(data) < 12:  # noqa: PLR2004
        msg = "its head has 12 bytes"
        raise ValueError(msg)
    width, height, letters = (int(each) for each in np.frombuffer(data[:12], "<u4"))
    mode = bytes(data[12 : 12 + letters]).decode("ascii", "replace") if letters < 8 else "?"  # noqa: PLR2004
    if mode not in _PNG_MODES:
        msg = f"its mode is {shown(mode)}; {' '.join(sorted(_PNG_MODES))} are kept, as PNG. Leave it out with columns=[...]"
        raise ValueError(msg)
    out = BytesIO()
    Image.frombytes(mode, (width, height), bytes(data[12 + letters :])).save(out, "PNG", compress_level=1)
    return out.getvalue()


def _one_by_one(span: Span, read: Callable[[memoryview], Any], what: str) -> list[Any]:
    """Read values one by one; those that cannot be read are None, and noted."""
    found: list[Any] = []
    for row in range(len(span)):
        data = span.bytes_of(row)
        try:
            found.append(read(data))
        except (ValueError, RecursionError):
            span.wrong.append((row, f"is {shown(bytes(data))}, which is not {what}"))
            found.append(None)
    return found
