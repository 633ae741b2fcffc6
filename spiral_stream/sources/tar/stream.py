"""The bytes of a tar: at any offset of a plain one, in one pass of a compressed one."""

import lzma
from typing import Any, Final, final

import pyarrow as pa

from spiral_stream.errors import SourceError, cut
from spiral_stream.storage.file_object import opened_at, opened_forward
from spiral_stream.storage.store import BytesAt, ObjectStat

PLAIN: Final = ".tar"
COMPRESSED: Final = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
_CODECS: Final = {".gz": "gzip", ".tgz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
_SKIPPED: Final = 1 << 20  # bytes that are passed over at a time in a compressed tar


@final
class CompressedTar(BytesAt):
    """A tar that is compressed as a whole; read forward only."""

    def __init__(self, path: str, seen: ObjectStat | None = None) -> None:
        self.path = path
        self._raw = opened_forward(path, seen)
        try:
            self._file = _decompressed(path, self._raw)
        except BaseException:  # a codec that this pyarrow lacks
            self._raw.close()
            raise
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


def open_tar(path: str, seen: ObjectStat | None = None) -> BytesAt:
    """Open a tar; its name says whether it is compressed.

    Args:
        path: of the file, or its URI.
        seen: what an object is like, if that is known.

    Raises:
        SourceError: it is not there, is no regular file, or the store failed.
    """
    return CompressedTar(path, seen) if is_compressed(path) else opened_at(path, seen)


def is_compressed(path: str) -> bool:
    """Whether the name of a tar says that it is compressed."""
    return path.lower().endswith(COMPRESSED)


def _decompressed(path: str, raw: Any) -> Any:
    name = path.lower()
    codec = next((codec for ending, codec in _CODECS.items() if name.endswith(ending)), None)
    return lzma.LZMAFile(raw) if codec is None else pa.input_stream(raw, compression=codec)
