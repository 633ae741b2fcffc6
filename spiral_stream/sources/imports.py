"""Sources whose rows cannot be read by address: a catalog reads each of their files once, and keeps the rows.

An `ImportedSource` lists its units (files, or files that are read together) and yields the rows of one unit. The catalog
keeps those rows in Lance, unit by unit under the unit's content key, when the source is registered; a refresh reads the
units that are new or changed. Formats that hold payload which can be read in place (the members of a tar) yield
references to it instead, struct<uri, offset, length>: then what is kept is an index, and the payload stays where it is.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final, NoReturn, final

import pyarrow as pa

from spiral_stream.errors import SourceError, cut, shown
from spiral_stream.sources.source import Reader, Source

FILE: Final = "__file__"  # utf8: the file that a row comes from, relative to the source's folder
INDEX: Final = "__index_in_file__"  # int64: the row's place in that file, from 0
KEY: Final = "__key__"  # utf8: the name that the file gives the row, such as the key of a tar's members
EXAMPLES: Final = 100  # refused rows of a unit that are kept as text
RAISE: Final = "raise"
SKIP: Final = "skip"


@final
@dataclass(frozen=True, slots=True)
class ImportUnit:
    """What is read at once: one file, or several that belong together."""

    name: str  # unique within the source and stable: the path relative to the source's folder
    path: str  # of the file on this machine
    size_bytes: int
    content_key: str  # 32 hex digits; changes when the rows may have changed: names, sizes and times of all its files
    others: tuple[str, ...] = ()  # paths of further files that are read with it, such as sidecars
    count: int | None = None  # rows, where they are known before they are read


@final
@dataclass(slots=True)
class Refused:
    """The rows of one unit that cannot be read. Not thread-safe.

    Args:
        unit: that is read.
        on_error: ``"raise"`` stops at the first; ``"skip"`` counts them and keeps the first `EXAMPLES` as text.
    """

    unit: ImportUnit
    on_error: str = RAISE
    count: int = 0
    examples: list[str] = field(default_factory=list)

    def row(self, where: str, reason: str) -> None:
        """Leave one row out.

        Args:
            where: such as ``line 17``.
            reason: what was found, and what would be right.

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


class ImportedSource(Source):
    """A source whose rows a catalog keeps. Subclasses are frozen dataclasses of JSON values that pickle.

    One that has a field ``on_error`` lets its user choose what happens to rows that cannot be read.
    """

    PATHS: ClassVar[tuple[str, ...]] = ("path",)  # fields that say where the files lie: moved files keep their rows

    @property
    @abstractmethod
    def base(self) -> str:
        """The folder that relative references in the rows start from."""

    @abstractmethod
    def import_units(self) -> Sequence[ImportUnit]:
        """List what is there now, in an order that does not depend on the file system.

        Raises:
            SourceError: nothing is there, or it is not this kind of source.
        """

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
            unit: to read.
            schema: of the rows that are yielded: what `import_schema` gave at the first registration.
            refused: takes the rows that cannot be read.

        Raises:
            SourceError: the unit cannot be read; names the file and the place in it.
        """

    def presented(self, reader: Reader) -> Reader:
        """Return the reader that a relation reads through, over the rows that were kept."""
        return reader

    def open(self) -> NoReturn:
        """Refuse to open what is read through a catalog only.

        Raises:
            SourceError: always.
        """
        msg = (
            f"{type(self).__name__}: rows of this kind are read from a catalog, which keeps them. "
            f'Register it: catalog.register("name", {type(self).__name__}(...)), then catalog.table("name")'
        )
        raise SourceError(msg)


def need_on_error(source: str, on_error: object) -> None:
    """Refuse what is no choice for rows that cannot be read.

    Raises:
        SourceError: lists the choices.
    """
    if on_error not in (RAISE, SKIP):
        msg = f'{source}: on_error={shown(on_error)}. Give "raise" or "skip"'
        raise SourceError(msg)
