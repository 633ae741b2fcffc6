"""The interface of sources: list the storage, scan it, fetch rows by address.

A `Source` is a frozen value that names bytes and can be written as JSON. Opening
it gives a `Reader`. A reader's rows have *physical ordinals*: its units laid end
to end in the order `Reader.units` lists them, counted from 0. The catalog, not
the source, decides which logical storage shards these rows form.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Self, cast, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.errors import SourceError, warn
from spiral_stream.expr import Expr
from spiral_stream.sources.pins import Pin, Pinned

SCAN_ROWS: Final = 65_536  # of a scanned batch, at most
ROW: Final = "__row"  # uint64 physical ordinal, the last column of every scanned batch


def without_columns(rows: int) -> pa.Table:
    """Return a table of ``rows`` rows and no columns."""
    return pa.Table.from_struct_array(pa.array([{}] * rows, pa.struct([])))


def ordinals_of(begin: int, end: int) -> Iterator[pa.RecordBatch]:
    """Yield the ordinals of a run of rows as batches of `ROW` alone, `SCAN_ROWS` at a time."""
    for first in range(begin, end, SCAN_ROWS):
        yield pa.record_batch([pa.array(np.arange(first, min(first + SCAN_ROWS, end), dtype=np.uint64))], names=[ROW])


@dataclass(frozen=True, slots=True)
class Unit:
    """One physical unit of storage: a file, a fragment, a folder of files.

    Examples:
        >>> from spiral_stream.sources import Unit, content_key
        >>> Unit("a.parquet", 40, 1_024, content_key("a.parquet", 1_024, 17), (40,)).rows
        40
    """

    name: str  # stable and unique within the source, without the mount point
    rows: int
    size_bytes: int | None  # None: unknown
    content_key: str  # 32 hex digits; changes when and only when the rows may have changed
    groups: tuple[int, ...]  # rows of each piece that is read in one go; sums to ``rows``


@final
@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """The units that a source had when it was registered; U of them, as `Reader.units` lists them.

    Examples:
        >>> known = spiral.sources.Known(pa.array(["a"]), np.array([3], np.uint64), pa.array(["1f"]))
        >>> int(known.rows.sum())
        3
    """

    names: pa.StringArray  # [U]
    rows: NDArray[np.uint64]  # [U]
    keys: pa.StringArray  # [U], content keys


@final
@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """Lists of integers of P rows, as addresses of mapped memory.

    Examples:
        >>> items = np.arange(6)
        >>> spans = spiral.sources.Spans(
        ...     addresses=np.array([items.ctypes.data], np.uint64),
        ...     lengths=np.array([6]),
        ...     item_bytes=8,
        ...     signed=True,
        ...     owners=(items,),
        ... )
        >>> spans.lengths.tolist()
        [6]
    """

    addresses: NDArray[np.uint64]  # [P] where each begins
    lengths: NDArray[np.int64]  # [P] items
    item_bytes: int
    signed: bool
    owners: tuple[object, ...]  # keep the memory mapped


@final
@dataclass(frozen=True, slots=True, eq=False)
class RowRuns:
    """What identifies rows that have no identity: runs of them, end to end in physical order; R runs.

    Examples:
        >>> runs = spiral.sources.RowRuns(pa.array(["1f"]), np.array([3], np.uint64), np.array([0], np.uint64))
        >>> runs.rows.tolist()
        [3]
    """

    keys: pa.StringArray  # [R] content keys of the files that they come from
    rows: NDArray[np.uint64]  # [R]
    firsts: NDArray[np.uint64]  # [R] the place of the first row of each in its file


@final
@dataclass(frozen=True, slots=True)
class FormerProfile:
    """The result of ``Source()``: before 0.2 that was the cache profile now called ``Original()``."""


class Source(ABC):
    """The storage of a relation's rows. Subclasses are frozen dataclasses of JSON values.

    Examples:
        >>> isinstance(spiral.Arrow(text_rows), spiral.sources.Source)
        True
    """

    KIND: ClassVar[str]

    def __new__(cls, *values: object, **named: object) -> Self:  # noqa: ARG004  which the subclass takes
        if cls is Source:  # the interface itself has no instances
            warn(
                "Source() as the form in which a cache keeps payload is called Original(). Write Original()",
                DeprecationWarning,
            )
            return cast("Self", FormerProfile())
        return super().__new__(cls)

    @property
    def place(self) -> str:
        """Where the rows lie, for people: by default the field ``path``, ``uri`` or ``paths``."""
        found = next((getattr(self, name) for name in ("path", "uri", "paths") if hasattr(self, name)), "")
        return found if isinstance(found, str) else ", ".join(map(str, found))

    @abstractmethod
    def open(self) -> "Reader":
        """Open for reading.

        Raises:
            SourceError: nothing is there, or it is not this kind of source.
        """

    def open_known(self, known: Known) -> "Reader":
        """Open a source whose units are known, without a look at each of them.

        A source that can do this returns a reader that is `Reader.trusting`: it refuses a unit that has changed when it is
        first read. Others open as `open` does.

        Args:
            known: its units.

        Raises:
            SourceError: as `open`.
        """
        del known
        return self.open()

    def settled_by(self, before: "Source") -> "tuple[Source, str]":
        """Return the same source with what is left open taken from what is registered, and what to say of it.

        Args:
            before: the source that has the name already.
        """
        del before
        return self, ""

    def pinned(self) -> "Source":
        """Return the same source at its present version, where versions exist."""
        return self


class Reader(ABC):
    """An open source. Thread-safe; owns its handles; use as a context manager.

    Examples:
        >>> pq.write_table(text_rows, "read.parquet")
        >>> with spiral.Parquet("read.parquet").open() as reader:
        ...     reader.fetch(np.array([3, 7], np.uint64), ["doc_id"])["doc_id"].to_pylist()
        [3, 7]
    """

    schema: pa.Schema
    base: str  # folder that relative references in the rows are resolved against
    allow_outside: bool = True  # whether references may name files that are not below it
    trusting: bool = False  # whether units are compared with what is known of them when they are first read
    remote: bool = False  # whether reading rows waits for a network
    gone: bool = False  # whether its rows can no longer be read
    node_cached: bool = True  # whether the node cache keeps what is read over a network
    left_out: str | None = None  # files that lie there and are not read, said once at registration
    mapped_lists: frozenset[str] = (
        frozenset()
    )  # columns of lists of integers that lie in mapped files: `spans` finds them
    pinned_by: Pinned | None = None  # what pins the files that references name, where the catalog does not

    @abstractmethod
    def units(self) -> Sequence[Unit]:
        """Return the physical units, in the order that physical ordinals count."""

    def files(self, units: Sequence[int] | None = None) -> Mapping[str, str]:
        """The local files that the rows lie in: a name that does not depend on where the source is -> its path.

        Args:
            units: indices into `units()`; None takes all of them.
        """
        del units
        return {}

    def listed(self, name: str) -> Pin | None:
        """Return what an object that a reference names is like, where a list of the source said it; None asks the store."""
        del name
        return None

    def row_runs(self) -> RowRuns | None:
        """Return which files the rows come from, where their units say something else; None: each unit is one.

        Raises:
            SourceError: the storage failed.
        """
        return None

    def key_of(self, content: str) -> str:
        """Return the key that `row_runs` has for a file, by the file's own content key."""
        return content

    def refuse_outside(self) -> None:  # noqa: B027  most sources name files in reference columns only
        """Refuse rows whose bytes the storage library itself would read from files outside the source.

        Raises:
            SourceError: there are some, though references are confined.
        """

    @abstractmethod
    def scan(
        self,
        columns: Sequence[str],
        predicate: Expr | None = None,
        units: Sequence[int] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Read columns in physical order, with `ROW` appended.

        Args:
            columns: which to read; may be empty (only `ROW` comes back).
            predicate: keep only rows for which it is true, by the semantics of
                `spiral_stream.expr`; evaluated inside the storage library.
            units: indices into `units()`; None reads all of them.

        Raises:
            SourceError: the storage failed, with the unit's name.
        """

    @abstractmethod
    def fetch(self, rows: NDArray[np.uint64], columns: Sequence[str]) -> pa.Table:
        """Read rows by address.

        Args:
            rows: shape [P], uint64 physical ordinals in any order, repeats allowed.
            columns: which to read. Blobs come back as ``large_binary``.

        Returns:
            a table of P rows, in the order asked.
        """

    def spans(self, rows: NDArray[np.uint64], column: str) -> Spans:
        """Find the lists of rows, without reading them.

        Args:
            rows: as in `fetch`.
            column: one of `in_place`.

        Raises:
            SourceError: the storage failed.
        """
        msg = f"{type(self).__name__}: column {column!r} of {len(rows)} rows does not lie in mapped files. Use fetch"
        raise SourceError(msg)

    def close(self) -> None:  # noqa: B027  readers without handles have nothing to release
        """Release handles. Further calls are errors."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ReaderOver(Reader):
    """A reader over another one, which it closes: what a subclass does not say, the other one does.

    Args:
        rows: the other one.
    """

    def __init__(self, rows: Reader) -> None:
        self._rows = rows
        self.schema, self.base, self.allow_outside = rows.schema, rows.base, rows.allow_outside
        self.trusting, self.pinned_by = rows.trusting, rows.pinned_by
        self.remote, self.node_cached = rows.remote, rows.node_cached

    def units(self) -> Sequence[Unit]:
        return self._rows.units()

    def files(self, units: Sequence[int] | None = None) -> Mapping[str, str]:
        return self._rows.files(units)

    def refuse_outside(self) -> None:
        self._rows.refuse_outside()

    def scan(
        self, columns: Sequence[str], predicate: Expr | None = None, units: Sequence[int] | None = None
    ) -> Iterator[pa.RecordBatch]:
        return self._rows.scan(columns, predicate, units)

    def fetch(self, rows: NDArray[np.uint64], columns: Sequence[str]) -> pa.Table:
        return self._rows.fetch(rows, columns)

    def close(self) -> None:
        self._rows.close()
