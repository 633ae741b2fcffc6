"""Text files as blocks of whole lines, plain or compressed, in bounded memory.

Whether a file is compressed is read off its first bytes (gzip, zstd), not its name. A block ends with a line. A line
longer than `LINE_BYTES` is refused before it is held, so that a few kilobytes that unpack to many gigabytes do no harm.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any, Final, final

import pyarrow as pa

from spiral_stream.errors import SourceError, cut
from spiral_stream.sources.imports import Refused
from spiral_stream.sources.paths import open_file

BLOCK_BYTES: Final = 4 << 20
LINE_BYTES: Final = 64 << 20  # of the longest line
COMPRESSED: Final = ("", ".gz", ".zst")  # what a suffix may be followed by
_BOM: Final = b"\xef\xbb\xbf"
_CODECS: Final = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
_WIDE: Final = (b"\xff\xfe", b"\xfe\xff")  # how UTF-16 begins


@final
@dataclass(frozen=True, slots=True)
class Block:
    """Some lines of a file, each with its end; the last line of a file may have none."""

    line: int  # number of the first line, from 1
    data: bytes


def with_compressed(*suffixes: str) -> tuple[str, ...]:
    """Return suffixes of plain files with those of the same files compressed."""
    return tuple(f"{suffix}{end}" for suffix in suffixes for end in COMPRESSED)


@contextmanager
def opened(path: str) -> Iterator["Text"]:
    """Open a file as a stream of its plain bytes, without a byte order mark.

    Raises:
        SourceError: it cannot be opened or unpacked, or is UTF-16; names the file and how far it was read.
    """
    text = None
    try:
        number, _ = open_file(path)
        with os.fdopen(number, "rb", buffering=0) as file:
            text = Text(path, file)
            yield text
    except (OSError, ValueError) as error:
        where = f", after {text.read_bytes:,} bytes of text" if text is not None else ""
        msg = f"{cut(path)}{where}: {_said(error)}. It is damaged, cut short or still being written: replace it, or leave it out"
        raise SourceError(msg) from error


@final
class Text:
    """The plain bytes of one open file."""

    def __init__(self, path: str, file: IO[bytes]) -> None:
        self.path, self.read_bytes = path, 0
        head = file.read(4)
        file.seek(0)
        codec = next((codec for magic, codec in _CODECS.items() if head.startswith(magic)), None)
        self._stream: Any = file if codec is None else pa.input_stream(file, compression=codec)
        self._first = True

    def read(self, size: int = BLOCK_BYTES) -> bytes:
        """Return the next bytes, at most ``size``; none at the end."""
        data: bytes = self._stream.read(size)
        self.read_bytes += len(data)
        if self._first and data:
            self._first = False
            if data.startswith(_WIDE):
                msg = f"{cut(self.path)} is UTF-16, and UTF-8 is read. Convert it: iconv -f UTF-16 -t UTF-8"
                raise SourceError(msg)
            if data.startswith(_BOM):
                return data[len(_BOM) :] or self.read(size)
        return data

    def readable(self) -> bool:
        """Say that this can be read, which pyarrow asks."""
        return True

    @property
    def closed(self) -> bool:
        """Whether it was closed: never, its file is."""
        return False


def blocks(path: str, refused: Refused, size: int = BLOCK_BYTES) -> Iterator[Block]:
    """Read a file as blocks of whole lines.

    Args:
        path: of the file.
        refused: takes lines that are too long.
        size: of a block; one with a longer line is longer.

    Raises:
        SourceError: it cannot be read.
    """
    line, held, length = 1, list[bytes](), 0
    with opened(path) as text:
        while data := text.read(size):
            end = data.rfind(b"\n") + 1
            if not end and length <= LINE_BYTES:
                held.append(data)
                length += len(data)
                continue
            if length > LINE_BYTES:
                data, length = _refuse_long(text, data, refused, line), 0
                held, line, end = [], line + 1, data.rfind(b"\n") + 1
            if end:
                block = b"".join([*held, data[:end]])
                yield Block(line, block)
                line += block.count(b"\n")
                held = []
            held = [*held, data[end:]] if data[end:] else held
            length = sum(map(len, held))
        if length > LINE_BYTES:
            _refuse_long(text, b"", refused, line)
        elif held:
            yield Block(line, b"".join(held))


def _refuse_long(text: Text, data: bytes, refused: Refused, line: int) -> bytes:
    """Refuse a line, and read over the rest of it; returns what follows it."""
    refused.row(f"line {line}", f"it is longer than {LINE_BYTES >> 20} MiB; a line holds one row")
    while data and b"\n" not in data:
        data = text.read()
    return data[data.find(b"\n") + 1 :] if data else b""


def _said(error: BaseException) -> str:
    return str(error.strerror if isinstance(error, OSError) and error.strerror else error)
