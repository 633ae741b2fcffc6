"""Text files as blocks of whole lines, plain or compressed, in bounded memory.

Whether a file is compressed is read off its first bytes (gzip, zstd), not its name. A block ends with a line. A line
longer than `LINE_BYTES` is refused before it is held, so that a few kilobytes that unpack to many gigabytes do no harm.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any, Final, final

import pyarrow as pa

from spiral_stream.errors import SourceError, cut
from spiral_stream.sources.import_source import ROW_BYTES, ImportUnit, Refused
from spiral_stream.sources.text import _records
from spiral_stream.storage.file_object import opened_forward

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


def is_plain(unit: ImportUnit) -> bool:
    """Whether a file is not compressed, so that reading may begin anywhere.

    Raises:
        SourceError: it cannot be read.
    """
    with opened_forward(unit.path, unit.facts(unit.path)) as file:
        return _codec_of(file) is None


@contextmanager
def opened(unit: ImportUnit) -> Iterator["Text"]:
    """Open a file, or a part of one, as a stream of its plain bytes, without a byte order mark.

    Raises:
        SourceError: it cannot be opened or unpacked, or is UTF-16; names the file and how far it was read.
    """
    text = None
    try:
        with opened_forward(unit.path, unit.facts(unit.path)) as file:
            text = Text(unit, file)
            yield text
    except (OSError, ValueError) as error:
        where = f", after {text.read_bytes:,} bytes of text" if text is not None else ""
        said = error.strerror if isinstance(error, OSError) and error.strerror else error
        msg = f"{cut(unit.path)}{where}: {said}. It is damaged, cut short or still being written: replace it, or leave it out"
        raise SourceError(msg) from error


def _codec_of(file: IO[bytes]) -> str | None:
    head = file.read(4)
    file.seek(0)
    return next((codec for magic, codec in _CODECS.items() if head.startswith(magic)), None)


@final
class _Lines:
    """The lines of a plain file that begin in a range of its bytes, as a stream."""

    def __init__(self, file: IO[bytes], begin: int, end: int) -> None:
        self._file, self._end = file, end
        self._at = max(0, begin - 1)  # of what is read next
        self._last = b""  # the last letter that was read
        self._held = b""
        file.seek(self._at)
        if begin:
            self._held = self._after_first_end()

    def read(self, size: int) -> bytes:
        if self._held:
            data, self._held = self._held[:size], self._held[size:]
            return data
        if self._at < self._end:
            return self._next(min(size, self._end - self._at))
        if self._last == b"\n":
            return b""
        data = self._next(size)  # the rest of the line that began before the end of the range
        if found := data.find(b"\n") + 1:
            self._last, data = b"\n", data[:found]
        return data

    def _after_first_end(self) -> bytes:
        """What follows the first line end of the range; none if no line begins in it."""
        while self._at < self._end:
            data = self._next(min(BLOCK_BYTES, self._end - self._at))
            found = data.find(b"\n") + 1
            if found or not data:
                return data[found:]
        self._last = b"\n"
        return b""

    def _next(self, size: int) -> bytes:
        data = self._file.read(size)
        self._at += len(data)
        self._last = data[-1:] or b"\n"
        return data


@final
class Text:
    """The plain bytes of one open file, or of a part of it."""

    def __init__(self, unit: ImportUnit, file: IO[bytes]) -> None:
        self.path, self.read_bytes = unit.path, 0
        codec = None if unit.of is not None else _codec_of(file)
        self._stream: Any = file if codec is None else pa.input_stream(file, compression=codec)
        if unit.of is not None:
            self._stream = _Lines(file, unit.begin, unit.end)
        self._first = not unit.begin

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


def blocks(unit: ImportUnit, refused: Refused, size: int = BLOCK_BYTES) -> Iterator[Block]:
    """Read a file, or a part of one, as blocks of whole lines.

    Args:
        unit: the file.
        refused: takes lines that are too long.
        size: of a block; one with a longer line is longer.

    Raises:
        SourceError: it cannot be read.
    """
    line, held, length = 1, list[bytes](), 0
    with opened(unit) as text:
        while data := text.read(size):
            end = data.rfind(b"\n") + 1
            if not end and length <= LINE_BYTES:
                held.append(data)
                length += len(data)
                continue
            if length > LINE_BYTES:
                data, length = _refuse_long(text, data, refused, line, held), 0
                held, line, end = [], line + 1, data.rfind(b"\n") + 1
            if end:
                block = b"".join([*held, data[:end]])
                yield Block(line, block)
                line += _records.line_ends(block)
                held = []
            held = [*held, data[end:]] if data[end:] else held
            length = sum(map(len, held))
        if length > LINE_BYTES:
            _refuse_long(text, b"", refused, line, held)
        elif held:
            yield Block(line, b"".join(held))


def _refuse_long(text: Text, data: bytes, refused: Refused, line: int, held: list[bytes]) -> bytes:
    """Refuse a line, and read over the rest of it; returns what follows it."""
    why = f"it is longer than {LINE_BYTES >> 20} MiB; a line holds one row"
    refused.row(refused.line_of(line), why, held[0][:ROW_BYTES], is_complete=False)
    while data and b"\n" not in data:
        data = text.read()
    return data[data.find(b"\n") + 1 :] if data else b""
