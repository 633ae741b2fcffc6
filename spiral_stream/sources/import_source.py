"""Sources whose rows cannot be read by address: a catalog reads each of their files once, and keeps the rows.

An `ImportedSource` lists its files and yields the rows of one. The catalog keeps those rows in Lance, unit by unit under the
unit's content key, when the source is registered; a refresh reads the units that are new or changed. A unit is a file, or
several small ones, or a range of the bytes of a big one (`sources.files.units`). Formats that hold payload which can be read in
place (the members of a tar) yield references to it instead, struct<uri, offset, length>: then what is kept is an index, and
the payload stays where it is.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Final, TypeGuard, final

import pyarrow as pa

from spiral_stream.arguments import one_of
from spiral_stream.errors import SourceError, cut
from spiral_stream.sources.source import Reader, Source
from spiral_stream.storage.store import ObjectStat
from spiral_stream.storage.uri import is_object

FILE: Final = "__file__"  # utf8: the file that a row comes from, relative to the source's folder
INDEX: Final = "__index_in_file__"  # int64: the row's place in that file, from 0
KEY: Final = "__key__"  # utf8: the name that the file gives the row, such as the key of a tar's members
LINE_COLUMNS: Final = b"spiral:placed"  # metadata of columns that no source yields: where a row comes from
EXAMPLES: Final = 100  # refused rows of a unit that are named where the import is described
REFUSED_ROWS: Final = 10_000  # refused rows of a unit that are kept
REFUSED_BYTES: Final = 16 << 20  # of what such rows hold, for all rows of a unit
ROW_BYTES: Final = 4096  # of what one such row holds
RAISE: Final = "raise"
SKIP: Final = "skip"
ON_ERROR: Final = one_of((RAISE, SKIP), '"raise" or "skip"')


@final
@dataclass(frozen=True, slots=True)
class ImportUnit:
    """What is read at once: a file, with others that belong to it; or several files; or a part of one.

    Examples:
        >>> from spiral_stream.sources import ImportUnit
        >>> ImportUnit("a.csv", "data/a.csv", 1_024, "key").name
        'a.csv'
    """

    name: str  # unique within the source and stable: the path relative to the source's folder
    path: str  # of the file on this machine
    size_bytes: int
    content_key: str  # 32 hex digits; changes when the rows may have changed: names, sizes and times of all its files
    others: tuple[str, ...] = ()  # paths of further files that are read with it, such as sidecars
    seen: tuple[ObjectStat, ...] = ()  # what the file, and each of the others, were like when they were listed
    count: int | None = None  # rows, where they are known before they are read
    also: str = ""  # what the rows depend on that lies in none of these files, and that the content key covers
    files: "tuple[ImportUnit, ...]" = ()  # the files of a unit of several
    of: "ImportUnit | None" = None  # the file of which the unit is a part: the lines that begin in ``begin:end``
    begin: int = 0
    end: int = 0

    @property
    def file(self) -> "ImportUnit":
        """The file that it is, or is a part of."""
        return self if self.of is None else self.of

    def facts(self, path: str) -> ObjectStat | None:
        """Return what a file or an object of it was like when it was listed; None where the source did not say."""
        return dict(zip((self.path, *self.others), self.file.seen, strict=False)).get(path)


@final
@dataclass(frozen=True, slots=True)
class RefusedRow:
    """A row that was left out."""

    file: str
    place: str
    reason: str
    data: bytes  # what was found: the first `ROW_BYTES`
    size_bytes: int | None  # of all that was found; None if that is not known


@final
@dataclass(slots=True)
class Refused:
    """The rows of one unit that cannot be read. Not thread-safe.

    Args:
        unit: that is read; one of its files after the other, if it has several.
        on_error: ``"raise"`` stops at the first; ``"skip"`` counts them and keeps the first `REFUSED_ROWS`.

    Examples:
        >>> from spiral_stream.sources import ImportUnit, Refused
        >>> refused = Refused(ImportUnit("a.csv", "data/a.csv", 1_024, "key"), on_error="skip")
        >>> refused.row("line 17", "two values, and the header has three")
        >>> refused.count, refused.examples
        (1, ['data/a.csv, line 17: two values, and the header has three'])
    """

    unit: ImportUnit
    on_error: str = RAISE
    count: int = 0
    examples: list[str] = field(default_factory=list)
    rows: list[RefusedRow] = field(default_factory=list)
    held_bytes: int = 0

    def row(self, where: str, reason: str, data: bytes | str | None = None, *, is_complete: bool = True) -> None:
        """Leave one row out.

        Args:
            where: such as ``line 17``.
            reason: what was found, and what would be right.
            data: what was found, as it lies in the file or as text; None where there is nothing to show.
            is_complete: whether that is all of it.

        Raises:
            SourceError: rows may not be left out.
        """
        said = f"{cut(self.unit.path)}, {where}: {reason}"
        if self.on_error == RAISE:
            msg = f'{said}. Correct the file, or leave such rows out with on_error="skip"'
            raise SourceError(msg)
        self.count += 1
        if len(self.examples) < EXAMPLES:
            self.examples.append(said)
        found = data.encode(errors="surrogatepass") if isinstance(data, str) else data
        size = len(found) if found is not None and is_complete else None
        self._hold(RefusedRow(self.unit.file.name, where, reason, (found or b"")[:ROW_BYTES], size))

    def absorb(self, other: "Refused") -> None:
        """Add the rows that were refused of one file of the unit."""
        self.count += other.count
        self.examples += other.examples[: EXAMPLES - len(self.examples)]
        for row in other.rows:
            self._hold(row)

    def _hold(self, row: RefusedRow) -> None:
        if len(self.rows) < REFUSED_ROWS and self.held_bytes < REFUSED_BYTES:
            self.rows.append(row)
            self.held_bytes += len(row.data) + len(row.reason)

    def line(self, number: int, data: bytes, reason: str) -> None:
        """Leave a line of a text file out.

        Args:
            number: of the line among those of the unit, from 1.
            data: the line.
            reason: as for `row`.

        Raises:
            SourceError: rows may not be left out.
        """
        self.row(self.line_of(number), reason, data)

    def line_of(self, number: int) -> str:
        """Say which line of its file a line of the unit is."""
        if not self.unit.begin:
            return f"line {number}"
        if self.on_error != RAISE or is_object(self.unit.path):  # the lines before are not counted: that reads them all
            return f"line {number} of those that begin at byte {self.unit.begin} or later"
        return f"line {number + _lines_before(self.unit.path, self.unit.begin)}"


def _lines_before(path: str, end: int) -> int:
    """How many lines of a file begin before a byte."""
    count, last = 0, b"\n"
    with Path(path).open("rb") as file:
        while end > 0 and (data := file.read(min(end, 1 << 20))):
            count += data.count(b"\n")
            end, last = end - len(data), data[-1:]
    return count + (last != b"\n")


class ImportedSource(Source):
    """A source whose rows a catalog keeps. Subclasses are frozen dataclasses of JSON values that pickle.

    One that has a field ``on_error`` lets its user choose what happens to rows that cannot be read.

    Examples:
        >>> from spiral_stream.sources import ImportedSource
        >>> issubclass(spiral.sources.Csv, ImportedSource), issubclass(spiral.Parquet, ImportedSource)  # which is read in place
        (True, False)
    """

    PATHS: ClassVar[tuple[str, ...]] = ("path",)  # fields that say where the files lie: moved files keep their rows
    JOINED: ClassVar[bool] = False  # whether `import_rows` takes units of several files, and yields `FILE` itself

    @property
    @abstractmethod
    def base(self) -> str:
        """The folder that relative references in the rows start from."""

    @abstractmethod
    def import_units(self) -> Sequence[ImportUnit]:
        """List the files that are there now, in an order that does not depend on the file system.

        Raises:
            SourceError: nothing is there, or it is not this kind of source.
        """

    def import_pieces(self, files: Sequence[ImportUnit]) -> Sequence[ImportUnit]:
        """Return what is read at once of files, in their order: each alone, unless a subclass joins or parts them.

        Args:
            files: as `import_units` returns them, possibly with other content keys.
        """
        return files

    @abstractmethod
    def import_schema(self, units: Sequence[ImportUnit]) -> pa.Schema:
        """Return the columns of the rows. Asked once, at the first registration; rows of later units must have them too.

        Args:
            units: what is there, at least one.

        Raises:
            SourceError: the files do not say, or contradict each other.
        """

    @abstractmethod
    def import_rows(self, unit: ImportUnit, schema: pa.Schema, refused: Refused) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one unit: a function of the source and the unit's bytes alone, in the order of the file.

        Memory holds a bounded number of rows at a time. Batches may be asked for by one thread after another. `FILE` and
        `INDEX` are appended to what is yielded, unless the columns have them already.

        Args:
            unit: to read: a file, or a part of one. Files that are one unit are asked for one by one, unless the source is
                `JOINED`.
            schema: of the rows that are yielded: what `import_schema` gave at the first registration.
            refused: takes the rows that cannot be read.

        Raises:
            SourceError: the unit cannot be read; names the file and the place in it.
        """

    def presented(self, reader: Reader) -> Reader:
        """Return the reader that a relation reads through, over the rows that were kept."""
        return reader

    @property
    def imports(self) -> bool:
        """Whether a catalog keeps its rows; otherwise it is read in place, as a source that is no `ImportedSource`."""
        return True

    def open(self) -> Reader:
        """Refuse to open what is read through a catalog only.

        Raises:
            SourceError: always.
        """
        msg = (
            f"{type(self).__name__}: rows of this kind are read from a catalog, which keeps them. "
            f'Register it: catalog.register("name", {type(self).__name__}(...)), then catalog.table("name")'
        )
        raise SourceError(msg)


def is_imported(source: Source) -> TypeGuard[ImportedSource]:
    """Whether a catalog reads the files of a source once, and keeps the rows."""
    return isinstance(source, ImportedSource) and source.imports
