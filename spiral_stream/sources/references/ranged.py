"""Read a part of the bytes that a reference names, without reading the rest.

A video of a gigabyte is named by one reference, and a clip of it needs a few hundred
kilobytes. `locate` finds the file and the size of each reference (one ``stat`` a
distinct file); `Located.read` reads a range of it. Files are opened at the first read,
at most `OPEN_FILES` of one call stay open, and one that is dropped closes when the last
thread that reads it is done. A read costs about 3 us over its bytes. Objects of stores are read by range (`object_part`).
"""

import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, final

import pyarrow as pa
import xxhash

from spiral_stream.errors import SourceError, cut, renumbered
from spiral_stream.sources.references.objects import ObjectPart, object_part
from spiral_stream.sources.references.policy import Reach, reach_of
from spiral_stream.sources.references.resolve import (
    Form,
    byte_ranges,
    form_of,
    held_bytes,
    inline_views,
    read_at,
    too_short,
    uris_of,
)
from spiral_stream.sources.references.stamps import Stamps
from spiral_stream.storage.uri import printable

OPEN_FILES: Final = 8  # of one call of `locate`
STAMP_BYTES: Final = 4096  # at either end, which the stamp covers


@final
class _Handle:
    """One open file; closed with its last reference, so never while a thread reads it."""

    def __init__(self, reach: Reach, uri: str) -> None:
        self.number = -1
        self.number, _, _ = reach.open(uri, 0)

    def __del__(self, _ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not _ending() and self.number >= 0:
            os.close(self.number)


@final
class _Files:
    """The few files of one call that are open. Thread-safe."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self._lock = threading.Lock()
        self._open: OrderedDict[str, _Handle] = OrderedDict()

    def read(self, uri: str, offset: int, length: int) -> bytes:
        with self._lock:
            handle = self._open.get(uri)
        if handle is None:
            handle = _Handle(self._reach, uri)  # outside the lock: a slow folder delays only who asks for it
        with self._lock:
            self._open[uri] = handle
            self._open.move_to_end(uri)
            dropped = self._open.popitem(last=False)[1] if len(self._open) > OPEN_FILES else None
        del dropped  # closed here, if nobody reads it
        return read_at(handle.number, length, offset)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Located:
    """The bytes that one reference names, readable in part. Thread-safe."""

    name: str  # for messages: a path, path[offset + length], or "inline bytes"
    size: int  # bytes
    path: str | None = None  # of an object its URI; None of inline bytes
    offset: int = 0  # in the file
    _uri: str = ""  # as the reference spells it
    _data: memoryview = field(default=memoryview(b""), repr=False)
    _files: _Files | None = field(default=None, repr=False)
    _object: ObjectPart | None = field(default=None, repr=False)

    @property
    def is_remote(self) -> bool:
        """Whether reading it waits for a network."""
        return self._object is not None

    def is_gone(self) -> bool:
        """Whether the object that it lies in is no longer there; asks the store."""
        return self._object is not None and self._object.is_gone()

    def read_all(self, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        """Read ranges (offset, length), each as `read` does; those of an object are asked for together.

        Raises:
            SourceError: see `read`.
        """
        if self._object is None:
            return [self.read(*each) for each in ranges]
        for offset, length in ranges:
            self._need_inside(offset, length)
        return self._object.read(ranges)

    def read(self, offset: int, length: int) -> memoryview:
        """Exactly ``length`` bytes from ``offset``; of inline bytes a view, not a copy.

        Raises:
            SourceError: the bytes end before, or cannot be read.
        """
        self._need_inside(offset, length)
        if self._object is not None:
            return self._object.read([(offset, length)])[0]
        if self.path is None or self._files is None:
            return self._data[offset : offset + length]
        try:
            return memoryview(self._files.read(self._uri, self.offset + offset, length))
        except OSError as error:
            msg = f"{self.name}: {error.strerror or error}. " + _RESTORE
            raise SourceError(msg) from error

    def _need_inside(self, offset: int, length: int) -> None:
        if offset < 0 or length < 0 or offset + length > self.size:
            msg = f"{self.name} has {self.size} bytes, {offset} + {length} were asked for. " + _RESTORE
            raise SourceError(msg)

    def stamp(self) -> int:
        """64 bits of the size and of the bytes at both ends: tells a changed file from the one that was there.

        The same for every copy of the bytes on this machine. A change in the middle alone goes unseen. The stamp of an
        object is made of what its store says of it, and costs no request.

        Raises:
            SourceError: it cannot be read.
        """
        if self._object is not None:
            return self._object.stamp()
        edge = min(STAMP_BYTES, self.size)
        seen = xxhash.xxh3_64(self.size.to_bytes(8, "little"))
        seen.update(self.read(0, edge))
        seen.update(self.read(self.size - edge, edge))
        return seen.intdigest()

    @property
    def key(self) -> tuple[str, int, int]:
        """The file (or, inline, all its bytes), the offset in it, and the length. Equal for the same bytes."""
        named = self.path if self.path is not None else xxhash.xxh3_128_hexdigest(self._data)
        return named, self.offset, self.size


_RESTORE: Final = "Restore the file, or register what it holds now"


def locate(values: pa.Array | pa.ChunkedArray, base: Reach | str) -> list[Located]:
    """Find where the bytes of each reference lie, in order. Reads none of them.

    Args:
        values: P references: binary or large_binary (inline), utf8 (a path or
            ``file://`` URI), or struct<uri, offset, length> (a byte range).
        base: where relative paths start, and which files may be named.

    Raises:
        ReferenceDataError: a null, a NUL or a negative range; ``row`` says which.
        ReferenceSourceError: a missing file, one that ends too early, may not be read, or changed since registration.
    """
    chunks = values.chunks if isinstance(values, pa.ChunkedArray) else [values]
    locations = _Locations(reach_of(base))
    found: list[Located] = []
    for chunk in chunks:
        with renumbered(range(len(found), len(found) + max(1, len(chunk)))):
            found += locations.of_chunk(chunk)
    return found


@final
class _Locations:
    """The files of one call, each found once."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self._files = _Files(reach)
        self._sizes: dict[str, tuple[str, int]] = {}

    def of_chunk(self, array: pa.Array) -> list[Located]:
        form = form_of(array)
        if form is Form.INLINE:
            return [Located("inline bytes", len(view), _data=view) for view in inline_views(array)]
        if form is Form.FILE:
            return [self._of_all(uri, row) for row, uri in enumerate(uris_of(array))]
        if form is Form.MEDIA:
            views, paths, left = held_bytes(array)
            found = [Located("inline bytes", len(view), _data=view) for view in views]
            with renumbered(left):
                for row, (uri_number, uri) in enumerate(zip(left.tolist(), uris_of(paths), strict=True)):
                    found[uri_number] = self._of_all(uri, row)
            return found
        named = byte_ranges(array)
        parts = zip(named.files.tolist(), named.starts.tolist(), named.lengths.tolist(), strict=True)
        return [
            self._part(named.uris[code], start, length, row, named.stamps)
            for row, (code, start, length) in enumerate(parts)
        ]

    def _of_all(self, uri: str, row: int) -> Located:
        if (named := self._reach.object_of(uri, row)) is not None:
            return _of_object(object_part(self._reach, uri, named, row), printable(named))
        path, size = self._found(uri, row)
        return Located(cut(path), size, path, 0, uri, _files=self._files)

    def _part(self, uri: str, start: int, length: int, row: int, stamps: Stamps | None) -> Located:
        if (named := self._reach.object_of(uri, row)) is not None:
            part = object_part(self._reach, uri, named, row, (start, length), stamps)
            if start + length > part.object_size:
                raise too_short(row, printable(named), part.object_size, start, length)
            return _of_object(part, f"{printable(named)}[{start} + {length}]")
        path, size = self._found(uri, row)
        if stamps is not None:  # not the digest: a clip reads a part of the bytes
            stamps.need_file(row, *self._reach.stat(uri, row))
        if start + length > size:
            raise too_short(row, path, size, start, length)
        return Located(f"{cut(path)}[{start} + {length}]", length, path, start, uri, _files=self._files)

    def _found(self, uri: str, row: int) -> tuple[str, int]:
        if uri not in self._sizes:
            path, facts = self._reach.stat(uri, row)
            self._sizes[uri] = path, facts.size
        return self._sizes[uri]


def _of_object(part: ObjectPart, name: str) -> Located:
    return Located(cut(name), part.size, printable(part.named), part.start, part.uri, _object=part)
