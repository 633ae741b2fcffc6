"""An object as a file that libraries read by ``seek`` and ``read``: parts are fetched together before they are asked for.

Every answer is compared with the object that was opened, so no reader ever joins bytes of two.
"""

import io
from collections.abc import Iterable, Sequence
from typing import Final, final

from spiral_stream.errors import SourceError, cut
from spiral_stream.storage.opening import payload_store_of, store_of
from spiral_stream.storage.store import Facts, Get, Store, what_differs
from spiral_stream.storage.uri import printable

BLOCK_BYTES: Final = 8 << 20  # of one request for an object that is read from end to end
Part = tuple[int, memoryview]  # where it begins, and the bytes


def look(uri: str) -> Facts:
    """Look at an object.

    Raises:
        SourceError: it is not there, or the store failed.
    """
    store, key = store_of(uri)
    return store.stat(key)


def look_all(uris: Sequence[str]) -> list[Facts | SourceError]:
    """Look at objects together. One that cannot be looked at is an error in its place."""
    stores: dict[int, tuple[Store, list[int]]] = {}  # by the `id` of a store: places in ``uris``
    keys = []
    for at, uri in enumerate(uris):
        store, key = store_of(uri)
        keys.append(key)
        stores.setdefault(id(store), (store, []))[1].append(at)
    found: dict[int, Facts | SourceError] = {}
    for store, places in stores.values():
        for at, got in zip(places, store.read([Get(keys[at], 0, 0) for at in places]), strict=True):
            found[at] = got if isinstance(got, SourceError) else got.facts
    return [found[at] for at in range(len(uris))]


def open_object(uri: str, seen: Facts | None = None) -> io.BufferedReader:
    """Open an object that is read forward, in blocks.

    Args:
        uri: of the object.
        seen: what it is like, if that is known.

    Raises:
        SourceError: it is not there, or the store failed.
    """
    return io.BufferedReader(RemoteFile(uri, look(uri) if seen is None else seen), BLOCK_BYTES)


def read_parts(uri: str, opened: Facts, ranges: Iterable[tuple[int, int]]) -> list[Part]:
    """Read ranges (first byte, length) of an object together.

    Raises:
        SourceError: it cannot be read, or is not the object that was opened.
    """
    asked = [each for each in ranges if each[1]]
    store, key = payload_store_of(uri)
    parts: list[Part] = []
    gets = [Get(key, start, length, pinned=opened) for start, length in asked]
    for (start, _), got in zip(asked, store.read(gets), strict=True):
        if isinstance(got, SourceError):
            raise got
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

    def __init__(self, uri: str, opened: Facts, parts: Iterable[Part] = ()) -> None:
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
class RemoteBytes:
    """An open object for a library that reads places of it from threads of its own. Thread-safe.

    Args:
        uri: of the object.
        opened: what it is like.
    """

    def __init__(self, uri: str, opened: Facts) -> None:
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
            self.error = error
            raise
