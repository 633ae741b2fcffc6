"""What lies at a path or a URI, looked at, opened and read alike; an object as a file that libraries ``seek`` and ``read``.

The bytes of objects are fetched together, before they are asked for.
Every answer is compared with the object that was opened, so no reader ever joins bytes of two.
"""

import io
import os
from collections.abc import Iterable, Sequence
from typing import IO, Final, final

from spiral_stream.errors import SourceError, anew, cut
from spiral_stream.integrity.blocks import Mapped
from spiral_stream.storage.local import WindowedFile, file_fault
from spiral_stream.storage.open import FILES, payload_store_of, store_of
from spiral_stream.storage.store import BytesAt, Get, ObjectStat, Store, what_differs
from spiral_stream.storage.uri import printable

BLOCK_BYTES: Final = 8 << 20  # of one request for an object that is read from end to end
PART_BYTES: Final = 16 << 20  # of one request of several for all of an object
_FIRST_WINDOW: Final = 1 << 20  # bytes of the first request: a whole tar of small members, or several of 100 KB
_LEAST_WINDOW: Final = 1 << 16
_MOST_WINDOW: Final = 8 << 20
Part = tuple[int, memoryview]  # where it begins, and the bytes


def look(uri: str) -> ObjectStat:
    """Look at a file or an object.

    Raises:
        SourceError: it is not there, or the store failed.
    """
    store, key = store_of(uri)
    return store.stat(key)


def look_all(uris: Sequence[str]) -> list[ObjectStat | SourceError]:
    """Look at objects together. One that cannot be looked at is an error in its place."""
    if all(uri.startswith("/") for uri in uris):
        return FILES.look(uris)
    stores: dict[int, tuple[Store, list[int]]] = {}  # by the `id` of a store: places in ``uris``
    keys = []
    for at, uri in enumerate(uris):
        store, key = store_of(uri)
        keys.append(key)
        stores.setdefault(id(store), (store, []))[1].append(at)
    found: dict[int, ObjectStat | SourceError] = {}
    for store, indices in stores.values():
        found |= zip(indices, store.look([keys[at] for at in indices]), strict=True)
    return [found[at] for at in range(len(uris))]


def opened_forward(uri: str, seen: ObjectStat | None = None) -> IO[bytes]:
    """Open a file, as it is now, or an object, which is read in blocks.

    Args:
        uri: of the object, or a path.
        seen: what an object is like, if that is known.

    Raises:
        SourceError: it is not there, is no regular file, or the store failed.
    """
    if maps(uri):
        return os.fdopen(FILES.opened(uri)[0], "rb", buffering=0)
    return io.BufferedReader(RemoteFile(uri, look(uri) if seen is None else seen), BLOCK_BYTES)


def opened_at(uri: str, seen: ObjectStat | None = None) -> BytesAt:
    """Open a file, as it is now, or an object, of which some bytes here and there are read.

    Args:
        uri: of the object, or a path.
        seen: what an object is like, if that is known.

    Raises:
        SourceError: it is not there, is no regular file, or the store failed.
    """
    return WindowedFile(FILES, uri) if maps(uri) else WindowedObject(uri, look(uri) if seen is None else seen)


def maps(uri: str) -> bool:
    """Whether what lies there is a file of this machine, which can be mapped, linked and locked."""
    return store_of(uri)[0].MAPS


def read_parts(uri: str, opened: ObjectStat, ranges: Iterable[tuple[int, int]]) -> list[Part]:
    """Read ranges (first byte, length) of an object together.

    Raises:
        SourceError: it cannot be read, or is not the object that was opened.
    """
    requests = [each for each in ranges if each[1]]
    store, key = payload_store_of(uri)
    found = store.read([Get(key, start, length, pinned=opened) for start, length in requests])
    parts = []
    for (start, _), got in zip(requests, found, strict=True):
        if isinstance(got, SourceError):
            raise anew(got)
        if (got.facts.size, got.facts.mark) != (opened.size, opened.mark):
            msg = (
                f"{cut(printable(uri))} changed while it is being read: "
                f"{what_differs(opened.size, got.facts.size, got.facts.etag)}. "
                "Restore the object, or take the data as it is now with catalog.refresh(<name>)"
            )
            raise SourceError(msg)
        assert got.data is not None
        parts.append((start, got.data))
    return parts


@final
class RemoteFile(io.RawIOBase):
    """An open object.

    Args:
        uri: of the object.
        opened: what it is like.
        parts: bytes of it that are there already.
    """

    def __init__(self, uri: str, opened: ObjectStat, parts: Iterable[Part] = ()) -> None:
        super().__init__()
        self._uri, self._facts, self._parts, self._at = uri, opened, list(parts), 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._facts.size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._facts.size - self._at)
        count = left if size < 0 else min(size, left)
        found = self._held(self._at, count)
        if found is None:
            [(_, found)] = read_parts(self._uri, self._facts, [(self._at, count)])
        self._at += count
        return bytes(found)

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # any buffer that can be written
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def _held(self, start: int, count: int) -> memoryview | None:
        if not count:
            return memoryview(b"")
        for first, data in self._parts:
            if first <= start and start + count <= first + len(data):
                return data[start - first : start - first + count]
        return None


@final
class WindowedObject(BytesAt):
    """An object of which some bytes here and there are read, from its begin to its end. Not thread-safe.

    A request brings more than was asked for: four times what the last one brought while places lie near each other, since a
    round trip costs as much time as some megabytes; a quarter of it where many bytes are passed over.

    Args:
        uri: of the object.
        opened: what it is like.
    """

    def __init__(self, uri: str, opened: ObjectStat) -> None:
        self.path, self.size, self._facts = uri, opened.size, opened
        self._window, self._begin, self._ask = memoryview(b""), 0, _FIRST_WINDOW

    def at(self, offset: int, count: int) -> bytes:
        count = max(0, min(count, self._facts.size - offset))
        first = offset - self._begin
        if count and (first < 0 or first + count > len(self._window)):
            self._fetch(offset, count)
            first = 0
        return bytes(self._window[first : first + count]) if count else b""

    def close(self) -> None:
        self._window = memoryview(b"")

    def _fetch(self, offset: int, count: int) -> None:
        if self._window:
            passed_over = offset - self._begin - len(self._window)
            ask = self._ask * 4 if passed_over < _FIRST_WINDOW else self._ask // 4
            self._ask = min(max(ask, _LEAST_WINDOW), _MOST_WINDOW)
        size = min(max(count, self._ask), self._facts.size - offset)
        [(self._begin, self._window)] = read_parts(self.path, self._facts, [(offset, size)])


@final
class RemoteBytes:
    """An open object for a library that reads places of it from threads of its own. Thread-safe.

    Args:
        uri: of the object.
        opened: what it is like.
    """

    def __init__(self, uri: str, opened: ObjectStat) -> None:
        self._uri, self._facts = uri, opened
        self.error: SourceError | None = None  # that was met last; the library puts it in words of its own

    def size(self) -> int:
        """Return how many bytes it has."""
        return self._facts.size

    def read_at(self, offset: int, length: int) -> bytes:
        """Read bytes.

        Raises:
            SourceError: it cannot be read, or is not the object that was opened.
        """
        try:
            return b"".join(data for _, data in read_parts(self._uri, self._facts, [(offset, length)]))
        except SourceError as error:
            self.error = anew(error)
            raise


def object_bytes(uri: str, facts: ObjectStat) -> memoryview:
    """Return all bytes of a file or an object, whose parts are asked for together.

    Raises:
        SourceError: it cannot be read, or changed.
    """
    ranges = [(start, min(PART_BYTES, facts.size - start)) for start in range(0, facts.size, PART_BYTES)]
    parts = [data for _, data in read_parts(uri, facts, ranges)]
    return parts[0] if len(parts) == 1 else memoryview(b"".join(parts))


def mapped(uri: str, seen: ObjectStat) -> memoryview:
    """Return all bytes of a file, mapped, or of an object, fetched. Of a file `need_sound` says whether it became shorter.

    Raises:
        SourceError: it cannot be read, or is an object that changed.
    """
    if not maps(uri):
        return object_bytes(uri, seen)
    try:
        return memoryview(Mapped(uri))
    except (OSError, ValueError) as error:
        raise file_fault(uri, error) from error
