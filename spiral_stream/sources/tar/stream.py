"""The bytes of a tar: at any offset of a plain one, in one pass of a compressed one."""

import lzma
import os
from abc import ABC, abstractmethod
from types import TracebackType
from typing import IO, Any, Final, Self, final

import pyarrow as pa

from spiral_stream.errors import SourceError, cut
from spiral_stream.integrity.regular_files import open_file
from spiral_stream.storage.file_object import WindowedObject, look, open_object
from spiral_stream.storage.store import ObjectStat
from spiral_stream.storage.uri import is_object

PLAIN: Final = ".tar"
COMPRESSED: Final = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
_CODECS: Final = {".gz": "gzip", ".tgz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
_WINDOW: Final = 4096  # bytes of one read: a header, a small member, and the header after it
_SKIPPED: Final = 1 << 20  # bytes that are passed over at a time in a compressed tar


class TarBytes(ABC):
    """The bytes of an open tar. Not thread-safe; use as a context manager."""

    path: str
    size: int | None = None  # bytes; None where nothing says it

    @abstractmethod
    def at(self, offset: int, count: int) -> bytes:
        """Read bytes; fewer where the tar ends.

        Args:
            offset: of the uncompressed tar; a compressed one is read forward only.
            count: most bytes to return.

        Raises:
            SourceError: the compressed bytes are damaged, or end early.
            OSError: the file cannot be read.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the file."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self.close()


@final
class PlainTar(TarBytes):
    """A file that is not compressed."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._window, self._begin = b"", 0
        self._file, facts = open_file(path)
        self.size = facts.st_size
        os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_RANDOM)  # read-ahead would read the payload

    def at(self, offset: int, count: int) -> bytes:
        first = offset - self._begin
        if first >= 0 and first + count <= len(self._window):
            return self._window[first : first + count]
        if count > _WINDOW:
            return self._read(offset, count)
        self._window, self._begin = os.pread(self._file, _WINDOW, offset), offset
        if len(self._window) < count:  # a signal, or the end
            self._window = self._read(offset, count)
        return self._window[:count]

    def close(self) -> None:
        os.close(self._file)

    def _read(self, offset: int, count: int) -> bytes:
        parts: list[bytes] = []
        while count > 0 and (part := os.pread(self._file, count, offset)):
            parts.append(part)
            offset, count = offset + len(part), count - len(part)
        return b"".join(parts)


@final
class ObjectTar(TarBytes):
    """A tar on a store that is not compressed."""

    def __init__(self, uri: str, seen: ObjectStat | None = None) -> None:
        self.path = uri
        self._file = WindowedObject(uri, look(uri) if seen is None else seen)
        self.size = self._file.size

    def at(self, offset: int, count: int) -> bytes:
        return self._file.at(offset, count)

    def close(self) -> None:
        self._file.close()


@final
class CompressedTar(TarBytes):
    """A tar that is compressed as a whole; read forward only."""

    def __init__(self, path: str, seen: ObjectStat | None = None) -> None:
        self.path = path
        self._raw: IO[bytes] = open_object(path, seen) if is_object(path) else os.fdopen(open_file(path)[0], "rb")
        self._file = _decompressed(path, self._raw)
        self._passed = 0

    def at(self, offset: int, count: int) -> bytes:
        while self._passed < offset:
            if not self._read(min(_SKIPPED, offset - self._passed)):
                return b""
        return self._read(count)

    def close(self) -> None:
        self._file.close()
        self._raw.close()

    def _read(self, count: int) -> bytes:
        parts: list[bytes] = []
        try:
            while count > 0 and (part := self._file.read(count)):
                parts.append(part)
                count -= len(part)
        except (EOFError, lzma.LZMAError, OSError, ValueError) as error:
            raise self._damaged(error) from error
        found = b"".join(parts)
        self._passed += len(found)
        return found

    def _damaged(self, error: Exception) -> SourceError:
        msg = (
            f"{cut(self.path)} cannot be uncompressed after byte {self._passed:,} of the tar inside "
            f"({cut(str(error)) or type(error).__name__}): it was cut short, or is damaged. Fetch it again, or leave the file out"
        )
        return SourceError(msg)


def open_tar(path: str, seen: ObjectStat | None = None) -> TarBytes:
    """Open a tar; its name says whether it is compressed.

    Args:
        path: of the file, or its URI.
        seen: what an object is like, if that is known.

    Raises:
        SourceError: there is no such object, or the store failed.
        OSError: the file cannot be opened.
    """
    if is_compressed(path):
        return CompressedTar(path, seen)
    return ObjectTar(path, seen) if is_object(path) else PlainTar(path)


def is_compressed(path: str) -> bool:
    """Whether the name of a tar says that it is compressed."""
    return path.lower().endswith(COMPRESSED)


def _decompressed(path: str, raw: Any) -> Any:
    name = path.lower()
    codec = next((codec for ending, codec in _CODECS.items() if name.endswith(ending)), None)
    return lzma.LZMAFile(raw) if codec is None else pa.input_stream(raw, compression=codec)
