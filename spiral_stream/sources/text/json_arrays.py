"""A file that is one JSON array of objects, as instruction data comes (Alpaca, LLaVA), read as lines of one object each.

Objects are found one after the other by Python's ``json``, 60 MB/s, so no more than a block and one object are in memory. Each
becomes a line as it is written: JSON has no line end inside a text, so those between its parts become spaces.
"""

import codecs
import json
from collections.abc import Iterator
from typing import Final

from spiral_stream.errors import SourceError, cut
from spiral_stream.sources.import_source import ImportUnit, Refused
from spiral_stream.sources.text.lines import BLOCK_BYTES, LINE_BYTES, Block, Text, blocks, is_plain, opened

_BLANK: Final = " \t\r\n"
_ENDINGS: Final = (".json", ".json.gz", ".json.zst")
_HEAD: Final = 4096


def is_array(unit: ImportUnit) -> bool:
    """Whether a file called ``.json`` begins as an array.

    Raises:
        SourceError: it cannot be read.
    """
    if unit.of is not None or not unit.path.lower().endswith(_ENDINGS):
        return False
    with opened(unit) as text:
        while head := text.read(_HEAD):
            if stripped := head.lstrip(_BLANK.encode()):
                return stripped.startswith(b"[")
    return False


def is_lines(unit: ImportUnit) -> bool:
    """Whether reading may begin anywhere in a file: it is not compressed, and no array.

    Raises:
        SourceError: it cannot be read.
    """
    return is_plain(unit) and not is_array(unit)


def json_blocks(unit: ImportUnit, refused: Refused, size: int = BLOCK_BYTES) -> Iterator[Block]:
    """Read a file as `blocks` does; of an array each object is a line, and its number is that of the line.

    Raises:
        SourceError: it cannot be read, or the array is damaged.
    """
    if not is_array(unit):
        yield from blocks(unit, refused, size)
        return
    number, lines, held = 1, list[bytes](), 0
    with opened(unit) as text:
        for found in _Objects(text, unit.path, size):
            lines.append(found)
            held += len(found) + 1
            if held >= size:
                yield Block(number, b"\n".join(lines) + b"\n")
                number, lines, held = number + len(lines), [], 0
    if lines:
        yield Block(number, b"\n".join(lines))


class _Objects:
    """The items of an array, as they are written, without line ends."""

    def __init__(self, text: Text, path: str, size: int) -> None:
        self._text, self._path, self._size = text, path, size
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._held, self._at, self._items, self._ended = "", 0, 0, False
        self._read = json.JSONDecoder().raw_decode

    def __iter__(self) -> Iterator[bytes]:
        if self._letter() != "[":
            raise self._damaged("it does not begin with [")
        self._at += 1
        if self._letter() == "]":
            self._at += 1
        else:
            while True:
                yield self._item()
                after = self._letter()
                self._at += 1
                if after == "]":
                    break
                if after != ",":
                    raise self._damaged("a comma or ] would follow")
        if self._letter():
            raise self._damaged("something follows its end")

    def _item(self) -> bytes:
        while True:
            self._letter()
            try:
                _, end = self._read(self._held, self._at)
                whole = self._held[end : end + 1] or self._ended  # a number may go on
            except (json.JSONDecodeError, RecursionError) as error:
                if self._ended or len(self._held) - self._at > LINE_BYTES:
                    why = "it is nested too deeply" if isinstance(error, RecursionError) else error.msg
                    raise self._damaged(why) from error
                whole = ""
            if whole:
                found = self._held[self._at : end]
                self._at, self._items = end, self._items + 1
                return found.replace("\n", " ").replace("\r", " ").encode()
            self._more()

    def _letter(self) -> str:
        """The next letter that is not blank; none at the end."""
        while True:
            while self._at < len(self._held) and self._held[self._at] in _BLANK:
                self._at += 1
            if self._at < len(self._held) or self._ended:
                return self._held[self._at : self._at + 1]
            self._more()

    def _more(self) -> None:
        data = self._text.read(max(self._size, len(self._held)))
        self._ended = not data
        try:
            self._held = self._held[self._at :] + self._decoder.decode(data, final=self._ended)
        except UnicodeDecodeError as error:
            raise self._damaged("it is not UTF-8") from error
        self._at = 0

    def _damaged(self, why: str) -> SourceError:
        msg = (
            f"{cut(self._path)}: its JSON array is damaged after {self._items:,} objects: {why}. Write the file again, or write "
            "one object per line"
        )
        return SourceError(msg)
