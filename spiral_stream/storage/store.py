"""The interface of stores: look at objects, read ranges of them, list, put under a condition, delete.

Conditions make stores safe for several writers without a lock: `put` with ``absent`` lets one of them make an object, with
``unchanged`` the one who read what is there last. Both say by their value who won; nothing relies on a rename.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self, final

import xxhash

from spiral_stream.errors import SourceError, anew

Buffer = bytes | bytearray | memoryview


@final
@dataclass(frozen=True, slots=True)
class ObjectStat:
    """One object at one time."""

    size: int
    etag: str | None = None
    version: str | None = None
    modified_ns: int = 0
    marked: int | None = None  # its mark, of an object of which a pin is all that is known
    inode: tuple[int, int] | None = None  # of a file of this machine: its device, and its number there

    @property
    def mark(self) -> int:
        """64 bits that differ for another object of the same size: of its etag, or else its time; 0 if nothing says."""
        if self.marked is not None:
            return self.marked
        return xxhash.xxh3_64_intdigest(self.etag.encode()) if self.etag else self.modified_ns


@final
@dataclass(frozen=True, slots=True)
class Get:
    """Bytes that are asked for."""

    key: str
    start: int = 0
    length: int | None = None  # None reads to the end
    most_bytes: int | None = None  # a longer object is not read; its facts say why
    pinned: ObjectStat | None = None  # what the object is to be like: its size and its mark


@final
@dataclass(frozen=True, slots=True, eq=False)
class Got:
    """Bytes that came, and the object that they come from."""

    data: memoryview | None  # None where they are more than was asked for at most
    facts: ObjectStat


class BytesAt(ABC):
    """The bytes of something that is open, read from its begin to its end with gaps. Not thread-safe; a context manager.

    Attributes:
        path: where it lies: a path, or a URI.
        size: bytes; None where nothing says it.
    """

    path: str
    size: int | None = None

    @abstractmethod
    def at(self, offset: int, count: int) -> bytes:
        """Read bytes; fewer where they end.

        Args:
            offset: of the first; what is compressed is read forward only.
            count: most bytes to return.

        Raises:
            SourceError: they cannot be read, are damaged, or are not those that were opened.
            OSError: the file cannot be read.
        """

    @abstractmethod
    def close(self) -> None:
        """Close it, and forget what was read."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self.close()


class Store(ABC):
    """One bucket, container, host, or this machine's files. Thread-safe.

    Attributes:
        MAPS: whether its keys are paths of this machine: files that can be mapped, linked and locked.
    """

    MAPS: ClassVar[bool] = False

    @abstractmethod
    def stat(self, key: str) -> ObjectStat:
        """Look at an object.

        Raises:
            NotThereError: there is none.
            SourceError: the store failed.
        """

    def look(self, keys: Sequence[str]) -> list[ObjectStat | SourceError]:
        """Look at objects together; one that cannot be looked at is an error in its place."""
        return [
            got if isinstance(got, SourceError) else got.facts for got in self.read([Get(key, 0, 0) for key in keys])
        ]

    @abstractmethod
    def read(self, wanted: Sequence[Get]) -> list[Got | SourceError]:
        """Read bytes, in the order asked, together; neighbours of one object in one request.

        Bytes that could not be read are an error in their place, so that one bad object spoils nothing else.
        """

    @abstractmethod
    def list(self, prefix: str, ending: str = "") -> Iterator[tuple[str, ObjectStat]]:
        """Yield the keys below a prefix that ends at a slash, or is empty, and what each is like; in no order.

        Args:
            prefix: of the keys.
            ending: of the keys; others are passed over.

        Raises:
            SourceError: the store failed.
        """

    @abstractmethod
    def put(
        self, key: str, data: Buffer, *, absent: bool = False, unchanged: ObjectStat | None = None
    ) -> ObjectStat | None:
        """Write an object whole.

        Args:
            key: where.
            data: its bytes.
            absent: only where there is none.
            unchanged: only where that object still is.

        Returns:
            what it is like now; None if the condition does not hold, and nothing was written.

        Raises:
            SourceError: the store failed; whether it was written is then unknown.
        """

    def put_file(self, key: str, path: Path) -> None:
        """Write an object whole from a file of this machine, in several parts where it is large, whatever was there.

        Raises:
            SourceError: the store failed; whether it was written is then unknown.
            OSError: the file cannot be read.
        """
        self.put(key, path.read_bytes())

    @abstractmethod
    def delete(self, key: str) -> None:
        """Remove an object; again does nothing.

        Raises:
            SourceError: the store failed.
        """

    def get(self, key: str, start: int = 0, length: int | None = None) -> Got:
        """Read bytes of one object.

        Raises:
            NotThereError: there is none.
            SourceError: the store failed.
        """
        [found] = self.read([Get(key, start, length)])
        if isinstance(found, SourceError):
            raise anew(found)
        return found


def what_differs(size: int, now: int, etag: str | None) -> str:
    """Say how an object differs from the one that was there.

    Args:
        size: of the former one.
        now: of the one that is there.
        etag: of the one that is there.
    """
    if size != now:
        return f"it had {size:,} bytes, now {now:,}"
    return f"it has another etag ({etag})" if etag else "it has another time"
