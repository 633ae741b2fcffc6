"""What readers of files with one schema share: each file is a unit, its rows have addresses, and it is opened when it is needed.

A format says how a file is opened and how rows of it are read. What counts rows over all files is here.
"""

import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Final, Generic, Protocol, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.display.progress import working
from spiral_stream.errors import SourceError, cut
from spiral_stream.sources.arrow.table import no_rows
from spiral_stream.sources.files.lru import HeldFile, HeldFiles
from spiral_stream.sources.source import Known, Reader, Unit, without_columns
from spiral_stream.storage.file_object import maps
from spiral_stream.storage.uri import printable
from spiral_stream.threads import Workers, thread_share

THREADS: Final = 8  # at most, that open files


class UnitFile(HeldFile, Protocol):
    """What is held of one file."""

    @property
    def unit(self) -> Unit:
        """The file as a unit."""


File = TypeVar("File", bound=UnitFile)


class FilesReader(Reader, Generic[File]):
    """The rows of files, one after the other.

    Args:
        what: they are, for messages: ``"Parquet file"``.
        root: the folder that they lie in, or its URI.
        names: of the files, relative to it; those of ``known`` where it is given.
        known: the files that the source had; then each is opened when it is first read.
        most: how many are held; None holds all of them.
    """

    def __init__(self, what: str, root: str, names: Sequence[str], known: Known | None, most: int | None) -> None:
        self._what, self._root, self._known = what, root, known
        self._names = list(names) if known is None else known.names.to_pylist()
        self.remote, self.trusting = not maps(root), known is not None
        self._held = HeldFiles[File](what, self._opened, most, known, self._need_alike)
        self._file = self._held.file
        self._units: list[Unit] = []
        self._starts = np.zeros(1, np.uint64)  # [U + 1] first row of each file

    @abstractmethod
    def _opened(self, unit: int) -> File:
        """Open a file; called for different files at the same time.

        Raises:
            SourceError: it cannot be read.
        """

    def _need_alike(self, unit: int, file: File) -> None:
        """Refuse a file that does not go with the others.

        Raises:
            SourceError: says why.
        """

    @abstractmethod
    def _fetch(self, rows: NDArray[np.uint64], columns: Sequence[str]) -> pa.Table:
        """As `fetch`, of rows that are there: at least one, and of at least one column."""

    def _count(self) -> None:
        """Count the rows; files that nobody knows are opened for it."""
        count = len(self._names)
        if self._known is None:
            with working(f"reading {count:,} footers", "files", count) as shown:
                if count == 1:  # a thread takes longer to start
                    self._units = [self._file(0).unit]
                else:
                    with Workers(thread_share().waiting(THREADS), "spiral-files") as pool:
                        self._units = list(shown.count(pool.map(lambda unit: self._file(unit).unit, range(count))))
        rows = [unit.rows for unit in self._units] if self._known is None else self._known.rows
        self._starts = np.concatenate([[0], np.cumsum(rows)]).astype(np.uint64)

    def _need_unchanged(self, *files: File) -> None:
        """Refuse files that changed since they were opened.

        Raises:
            SourceError: says which.
        """
        if not self.remote:  # every answer of a store says which object it is of
            self._held.need_unchanged(file.path for file in files)

    def units(self) -> Sequence[Unit]:
        return self._units or [self._file(unit).unit for unit in range(len(self._names))]

    def files(self, units: Sequence[int] | None = None) -> Mapping[str, str]:
        if self.remote:
            return {}
        names = self._names if units is None else [self._names[unit] for unit in units]
        return {name: os.path.join(self._root, name) for name in names}  # noqa: PTH118

    def fetch(self, rows: NDArray[np.uint64], columns: Sequence[str]) -> pa.Table:
        rows = np.asarray(rows, dtype=np.uint64)
        if len(rows) and rows.max() >= self._starts[-1]:
            where, total = cut(printable(self._root)), int(self._starts[-1])
            msg = f"{self._what}s at {where}: row {int(rows.max())} was asked for, but there are {total} rows"
            raise SourceError(msg)
        if not len(rows):
            return no_rows(pa.schema([self.schema.field(name) for name in columns]))
        return self._fetch(rows, columns) if columns else without_columns(len(rows))

    def close(self) -> None:
        self._held.clear()
