"""The records of a CSV file, block by block, and the names of its columns.

Where the records of a CSV end: at the line ends that no quotes enclose.

A quote opens where a field begins; inside, two quotes stand for one, and a lone quote inside a field is a letter. Quotes
and line ends are walked in C (`_records`), at some 4 GB a second.
"""

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.errors import SourceError, cut, shown
from spiral_stream.sources.files.units import Record
from spiral_stream.sources.import_source import ImportUnit, Refused
from spiral_stream.sources.text import _records
from spiral_stream.sources.text.lines import LINE_BYTES, opened

Int64 = NDArray[np.int64]

_NEWLINE: Final = ord("\n")
_RETURN: Final = ord("\r")
NO_QUOTE: Final = -1  # for `_records`


@final
class Records:
    """The ends of records in some bytes that begin with a record.

    Attributes:
        ends: shape [R], int64: one past the line end of each record.
        lines: shape [L], int64: where each line ends, records or not.
        open_at: where a quote opens that does not close in these bytes; -1 if there is none.
    """

    __slots__ = ("ends", "lines", "open_at")

    def __init__(self, data: bytes, delimiter: str, quote: str | None) -> None:
        ends, lines, self.open_at = _records.ends(data, ord(delimiter), NO_QUOTE if quote is None else ord(quote))
        self.ends: Int64 = np.frombuffer(ends, np.int64)
        self.lines: Int64 = np.frombuffer(lines, np.int64)


_HEAD_BYTES: Final = 1 << 16  # of a file, which are looked through for its header


@final
@dataclass(frozen=True, slots=True)
class CsvForm:
    """How one file is written."""

    delimiter: str
    quote: str | None
    column_names: tuple[str, ...] | None  # None: its first record says them
    lines: bool = False  # whether each line is a record, so that no field holds a line end

    @property
    def enclosing(self) -> str | None:
        """The quote that line ends may lie between; None if every one ends a record."""
        return None if self.lines else self.quote

    def has_enclosed(self, data: bytes) -> bool:
        """Whether a line end of some lines lies between quotes."""
        if self.quote is None or self.quote.encode() not in data:
            return False
        found = Records(data, self.delimiter, self.quote)
        return found.open_at >= 0 or len(found.ends) != data.count(b"\n")


@final
@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Some whole records of a file."""

    line: int  # number of the first line, from 1
    data: bytes
    ends: NDArray[np.int64]  # [R] one past the end of each record

    def rows(self) -> int:
        """How many records are not blank."""
        letters = np.frombuffer(self.data, np.uint8)
        starts = np.concatenate([[0], self.ends[:-1]])
        lengths = self.ends - starts
        ends_line = (letters[starts] == _NEWLINE) | (letters[starts] == _RETURN)
        return len(starts) - int((ends_line & (lengths <= len(b"\r\n"))).sum())

    def records(self) -> list[Record]:
        """The records that are not blank, each with the number of its first line."""
        found, begin, line = [], 0, self.line
        for end in self.ends.tolist():
            record = self.data[begin:end]
            if record.rstrip(b"\r\n"):
                found.append((line, record))
            line += record.count(b"\n")
            begin = end
        return found

    def without_first(self) -> tuple[bytes, "Chunk"]:
        """The first record, and the chunk after it."""
        end = int(self.ends[0])
        first = self.data[:end]
        return first, Chunk(self.line + first.count(b"\n"), self.data[end:], self.ends[1:] - end)


def chunks(form: CsvForm, unit: ImportUnit, refused: Refused, size: int) -> Iterator[tuple[tuple[str, ...], Chunk]]:
    """The records of a file without its header, some at a time, with the names of its columns.

    Raises:
        SourceError: the file cannot be read, or its header names no columns.
    """
    names = form.column_names
    if names is None and unit.begin:
        names = names_of(form, unit.file, refused.on_error)
    for chunk in _whole_records(form, unit, refused, size):
        while names is None and len(chunk.ends):
            first, chunk = chunk.without_first()  # noqa: PLW2901  blank lines before the header too
            names = _header(unit, first, form) if first.strip(b"\r\n") else None
        if names is not None and len(chunk.ends):
            yield names, chunk


def names_of(form: CsvForm, file: ImportUnit, on_error: str) -> tuple[str, ...]:
    """The names of the columns of a file; none if it has no rows.

    Raises:
        SourceError: the file cannot be read, or its header names no columns.
    """
    return next((names for names, _ in chunks(form, file, Refused(file, on_error), _HEAD_BYTES)), ())


def _whole_records(form: CsvForm, unit: ImportUnit, refused: Refused, size: int) -> Iterator[Chunk]:
    """All records of a file, the header among them.

    Raises:
        SourceError: the file cannot be read, or a record is too long.
    """
    line, held, ended = 1, b"", False
    with opened(unit) as text:
        while not ended:
            data = text.read(max(size, len(held)))  # a long record is looked through a few times, not often
            held, ended = held + data, not data
            found = Records(held, form.delimiter, form.enclosing)
            ends = found.ends
            done = int(ends[-1]) if len(ends) else 0
            if ended and done < len(held):  # the last line has no end, or a quote is open
                if found.open_at >= 0:
                    _refuse_open(refused, held, found.open_at, line)
                else:
                    ends, done = np.append(ends, len(held)), len(held)
            if done:
                yield Chunk(line, held[:done], ends)
                line += int(
                    np.searchsorted(found.lines, done)
                )  # counting the bytes again takes a tenth of reading them
            held = held[done:]
            if len(held) > LINE_BYTES and not ended:
                raise _too_long(unit, line, found)


def _too_long(unit: ImportUnit, line: int, found: Records) -> SourceError:
    quote = ""
    if found.open_at >= 0:
        quote = " A quote opens there, and is not closed. Close it, or say quote=None if fields are not quoted"
    msg = f"{cut(unit.path)}, line {line}: the row is longer than {LINE_BYTES >> 20} MiB.{quote or ' Correct the file'}"
    return SourceError(msg)


def _refuse_open(refused: Refused, data: bytes, at: int, line: int) -> None:
    first = line + data.count(b"\n", 0, at)
    why = (
        f"a quote opens before {shown(data[at + 1 : at + 31])} and is not closed before the end of the file; all the rest "
        "is one field. Close it, or say quote=None if fields are not quoted"
    )
    refused.line(first, data[data.rfind(b"\n", 0, at) + 1 :], why)


def _header(unit: ImportUnit, record: bytes, form: CsvForm) -> tuple[str, ...]:
    """The names in the first record of a file.

    Raises:
        SourceError: it holds none, or one twice.
    """
    try:
        fields = _fields(record, form)
    except (UnicodeDecodeError, csv.Error) as error:
        msg = f"{cut(unit.path)}, line 1: the names of the columns cannot be read: {error}. Correct the line"
        raise SourceError(msg) from error
    names = tuple(_kept_name(name, place) for place, name in enumerate(fields, 1))
    need_names(names, f"{cut(unit.path)}, line 1")
    return names


def _kept_name(name: str, place: int) -> str:
    return "_" if name == "*" else name.replace(".", "_").replace("`", "_") if name.strip() else f"column_{place}"


def _fields(record: bytes, form: CsvForm) -> list[str]:
    text = io.StringIO(record.decode().rstrip("\r\n"), newline="")
    if "\r" in text.getvalue():
        raise csv.Error("lines end with carriage returns alone; line feeds would be right")
    if form.quote is None:
        return next(csv.reader(text, delimiter=form.delimiter, quoting=csv.QUOTE_NONE))
    return next(csv.reader(text, delimiter=form.delimiter, quotechar=form.quote, strict=True))


def need_names(names: Sequence[object], where: str) -> None:
    """Refuse names of columns that are no names, or the same.

    Raises:
        SourceError: says which.
    """
    for place, name in enumerate(names, 1):
        if not isinstance(name, str) or not name.strip():
            msg = f"Csv: {where}: column {place} has no name; the names are {shown(names)}. Name each, or give column_names=[...]"
            raise SourceError(msg)
        if name in names[: place - 1]:
            msg = f"Csv: {where}: two columns are called {shown(name)}. Rename one, or give column_names=[...]"
            raise SourceError(msg)
