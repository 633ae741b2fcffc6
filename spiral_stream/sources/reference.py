"""Which bytes a semantic reference names: inline, a file, or a byte range of a file.

Works on a column of references at a time: each distinct file is opened once a
call, adjacent byte ranges are read together, inline bytes are views on the Arrow
buffers without a copy. The loops are over references, at about 1 us each inline
and one ``open`` a distinct file otherwise.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import Final, final
from urllib.parse import unquote, urlsplit

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.errors import DataError, SourceError
from spiral_stream.sources.paths import is_remote

GAP_BYTES: Final = 4096  # ranges this near are read in one call: a page more costs less than a call
READ_BYTES: Final = 32 << 20  # most bytes of one coalesced read


class ReferenceDataError(DataError):
    """A reference whose own value is wrong; ``row`` is its place in the call."""

    def __init__(self, row: int, message: str) -> None:
        super().__init__(message)
        self.row = row


class ReferenceSourceError(SourceError):
    """A reference whose file cannot be read; ``row`` is its place in the call."""

    def __init__(self, row: int, message: str) -> None:
        super().__init__(message)
        self.row = row


def resolve(values: pa.Array | pa.ChunkedArray, base: str) -> list[memoryview]:
    """The bytes that each reference names, in order.

    Args:
        values: P references: binary or large_binary (inline), utf8 (a path or
            ``file://`` URI), or struct<uri, offset, length> (a byte range).
        base: folder that relative paths start from.

    Raises:
        ReferenceDataError: a null or a negative range; ``row`` says which.
        ReferenceSourceError: a missing file or one that ends too early.
    """
    chunks = values.chunks if isinstance(values, pa.ChunkedArray) else [values]
    found: list[memoryview] = []
    for chunk in chunks:
        try:
            found += _resolve_chunk(chunk, base)
        except (ReferenceDataError, ReferenceSourceError) as error:
            error.row += len(found)
            raise
    return found


class Form(Enum):
    """How a column of references names bytes."""

    INLINE = "binary"
    FILE = "utf8"
    RANGE = "struct<uri, offset, length>"


def form_of(array: pa.Array) -> Form:
    """How the references of one chunk name bytes.

    Raises:
        ReferenceDataError: one of them is null.
        ReferenceSourceError: the type names no bytes.
    """
    kind = array.type
    if array.null_count:
        row = int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])
        raise ReferenceDataError(row, "the reference is null. Filter the row out (~col(...).is_null()), or fill it in")
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return Form.INLINE
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return Form.FILE
    if pa.types.is_struct(kind) and {"uri", "offset", "length"} <= {field.name for field in kind}:
        return Form.RANGE
    msg = f"a reference of type {kind} names no bytes; it is binary, utf8 or struct<uri, offset, length>"
    raise ReferenceSourceError(0, msg)


def _resolve_chunk(array: pa.Array, base: str) -> list[memoryview]:
    form = form_of(array)
    if form is Form.INLINE:
        return inline_views(array)
    return _files(array.to_pylist(), base) if form is Form.FILE else _ranges(array, base)


def inline_views(array: pa.Array) -> list[memoryview]:
    """The bytes of inline references, views on the Arrow buffers."""
    width = np.int64 if pa.types.is_large_binary(array.type) else np.int32
    _, offsets_buffer, data = array.buffers()
    offsets = np.frombuffer(offsets_buffer, dtype=width)[array.offset : array.offset + len(array) + 1].tolist()
    view = memoryview(b"") if data is None else memoryview(data).cast("B").toreadonly()
    return [view[start:stop] for start, stop in pairwise(offsets)]


def _files(uris: Sequence[str], base: str) -> list[memoryview]:
    read: dict[str, memoryview] = {}
    for row, uri in enumerate(uris):
        if uri not in read:
            path = path_of(uri, base, row)
            try:
                with open(path, "rb", buffering=0) as handle:  # noqa: PTH123
                    read[uri] = memoryview(handle.readall())
            except OSError as error:
                raise unreadable(row, path, error) from error
    return [read[uri] for uri in uris]


@final
@dataclass(frozen=True, slots=True, eq=False)
class ByteRanges:
    """P byte ranges of files."""

    files: NDArray[np.int32]  # which of the uris
    uris: list[str]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]


def byte_ranges(array: pa.StructArray) -> ByteRanges:
    """The ranges that references of struct<uri, offset, length> name.

    Raises:
        ReferenceDataError: a part is null, or a range negative.
    """
    fields = dict(zip((field.name for field in array.type), array.flatten(), strict=True))
    for name in ("uri", "offset", "length"):
        if fields[name].null_count:
            row = int(np.flatnonzero(fields[name].is_null().to_numpy(zero_copy_only=False))[0])
            raise ReferenceDataError(row, f"the reference's {name} is null. Filter the row out, or fill it in")
    starts = fields["offset"].cast(pa.int64()).to_numpy(zero_copy_only=False)
    lengths = fields["length"].cast(pa.int64()).to_numpy(zero_copy_only=False)
    wrong = np.flatnonzero((starts < 0) | (lengths < 0))
    if len(wrong):
        row = int(wrong[0])
        msg = f"the reference's byte range is {starts[row]} + {lengths[row]}; both are at least 0"
        raise ReferenceDataError(row, msg)
    encoded = fields["uri"].dictionary_encode()
    return ByteRanges(encoded.indices.to_numpy(zero_copy_only=False), encoded.dictionary.to_pylist(), starts, lengths)


def _ranges(array: pa.StructArray, base: str) -> list[memoryview]:
    named = byte_ranges(array)
    starts, lengths = named.starts, named.lengths
    found: list[memoryview] = [memoryview(b"")] * len(array)
    for code, uri in enumerate(named.uris):
        rows = np.flatnonzero(named.files == code)
        _read_ranges(
            uri, base, rows[np.argsort(starts[rows], kind="stable")], starts=starts, lengths=lengths, found=found
        )
    return found


def _read_ranges(
    uri: str,
    base: str,
    rows: NDArray[np.intp],
    *,
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    found: list[memoryview],
) -> None:
    """Fill ``found`` for the rows of one file, which are sorted by offset."""
    path = path_of(uri, base, int(rows[0]))
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    except OSError as error:
        raise unreadable(int(rows[0]), path, error) from error
    try:
        size = os.fstat(handle).st_size
        ends = starts[rows] + lengths[rows]
        short = np.flatnonzero(ends > size)
        if len(short):
            row = int(rows[short[0]])
            raise too_short(row, path, size, int(starts[row]), int(lengths[row]))
        for first, stop in _runs(starts[rows], ends):
            begin, end = int(starts[rows[first]]), int(ends[first:stop].max())
            try:
                data = memoryview(read_at(handle, end - begin, begin))
            except OSError as error:
                raise unreadable(int(rows[first]), path, error) from error
            for row in rows[first:stop].tolist():
                at = int(starts[row]) - begin
                found[row] = data[at : at + int(lengths[row])]
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
    parts, got = [], 0
    while got < count:
        part = os.pread(handle, count - got, offset + got)
        if not part:
            msg = f"it ends {count - got} bytes early"
            raise OSError(msg)
        parts.append(part)
        got += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def path_of(uri: str, base: str, row: int) -> str:
    """The file that a reference names.

    Raises:
        ReferenceSourceError: it lies on an object store.
    """
    if is_remote(uri):
        msg = f"{uri} lies on an object store, which references cannot name yet. Copy it, or register local paths"
        raise ReferenceSourceError(row, msg)
    path = unquote(urlsplit(uri).path) if uri.startswith("file://") else os.path.expanduser(uri)  # noqa: PTH111
    return os.path.join(base, path)  # noqa: PTH118


def unreadable(row: int, path: str, error: OSError | ValueError) -> ReferenceSourceError:
    """The error for a file that cannot be opened or read."""
    reason = getattr(error, "strerror", None) or str(error)
    return ReferenceSourceError(row, f"{path}: {reason}. Restore the file, or filter its rows out")


def too_short(row: int, path: str, size: int, offset: int, length: int) -> ReferenceSourceError:
    """The error for a range that reaches past the end of its file."""
    msg = (
        f"{path} has {size} bytes, the reference asks for {offset} + {length}. "
        "Restore the file, or register what it holds now"
    )
    return ReferenceSourceError(row, msg)
