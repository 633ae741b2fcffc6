"""Stores on this machine: files of a folder, and whole stores in memory.

A file is read by ``pread``: 3 us, where the client of object stores takes 70. A condition is kept by a lock of the kernel
on the folder, which is held for as long as one small file takes to write.
"""

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import final

from spiral_stream.errors import SourceError, anew, cut
from spiral_stream.integrity.locks import DEADLINE_S, turn
from spiral_stream.integrity.one_look import look
from spiral_stream.integrity.publish import write_file
from spiral_stream.storage.faults import NotThereError
from spiral_stream.storage.store import Buffer, Get, Got, ObjectStat, Store


@final
class Files(Store):
    """The files of this machine; keys are paths."""

    def stat(self, key: str) -> ObjectStat:
        try:
            return _facts(os.stat(key))  # noqa: PTH116
        except OSError as error:
            raise _fault(key, error) from error

    def read(self, wanted: Sequence[Get]) -> list[Got | SourceError]:
        return [self._read(each) for each in wanted]

    def _read(self, get: Get) -> Got | SourceError:
        try:
            with open(get.key, "rb", buffering=0) as file:  # noqa: PTH123
                facts = _facts(os.fstat(file.fileno()))
                length = max(0, facts.size - get.start) if get.length is None else get.length
                if get.most_bytes is not None and length > get.most_bytes:
                    return Got(None, facts)
                data = memoryview(exactly(file.fileno(), length, get.start))
        except OSError as error:
            return _fault(get.key, error)
        if len(data) < length:
            return too_short(get.key, facts.size, get.start, length)
        return Got(data, facts)

    def list(self, prefix: str) -> Iterator[tuple[str, ObjectStat]]:
        for folder, _, names in os.walk(prefix, onerror=None):
            for name in sorted(names):
                path = os.path.join(folder, name)  # noqa: PTH118
                with suppress(FileNotFoundError):  # removed meanwhile
                    yield path, _facts(os.stat(path))  # noqa: PTH116

    def put(
        self, key: str, data: Buffer, *, absent: bool = False, unchanged: ObjectStat | None = None
    ) -> ObjectStat | None:
        path = Path(key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with turn(path.parent, DEADLINE_S):
                found = look(path)
                there = None if found is None else _facts(found)
                if (absent and there is not None) or (unchanged is not None and there != unchanged):
                    return None
                write_file(path, bytes(data))
                return _facts(path.stat())
        except OSError as error:
            raise _fault(key, error) from error

    def delete(self, key: str) -> None:
        try:
            Path(key).unlink(missing_ok=True)
        except OSError as error:
            raise _fault(key, error) from error


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

    def list(self, prefix: str) -> Iterator[tuple[str, ObjectStat]]:
        with self._lock:
            found = [(key, facts) for key, (_, facts) in self._objects.items() if key.startswith(prefix)]
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


def _facts(found: os.stat_result) -> ObjectStat:
    etag = f'"{found.st_ino:x}-{found.st_mtime_ns:x}-{found.st_size:x}"'
    return ObjectStat(found.st_size, etag, None, found.st_mtime_ns)


def _fault(key: str, error: OSError) -> SourceError:
    if isinstance(error, FileNotFoundError):
        return NotThereError(f"{cut(key)}: there is no such file. Correct the path, or put the file there")
    return SourceError(f"{cut(key)}: {error.strerror}. Check its rights")


def exactly(handle: int, count: int, offset: int) -> bytes:
    """Read bytes of an open file; fewer where it ends."""
    parts, got = [], 0
    while got < count and (part := os.pread(handle, count - got, offset + got)):
        parts.append(part)
        got += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
