"""Least-recently-used memory of a source: its open files, compared with what was registered, and decoded columns in bytes."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar, final

import pyarrow as pa

from spiral_stream.errors import SourceError, cut
from spiral_stream.sources.files.watch import Watch
from spiral_stream.sources.source import Known


class HeldFile(Protocol):
    """What is held of one file."""

    @property
    def path(self) -> str:
        """Where it lies."""

    @property
    def size_bytes(self) -> int:
        """Of the file when it was read."""

    @property
    def mtime_ns(self) -> int:
        """When it was changed."""

    @property
    def content_key(self) -> str:
        """Of its rows."""


File = TypeVar("File", bound=HeldFile)


@final
class HeldFiles(Generic[File]):
    """The files of one reader by their number. Thread-safe.

    Args:
        what: they are, for messages: ``"Parquet file"``.
        read: opens a file, or reads what is held of it; called for different files at the same time.
        most: how many are held; None holds all of them.
        known: what the source had when it was registered.
        check: refuses a file that does not go with the others.
    """

    def __init__(
        self,
        what: str,
        read: Callable[[int], File],
        most: int | None,
        known: Known | None,
        check: Callable[[int, File], None] = lambda _unit, _file: None,
    ) -> None:
        self._what, self._read, self._most, self._known, self._check = what, read, most, known, check
        self._files: OrderedDict[int, File] = OrderedDict()
        self._lock = threading.Lock()
        self._watch = Watch({})

    def file(self, unit: int) -> File:
        """Return a file; those used last are held.

        Raises:
            SourceError: it cannot be read, or is no longer what is known of it.
        """
        with self._lock:
            found = self._files.get(unit)
            if found is not None:
                self._files.move_to_end(unit)
                return found
        found = self._read(unit)
        if self._known is not None and found.content_key != self._known.keys[unit].as_py():
            msg = (
                f"{self._what} {cut(found.path)} changed since registration. Take the data as it is now with "
                "catalog.refresh(<name>), or restore it"
            )
            raise SourceError(msg)
        self._check(unit, found)
        self._watch.know(found.path, (found.size_bytes, found.mtime_ns))
        with self._lock:
            self._files[unit] = found
            while self._most is not None and len(self._files) > self._most:
                self._files.popitem(last=False)
        return found

    def need_unchanged(self, paths: Iterable[str]) -> None:
        """Refuse files that changed since they were read.

        Raises:
            SourceError: says which.
        """
        self._watch.need_unchanged(paths)

    def clear(self) -> None:
        """Hold none."""
        with self._lock:
            self._files.clear()


@final
class Recent:
    """Decoded columns by (file, row group, name), least recently used out first; bounded in bytes."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._held_bytes = 0
        self._columns: OrderedDict[tuple[int, int, str], pa.ChunkedArray] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: tuple[int, int, str]) -> pa.ChunkedArray | None:
        with self._lock:
            found = self._columns.get(key)
            if found is not None:
                self._columns.move_to_end(key)
            return found

    def put(self, key: tuple[int, int, str], column: pa.ChunkedArray) -> None:
        with self._lock:
            if key in self._columns:
                return
            self._columns[key] = column
            self._held_bytes += column.nbytes
            while self._held_bytes > self._limit_bytes and len(self._columns) > 1:
                _, oldest = self._columns.popitem(last=False)
                self._held_bytes -= oldest.nbytes

    def clear(self) -> None:
        with self._lock:
            self._columns.clear()
            self._held_bytes = 0
