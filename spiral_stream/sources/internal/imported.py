"""Rows that a catalog imported: one Lance dataset per source, with a snapshot for each state of its files.

A snapshot is a table of the units that the source had, and of the fragments that hold their rows. The storage units of
the relation are those fragments. They are named by the file that they come from and keyed by the file's content key, so
that the same files imported elsewhere are the same data.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.errors import DamageError, SourceError, SpiralError
from spiral_stream.expr import Expr
from spiral_stream.integrity.seal import MENDED, table
from spiral_stream.sources.change_detection import content_key
from spiral_stream.sources.import_source import INDEX, LINE_COLUMNS, ImportedSource
from spiral_stream.sources.lance.source import Lance
from spiral_stream.sources.row_filter import needed, passing, split_without
from spiral_stream.sources.source import ROW, Known, Reader, ReaderOver, RowRuns, Source, Unit

ROWS: Final = "rows.lance"
SNAPSHOTS: Final = "snapshots"
UNITS: Final = "units"
BYTES: Final = "bytes.sealed.arrow"  # digests of the files, where their bytes are compared
_HEX: Final = frozenset("0123456789abcdef")
_KEY_DIGITS: Final = 32
_FILES: Final = pa.list_(pa.struct([("name", pa.utf8()), ("key", pa.utf8()), ("rows", pa.int64())]))
SNAPSHOT: Final = pa.schema(
    [
        ("unit", pa.utf8()),
        ("key", pa.utf8()),
        ("part", pa.int32()),  # of the unit's fragments, from 0; a unit without rows has one without rows
        ("parts", pa.int32()),
        ("rows", pa.int64()),
        ("kept_bytes", pa.int64()),
        ("fragment", pa.utf8()),  # Lance's own description of it
        ("source_bytes", pa.int64()),  # of the unit, in its first part, as the next three
        ("refused", pa.int64()),
        ("examples", pa.list_(pa.utf8())),
        ("cpu_s", pa.float64()),
        ("files", _FILES),  # of the unit, with their own content keys, in its first part
        ("base", pa.int64()),  # of a unit that is a part of a file: rows of the file before it
    ]
)


@final
@dataclass(frozen=True, slots=True)
class ImportFacts:
    """What an import took and what it left out."""

    units: int
    rows: int
    source_bytes: int
    kept_bytes: int
    refused: int  # rows that could not be read
    examples: tuple[str, ...]  # the first of them: where, and why
    cpu_s: float  # CPU seconds of reading, whenever it was

    def __str__(self) -> str:
        out = f", {self.refused:,} rows left out" if self.refused else ""
        return (
            f"imported: {self.units:,} files, {self.source_bytes:,} bytes read in {self.cpu_s:,.1f} CPU s, "
            f"{self.kept_bytes:,} bytes kept{out}"
        )


@final
@dataclass(frozen=True, slots=True)
class ImportedRows(Source):
    """The kept rows of a source, in one state of its files. Made by registering the source.

    Args:
        of: the source.
        uri: the folder of what is kept of it, in the catalog.
        snapshot: which state: 32 hex digits.
    """

    KIND: ClassVar[str] = "imported"
    of: ImportedSource
    uri: str
    snapshot: str

    def __post_init__(self) -> None:
        if len(self.snapshot) != _KEY_DIGITS or not _HEX.issuperset(self.snapshot):
            msg = f"imported rows: snapshot {self.snapshot!r} is no snapshot. Register the source again"
            raise SourceError(msg)

    def open(self) -> Reader:
        return self.of.presented(ImportedReader(self))

    def open_known(self, known: Known) -> Reader:
        return self.of.presented(ImportedReader(self, known))

    def facts(self) -> ImportFacts:
        """Return what the import took; reads the snapshot only.

        Raises:
            SourceError: it is missing or damaged.
        """
        units = Snapshot.load(self.uri, self.snapshot).table
        first = units.filter(np.equal(units.column("part").to_numpy(), 0))
        total = {name: first.column(name).to_numpy().sum() for name in ("source_bytes", "refused", "cpu_s")}
        return ImportFacts(
            units=len(first),
            rows=int(units.column("rows").to_numpy().sum()),
            source_bytes=int(total["source_bytes"]),
            kept_bytes=int(units.column("kept_bytes").to_numpy().sum()),
            refused=int(total["refused"]),
            examples=tuple(text for texts in first.column("examples").to_pylist() for text in texts),
            cpu_s=float(total["cpu_s"]),
        )


@final
@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """The units of a source and the fragments of their rows, as `SNAPSHOT`."""

    table: pa.Table
    version: int  # of the Lance dataset
    schema: pa.Schema  # of the rows

    @classmethod
    def load(cls, uri: str, name: str) -> "Snapshot":
        """Read a snapshot.

        Raises:
            SourceError: it is missing or damaged.
        """
        path = snapshot_path(uri, name)
        try:
            found = table(path)
            about: dict[str, Any] = json.loads(found.schema.metadata[b"spiral:import"])
            schema = pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(about["schema"])))
            return cls(found.cast(SNAPSHOT), int(about["version"]), schema)
        except (SpiralError, OSError, KeyError, TypeError, ValueError, pa.ArrowException) as error:
            found = str(error).removesuffix(MENDED) if isinstance(error, DamageError) else f"{path}: {error}. "
            msg = f"imported rows {found}Read the files again with catalog.refresh(<name>), or restore the file"
            raise SourceError(msg) from error

    def files(self) -> dict[str, str]:
        """Return the content keys of the files that it has the rows of, by name."""
        pairs = self.table.column("files").combine_chunks().flatten()
        return dict(zip(pairs.field("name").to_pylist(), pairs.field("key").to_pylist(), strict=True))

    def marked(self) -> pa.Table:
        """Return the table with what `load` needs."""
        about = {"version": self.version, "schema": self.schema.serialize().to_pybytes().hex()}
        return self.table.replace_schema_metadata({b"spiral:import": json.dumps(about).encode()})


def snapshot_path(uri: str, name: str) -> Path:
    """Return the file of a snapshot."""
    return Path(uri, SNAPSHOTS, f"{name}.sealed.arrow")


@final
class ImportedReader(ReaderOver):
    """The kept rows with the units' own names and the columns' own types.

    Args:
        source: the kept rows.
        known: its units, which are then not looked at before they are read.
    """

    def __init__(self, source: ImportedRows, known: Known | None = None) -> None:
        snapshot = Snapshot.load(source.uri, source.snapshot)
        live = snapshot.table.filter(np.greater(snapshot.table.column("rows").to_numpy(), 0))
        rows = Lance(str(Path(source.uri, ROWS)), version=snapshot.version)
        try:
            super().__init__(rows.open() if known is None else rows.open_known(known))
        except SourceError as error:
            msg = f"{error}. Or read the files again with catalog.refresh(<name>)"
            raise SourceError(msg) from error
        self.schema = snapshot.schema
        self.base, self.allow_outside = source.of.base, bool(getattr(source.of, "allow_outside", True))
        self._units, self._folder = live, Path(source.uri).name
        self._files = snapshot.table.column("files").combine_chunks(), snapshot.table.column("base").to_numpy()
        self._starts = np.cumsum(live.column("rows").to_numpy()).astype(np.uint64)  # [U] where the next unit starts
        self._base = live.column("base").to_numpy()
        at = self.schema.get_field_index(INDEX)
        based = self._base.any() and LINE_COLUMNS in (self.schema.field(at).metadata or {})
        self._based = frozenset((INDEX,)) if based else frozenset[str]()  # columns that count from the unit on

    def units(self) -> Sequence[Unit]:
        columns = (self._units.column(name).to_pylist() for name in ("unit", "key", "part", "parts"))
        return [
            Unit(
                name if parts == 1 else f"{name}#{part:04d}",
                unit.rows,
                unit.size_bytes,
                content_key(self._folder, key, part),
                unit.groups,
            )
            for unit, name, key, part, parts in zip(self._rows.units(), *columns, strict=True)
        ]

    def scan(
        self, columns: Sequence[str], predicate: Expr | None = None, units: Sequence[int] | None = None
    ) -> Iterator[pa.RecordBatch]:
        schema = pa.schema([*(self.schema.field(name) for name in columns), pa.field(ROW, pa.uint64())])
        pushed, late = split_without(predicate, self.schema, self._based) if self._based else (predicate, None)
        for batch in self._rows.scan(needed(columns, late), pushed, units):
            found = batch
            if self._based & set(batch.schema.names):
                table = self._with_base(pa.Table.from_batches([batch]), batch.column(ROW).to_numpy())
                found = passing(table, late, schema.names)
            arrays = (each.combine_chunks() if isinstance(each, pa.ChunkedArray) else each for each in found.columns)
            yield pa.record_batch([_of_type(array, field) for array, field in zip(arrays, schema, strict=True)], schema)

    def row_runs(self) -> RowRuns:
        files, base = self._files
        flat, counts = files.flatten(), files.value_lengths().to_numpy()
        keys = [content_key(self._folder, key) for key in flat.field("key").to_pylist()]
        rows = flat.field("rows").to_numpy().astype(np.uint64)
        return RowRuns(pa.array(keys, pa.utf8()), rows, np.repeat(base, counts).astype(np.uint64))

    def key_of(self, content: str) -> str:
        return content_key(self._folder, content)

    def _with_base(self, table: pa.Table, rows: NDArray[np.uint64]) -> pa.Table:
        """The rows with places that count from the first row of their file."""
        base = self._base[np.searchsorted(self._starts, rows, side="right")]
        at = table.schema.get_field_index(INDEX)
        return table.set_column(at, table.schema.field(at), pa.array(table.column(INDEX).to_numpy() + base))

    def fetch(self, rows: NDArray[np.uint64], columns: Sequence[str]) -> pa.Table:
        found = self._rows.fetch(rows, columns)
        if self._based & set(columns):
            found = self._with_base(found, rows)
        return found.cast(pa.schema([self.schema.field(name) for name in columns])) if columns else found


def _of_type(array: pa.Array, field: pa.Field) -> pa.Array:
    return array if array.type == field.type else array.cast(field.type)
