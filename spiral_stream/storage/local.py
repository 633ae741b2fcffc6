"""Stores on this machine: files of a folder, and whole stores in memory.

A file is read by ``pread``: 3 us, where the client of object stores takes 70. A condition is kept by a lock of the kernel
on the folder, which is held for as long as one small file takes to write.
"""

import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar, Final, final

from spiral_stream.errors import SourceError, anew, cut
from spiral_stream.integrity.locks import DEADLINE_S, turn
from spiral_stream.integrity.one_look import look
from spiral_stream.integrity.publish import write_file
from spiral_stream.integrity.regular_files import need_file, open_file
from spiral_stream.storage.faults import NotThereError
from spiral_stream.storage.store import Buffer, BytesAt, Get, Got, ObjectStat, Store

_WINDOW: Final = 4096  # bytes of one read: a header, a small member, and the header after it


@final
class Files(Store):
    """The regular files of this machine; keys are paths. What is no such file cannot be looked at or read."""

    MAPS: ClassVar[bool] = True

    def stat(self, key: str) -> ObjectStat:
        try:
            found = os.stat(key)  # noqa: PTH116
            need_file(key, found)
        except (OSError, ValueError) as error:
            raise file_fault(key, error) from error
        return stat_of(found)

    def look(self, keys: Sequence[str]) -> list[ObjectStat | SourceError]:
        found: list[ObjectStat | SourceError] = []
        for key in keys:
            try:
                found.append(self.stat(key))
            except SourceError as error:
                found.append(anew(error))
        return found

    def opened(self, key: str) -> tuple[int, os.stat_result]:
        """Open a file: its descriptor, which the caller closes, and what it is like.

        Raises:
            NotThereError: there is none.
            SourceError: it cannot be opened, or is no regular file.
        """
        try:
            return open_file(key)
        except (OSError, ValueError) as error:
            raise file_fault(key, error) from error

    def read(self, wanted: Sequence[Get]) -> list[Got | SourceError]:
        return [self._read(each) for each in wanted]

    def _read(self, get: Get) -> Got | SourceError:
        try:
            handle, found = open_file(get.key)
            try:
                facts = stat_of(found)
                length = max(0, facts.size - get.start) if get.length is None else get.length
                if get.most_bytes is not None and length > get.most_bytes:
                    return Got(None, facts)
                data = memoryview(exactly(handle, length, get.start))
            finally:
                os.close(handle)
        except (OSError, ValueError) as error:
            return file_fault(get.key, error)
        if len(data) < length:
            return too_short(get.key, facts.size, get.start, length)
        return Got(data, facts)

    def list(self, prefix: str, ending: str = "") -> Iterator[tuple[str, ObjectStat]]:
        """As of any store. What is no file, or a link that leads to none, is refused where its ending was asked for."""
        for folder, _, names in os.walk(prefix, onerror=_need_listed):
            for name in (each for each in names if each.endswith(ending)):
                path = os.path.join(folder, name)  # noqa: PTH118
                try:
                    found = os.stat(path)  # noqa: PTH116
                    need_file(path, found)
                except OSError as error:
                    if isinstance(error, PermissionError) or (ending and os.path.lexists(path)):
                        raise file_fault(path, error) from error
                else:
                    yield path, stat_of(found)

    def put(
        self, key: str, data: Buffer, *, absent: bool = False, unchanged: ObjectStat | None = None
    ) -> ObjectStat | None:
        path = Path(key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with turn(path.parent, DEADLINE_S):
                found = look(path)
                there = None if found is None else stat_of(found)
                if (absent and there is not None) or (unchanged is not None and there != unchanged):
                    return None
                write_file(path, bytes(data))
                return stat_of(path.stat())
        except OSError as error:
            raise file_fault(key, error) from error

    def delete(self, key: str) -> None:
        try:
            Path(key).unlink(missing_ok=True)
        except OSError as error:
            raise file_fault(key, error) from error


@final
class Memory(Store):
    """Objects in the memory of this process, for examples and tests."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._objects: dict[str, tuple[bytes, ObjectStat]] = {}
        self._count = 0
        self._lock = threading.Lock()

    def stat(self, key: str) -> ObjectStat:
        return self._found(key)[1]

    def _found(self, key: str) -> tuple[bytes, ObjectStat]:
        with self._lock:
            if key not in self._objects:
                msg = f"{cut(self._root)}/{cut(key)}: there is no such object. Correct the URI, or put the object there"
                raise NotThereError(msg)
            return self._objects[key]

    def read(self, wanted: Sequence[Get]) -> list[Got | SourceError]:
        return [self._read(each) for each in wanted]

    def _read(self, get: Get) -> Got | SourceError:
        try:
            data, facts = self._found(get.key)
        except SourceError as error:
            return anew(error)
        length = max(0, facts.size - get.start) if get.length is None else get.length
        if get.most_bytes is not None and length > get.most_bytes:
            return Got(None, facts)
        if get.start + length > facts.size:
            return too_short(f"{self._root}/{get.key}", facts.size, get.start, length)
        return Got(memoryview(data)[get.start : get.start + length], facts)

    def list(self, prefix: str, ending: str = "") -> Iterator[tuple[str, ObjectStat]]:
        with self._lock:
            found = [
                (key, facts)
                for key, (_, facts) in self._objects.items()
                if key.startswith(prefix) and key.endswith(ending)
            ]
        yield from found

    def put(
        self, key: str, data: Buffer, *, absent: bool = False, unchanged: ObjectStat | None = None
    ) -> ObjectStat | None:
        payload = bytes(data)
        with self._lock:
            there = self._objects.get(key)
            if (absent and there is not None) or (unchanged is not None and (there is None or there[1] != unchanged)):
                return None
            self._count += 1
            facts = ObjectStat(len(payload), f'"{self._count}"')
            self._objects[key] = payload, facts
            return facts

    def delete(self, key: str) -> None:
        with self._lock:
            self._objects.pop(key, None)


def too_short(name: str, size: int, start: int, length: int) -> SourceError:
    """Return the error for a range that reaches past the end."""
    msg = f"{cut(name)} has {size:,} bytes, {start:,} + {length:,} were asked for. Restore it, or register what it holds now"
    return SourceError(msg)


def stat_of(found: os.stat_result) -> ObjectStat:
    """Return what a file is like; its mark is its time."""
    return ObjectStat(found.st_size, modified_ns=found.st_mtime_ns, inode=(found.st_dev, found.st_ino))


def _need_listed(error: OSError) -> None:
    """Refuse a folder that cannot be listed; one that was removed meanwhile holds nothing."""
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise file_fault(error.filename, error) from error


def file_fault(key: str, error: OSError | ValueError) -> SourceError:
    """Return the error for a file that cannot be looked at, opened or read."""
    said = error.strerror if isinstance(error, OSError) else str(error)
    is_gone = isinstance(error, FileNotFoundError | NotADirectoryError)
    msg = f"{cut(key)}: {said}. Restore it, check its rights, or correct the path"
    return NotThereError(msg) if is_gone else SourceError(msg)


@final
class WindowedFile(BytesAt):
    """A file of which some bytes here and there are read: a page at a time, without the system's read-ahead.

    Raises:
        NotThereError: there is none.
        SourceError: it cannot be opened, or is no regular file.
    """

    def __init__(self, files: Files, path: str) -> None:
        self.path = path
        self._window, self._begin = b"", 0
        self._file, facts = files.opened(path)
        self.size = facts.st_size
        os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_RANDOM)  # read-ahead would read what is passed over

    def at(self, offset: int, count: int) -> bytes:
        first = offset - self._begin
        if first >= 0 and first + count <= len(self._window):
            return self._window[first : first + count]
        if count > _WINDOW:
            return exactly(self._file, count, offset)
        self._window, self._begin = os.pread(self._file, _WINDOW, offset), offset
        if len(self._window) < count:  # a signal, or the end
            self._window = exactly(self._file, count, offset)
        return self._window[:count]

    def close(self) -> None:
        os.close(self._file)


def exactly(handle: int, count: int, offset: int) -> bytes:
    """Read bytes of an open file; fewer where it ends."""
    parts, got = [], 0
    while got < count and (part := os.pread(handle, count - got, offset + got)):
        parts.append(part)
        got += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
