"""Which bytes a semantic reference names: inline, a file, or a byte range of a file.

Works on a column of references at a time: each distinct file is opened once a
call, adjacent byte ranges are read together, inline bytes are views on the Arrow
buffers without a copy. The loops are over references, at about 1 us each inline
and one ``open`` per distinct file otherwise. Payload comes back as Python values: one per row, or a list per row.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spiral_stream.errors import SourceError, anew, cut, renumbered
from spiral_stream.semantic import BYTES, file_names, is_inline, is_list, is_media, is_text
from spiral_stream.sources.references.objects import NamedObject, need_fewer, read_objects
from spiral_stream.sources.references.policy import (
    Reach,
    ReferenceDataError,
    ReferenceSourceError,
    reach_of,
    unreadable,
)
from spiral_stream.sources.references.stamps import Stamps, stamps_of
from spiral_stream.storage.local import exactly, stat_of
from spiral_stream.threads import doing

GAP_BYTES: Final = 4096  # ranges this near are read in one call: a page more costs less than a call
READ_BYTES: Final = 32 << 20  # most bytes of one coalesced read
_FARTHEST: Final = 1 << 62  # bytes: beyond the end of any file
_RANGE: Final = {"uri", "offset", "length"}


def resolve(values: pa.Array | pa.ChunkedArray, base: Reach | str, most_bytes: int | None = None) -> list[memoryview]:
    """Return the bytes that each reference names, in order.

    Args:
        values: P references: binary or large_binary (inline), utf8 (a path or
            ``file://`` URI), struct<uri, offset, length> (a byte range), with further
            fields that are compared with what is read (`stamps`), or struct<bytes, path>.
        base: where relative paths start, and which files may be named.
        most_bytes: of one file or range that is read; None reads any.

    Raises:
        ReferenceDataError: a null, a NUL, a negative range, or more bytes than that; ``row`` says which.
        ReferenceSourceError: a missing file, one that ends too early, may not be read, or changed since registration.
    """
    chunks = values.chunks if isinstance(values, pa.ChunkedArray) else [values]
    reach = reach_of(base)
    found: list[memoryview] = []
    for chunk in chunks:
        with renumbered(range(len(found), len(found) + max(1, len(chunk)))):
            found += _resolve_chunk(chunk, reach, most_bytes)
    return found


Resolved = memoryview | SourceError  # what a reference names, or why it cannot be read


def resolve_or_errors(
    values: pa.Array | pa.ChunkedArray,
    base: Reach | str,
    most_bytes: int | None = None,
    caught: type[SourceError] = SourceError,
) -> list[Resolved]:
    """Return what each reference names, or the error that says why it cannot be read.

    One bad reference costs one more call for the others: they are asked for again, without it.

    Args:
        values: as for `resolve`.
        base: as for `resolve`.
        most_bytes: as for `resolve`.
        caught: the errors that are returned; others are raised.

    Raises:
        SourceError: as of `resolve`, where it is not ``caught``, or says of no row.
    """
    found: list[Resolved | None] = [None] * len(values)
    left = np.arange(len(values))
    while len(left):
        some = values if len(left) == len(values) else values.take(pa.array(left))
        try:
            data = resolve(some, base, most_bytes)
        except caught as error:
            if error.row is None:
                raise
            found[int(left[error.row])] = anew(error)
            left = np.delete(left, error.row)
            continue
        for at, each in zip(left.tolist(), data, strict=True):
            found[at] = each
        break
    return [each for each in found if each is not None]


class Form(Enum):
    """The form in which a column of references names bytes."""

    INLINE = "binary"
    FILE = "utf8"
    RANGE = "struct<uri, offset, length>"
    MEDIA = "struct<bytes, path>"


def form_of(array: pa.Array) -> Form:
    """Return the form in which the references of one chunk name bytes.

    Raises:
        ReferenceDataError: one of them is null.
        ReferenceSourceError: the type names no bytes.
    """
    kind = array.type
    if array.null_count:
        row = int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])
        raise ReferenceDataError(row, "the reference is null. Filter the row out (~col(...).is_null()), or fill it in")
    if is_inline(kind):
        return Form.INLINE
    if is_media(kind):
        return Form.MEDIA
    if is_text(kind):
        return Form.FILE
    if pa.types.is_struct(kind) and {field.name for field in kind} >= _RANGE:
        return Form.RANGE
    msg = f"a reference of type {cut(str(kind))} names no bytes; it is binary, utf8, struct<uri, offset, length> or "
    msg += "struct<bytes, path>"
    raise ReferenceSourceError(0, msg)


def uris_of(texts: pa.Array) -> list[str]:
    """Texts of references as Python strings.

    Raises:
        ReferenceDataError: one is no UTF-8.
    """
    try:
        found: list[str] = texts.to_pylist()
    except UnicodeDecodeError as error:
        row = next(at for at in range(len(texts)) if not _is_text(texts[at].as_buffer()))
        msg = "the reference is no UTF-8, so it is no path. Write it again, or filter the row out"
        raise ReferenceDataError(row, msg) from error
    return found


def _is_text(data: pa.Buffer) -> bool:
    try:
        str(memoryview(data), "utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _resolve_chunk(array: pa.Array, reach: Reach, most_bytes: int | None) -> list[memoryview]:
    form = form_of(array)
    if form is Form.INLINE:
        return inline_views(array)
    if form is Form.MEDIA:
        return _media(array, reach, most_bytes)
    return _files(uris_of(array), reach, most_bytes) if form is Form.FILE else _ranges(array, reach, most_bytes)


def inline_views(array: pa.Array) -> list[memoryview]:
    """Return the bytes of inline references, views on the Arrow buffers."""
    width = np.int64 if pa.types.is_large_binary(array.type) else np.int32
    _, offsets_buffer, data = array.buffers()
    offsets = np.frombuffer(offsets_buffer, dtype=width)[array.offset : array.offset + len(array) + 1].tolist()
    view = memoryview(b"") if data is None else memoryview(data).cast("B").toreadonly()
    return [view[start:stop] for start, stop in pairwise(offsets)]


def held_bytes(array: pa.StructArray) -> tuple[list[memoryview], pa.Array, NDArray[np.intp]]:
    """Take struct<bytes, path> apart.

    Returns:
        The bytes of each, empty where there are none; the paths of those without; and which those are.

    Raises:
        ReferenceDataError: one holds neither.
    """
    import pyarrow.compute as pc

    data, paths = pc.struct_field(array, BYTES), file_names(array)
    data = data.cast(pa.binary()) if pa.types.is_null(data.type) else data
    assert paths is not None  # a type that form_of took
    left = np.flatnonzero(data.is_null().to_numpy(zero_copy_only=False))
    named = paths.take(pa.array(left))
    if named.null_count:
        row = int(left[named.is_null().to_numpy(zero_copy_only=False)][0])
        msg = "the reference has neither bytes nor a path. Filter the row out, or fill it in"
        raise ReferenceDataError(row, msg)
    return inline_views(data), named, left


def _media(array: pa.StructArray, reach: Reach, most_bytes: int | None) -> list[memoryview]:
    found, paths, left = held_bytes(array)
    if len(left):
        with renumbered(left):
            read = _files(uris_of(paths), reach, most_bytes)
        for row, data in zip(left.tolist(), read, strict=True):
            found[row] = data
    return found


def _files(uris: Sequence[str], reach: Reach, most_bytes: int | None) -> list[memoryview]:
    read: dict[str, memoryview] = {}
    objects = [
        NamedObject(row, uri, named) for row, uri in enumerate(uris) if (named := reach.object_of(uri, row)) is not None
    ]
    for each, data in read_objects(objects, reach, most_bytes):
        read[each.uri] = data
    for row, uri in enumerate(uris):
        if uri not in read:
            handle, path, facts = reach.open(uri, row)
            try:
                if most_bytes is not None and facts.st_size > most_bytes:
                    need_fewer(row, path, facts.st_size, most_bytes)
                with doing(f"file {path}"):
                    read[uri] = memoryview(read_at(handle, facts.st_size, 0))
            except OSError as error:
                raise unreadable(row, path, error) from error
            finally:
                os.close(handle)
    return [read[uri] for uri in uris]


@final
@dataclass(frozen=True, slots=True, eq=False)
class ByteRanges:
    """P byte ranges of files."""

    files: NDArray[np.int32]  # which of the uris
    uris: list[str]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    stamps: Stamps | None  # what else the references say


def byte_ranges(array: pa.StructArray) -> ByteRanges:
    """Return the ranges that references of struct<uri, offset, length> name.

    Raises:
        ReferenceDataError: a part is null, or a range negative or beyond what a file can have.
        ReferenceSourceError: a part is of a type that says nothing.
    """
    fields = dict(zip((field.name for field in array.type), array.flatten(), strict=True))
    for name in ("uri", "offset", "length"):
        if fields[name].null_count:
            row = int(np.flatnonzero(fields[name].is_null().to_numpy(zero_copy_only=False))[0])
            raise ReferenceDataError(row, f"the reference's {name} is null. Filter the row out, or fill it in")
    starts, lengths = _clamped_int64("offset", fields["offset"]), _clamped_int64("length", fields["length"])
    wrong = np.flatnonzero((starts < 0) | (lengths < 0) | (starts > _FARTHEST - lengths))
    if len(wrong):
        row = int(wrong[0])
        msg = (
            f"the reference's byte range is {starts[row]} + {lengths[row]}; both are at least 0, and together no more "
            "than a file can have. Correct it, or filter the row out"
        )
        raise ReferenceDataError(row, msg)
    texts = fields["uri"].type.value_type if pa.types.is_dictionary(fields["uri"].type) else fields["uri"].type
    if not is_text(texts):
        msg = f"the reference's uri is {cut(str(texts))}; a uri is text. Register the column with struct<uri: string, ...>"
        raise ReferenceSourceError(0, msg)
    encoded = fields["uri"].dictionary_encode()
    codes = encoded.indices.to_numpy(zero_copy_only=False)
    try:
        uris = uris_of(encoded.dictionary)
    except ReferenceDataError as error:
        error.row = int(np.flatnonzero(codes == error.row)[0])
        raise
    return ByteRanges(codes, uris, starts, lengths, stamps_of(array))


def _clamped_int64(name: str, values: pa.Array) -> NDArray[np.int64]:
    """A part of references as int64; what exceeds it becomes its largest value.

    Raises:
        ReferenceSourceError: it is no integer.
    """
    if not pa.types.is_integer(values.type):
        msg = (
            f"the reference's {name} is {cut(str(values.type))}; it is a whole number of bytes. "
            "Store it as int64, and register the column again"
        )
        raise ReferenceSourceError(0, msg)
    found = values.to_numpy(zero_copy_only=False)
    if found.dtype == np.uint64:
        found = np.minimum(found, np.uint64(np.iinfo(np.int64).max))
    numbers: NDArray[np.int64] = found.astype(np.int64)
    return numbers


def _ranges(array: pa.StructArray, reach: Reach, most_bytes: int | None) -> list[memoryview]:
    named = byte_ranges(array)
    starts = named.starts
    found: list[memoryview] = [memoryview(b"")] * len(array)
    objects: list[NamedObject] = []
    for code, uri in enumerate(named.uris):
        rows = np.flatnonzero(named.files == code)
        if len(rows) and (resolved := reach.object_of(uri, int(rows[0]))) is not None:
            ranges = zip(rows.tolist(), starts[rows].tolist(), named.lengths[rows].tolist(), strict=True)
            objects += [NamedObject(row, uri, resolved, start, length) for row, start, length in ranges]
        elif len(rows):
            ordered = rows[np.argsort(starts[rows], kind="stable")]
            with doing(f"file {cut(uri)}"):
                _read_ranges(uri, reach, ordered, most_bytes, named=named, found=found)
    for each, data in read_objects(objects, reach, most_bytes, named.stamps):
        found[each.row] = data
    return found


def _read_ranges(
    uri: str,
    reach: Reach,
    rows: NDArray[np.intp],
    most_bytes: int | None,
    *,
    named: ByteRanges,
    found: list[memoryview],
) -> None:
    """Fill ``found`` for the rows of one file, which are sorted by offset."""
    starts, lengths, stamps = named.starts, named.lengths, named.stamps
    handle, path, facts = reach.open(uri, int(rows[0]))
    try:
        if stamps is not None:
            seen = stat_of(facts)
            for row in rows.tolist():
                stamps.need_file(row, path, seen)
        size = facts.st_size
        ends = starts[rows] + lengths[rows]
        short = np.flatnonzero(ends > size)
        if len(short):
            row = int(rows[short[0]])
            raise too_short(row, path, size, int(starts[row]), int(lengths[row]))
        longest = int(rows[np.argmax(lengths[rows])])
        need_fewer(longest, path, int(lengths[longest]), most_bytes)
        for first, stop in _runs(starts[rows], ends):
            begin, end = int(starts[rows[first]]), int(ends[first:stop].max())
            try:
                data = memoryview(read_at(handle, end - begin, begin))
            except OSError as error:
                raise unreadable(int(rows[first]), path, error) from error
            for row in rows[first:stop].tolist():
                at = int(starts[row]) - begin
                found[row] = data[at : at + int(lengths[row])]
                if stamps is not None:
                    stamps.need_bytes(row, path, found[row])
    finally:
        os.close(handle)


def _runs(starts: NDArray[np.int64], ends: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Neighbours (sorted by start) that are read together, as slices."""
    runs: list[tuple[int, int]] = []
    first, reach = 0, int(ends[0])
    for i in range(1, len(starts)):
        far = int(starts[i]) > reach + GAP_BYTES or int(ends[i]) - int(starts[first]) > READ_BYTES
        if far:
            runs.append((first, i))
            first, reach = i, int(ends[i])
        else:
            reach = max(reach, int(ends[i]))
    return [*runs, (first, len(starts))]


def read_at(handle: int, count: int, offset: int) -> bytes:
    """Exactly ``count`` bytes of an open file; one call may return at most 2 GiB or stop at a signal.

    Raises:
        OSError: it cannot be read, or ends early.
    """
    found = exactly(handle, count, offset)
    if len(found) < count:
        msg = f"it ends {count - len(found)} bytes early"
        raise OSError(msg)
    return found


def too_short(row: int, path: str, size: int, offset: int, length: int) -> ReferenceSourceError:
    """Return the error for a range that reaches past the end of its file."""
    msg = (
        f"{cut(path)} has {size} bytes, the reference asks for {offset} + {length}. "
        "Restore the file, or register what it holds now"
    )
    return ReferenceSourceError(row, msg)


def payload(values: pa.Array, base: Reach | str, most_bytes: int | None = None) -> list[Any]:
    """Return the bytes that each row names.

    Args:
        values: P references, or lists of them.
        base: where relative paths start, and which files may be named.
        most_bytes: of one reference; None reads any.

    Returns:
        P values: bytes, or a list of bytes for a list of references. None where the row, or a reference of a list, is null.

    Raises:
        ReferenceDataError: see `reference.resolve`; ``row`` says which.
        ReferenceSourceError: likewise.
    """
    if is_list(values.type):
        flat, owners = flattened(values)
        with renumbered(owners):
            found = payload(flat, base, most_bytes)
        borders = np.searchsorted(owners, np.arange(len(values) + 1)).tolist()
        nulls = values.is_null().to_pylist()
        return [None if nulls[row] else found[borders[row] : borders[row + 1]] for row in range(len(values))]
    there = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
    out: list[Any] = [None] * len(values)
    if len(there):
        with renumbered(there):
            some = resolve(values if len(there) == len(values) else values.take(pa.array(there)), base, most_bytes)
        for row, data in zip(there.tolist(), some, strict=True):
            out[row] = bytes(data)
    return out


def flattened(values: pa.Array) -> tuple[pa.Array, NDArray[np.int64]]:
    """Return the references of a column of lists one after the other, and the row of each."""
    owners: NDArray[np.int64] = pc.list_parent_indices(values).to_numpy(zero_copy_only=False).astype(np.int64)
    return pc.list_flatten(values), owners
