"""Read one unit of an imported source, and write its rows as Lance fragments to a draft."""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import pyarrow as pa

from spiral_stream.catalog.relation.refused import REFUSED, write_refused
from spiral_stream.derived.work.executors import Shared
from spiral_stream.errors import SourceError, cut
from spiral_stream.sources.import_source import FILE, INDEX, LINE_COLUMNS, RAISE, ImportedSource, ImportUnit, Refused
from spiral_stream.sources.lance.fragments import draft_fragments
from spiral_stream.storage.uri import is_object
from spiral_stream.threads import Workers, thread_share

FRAGMENT_ROWS: Final = 1 << 20  # at most
FRAGMENT_BYTES: Final = 512 << 20  # about, at most: a fragment is what is read, shuffled and cached at once
_BATCH_ROWS: Final = 8192  # smaller batches of small files are written together
_BATCH_BYTES: Final = 1 << 20
TOGETHER: Final = 16  # units of one call that are read at a time, where they lie on a store
_AHEAD: Final = 64  # small objects of one unit, whose rows are held together


@final
@dataclass(frozen=True, slots=True)
class ImportedUnit:
    """What is kept of one unit; also the JSON file that says it is done."""

    rows: tuple[int, ...]  # of each fragment
    kept_bytes: tuple[int, ...]
    fragments: tuple[str, ...]  # Lance's own descriptions
    files: tuple[int, ...]  # rows of each of its files
    refused: int
    examples: tuple[str, ...]
    cpu_s: float

    @classmethod
    def parsed(cls, noted: dict[str, Any]) -> "ImportedUnit":
        """Return what a JSON file says.

        Raises:
            TypeError: it says something else.
        """
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in noted.items()}
        return cls(**values)


def import_units(
    source: Shared[ImportedSource], schema: bytes, units: Sequence[ImportUnit], draft: Path
) -> list[ImportedUnit]:
    """Read units and write their rows to a draft; units on a store together. Runs wherever the executor likes."""
    columns = pa.ipc.read_schema(pa.py_buffer(schema))

    def work(k: int) -> ImportedUnit:
        return _import_unit(source.value(), columns, units[k], draft / str(k))

    if not is_object(units[0].path) or len(units) == 1:
        return [work(k) for k in range(len(units))]
    with Workers(thread_share().waiting(TOGETHER), "spiral-import") as pool:
        return list(pool.map(work, range(len(units))))


def _import_unit(source: ImportedSource, schema: pa.Schema, unit: ImportUnit, draft: Path) -> ImportedUnit:
    begun = time.thread_time()
    refused = Refused(unit, getattr(source, "on_error", RAISE))
    rows = _Rows(source, unit, schema, refused)
    first = next(rows, None)
    made = []
    try:
        if first is not None:
            made = draft_fragments(draft, rows.with_first(first), schema, FRAGMENT_ROWS, FRAGMENT_BYTES)
    except SourceError as error:
        if rows.failed:
            raise rows.failed.pop() from None
        msg = f"{cut(unit.path)}: its rows cannot be kept: {error}"
        raise SourceError(msg) from error
    if refused.rows:
        write_refused(draft / REFUSED, refused.rows)
    return ImportedUnit(
        rows=tuple(each.rows for each in made),
        kept_bytes=tuple(each.size_bytes for each in made),
        fragments=tuple(each.described for each in made),
        files=tuple(rows.counts),
        refused=refused.count,
        examples=tuple(refused.examples),
        cpu_s=time.thread_time() - begun,
    )


@final
class _Rows:
    """The batches of a unit with where each row comes from; keeps the error, which Lance would turn into text."""

    def __init__(self, source: ImportedSource, unit: ImportUnit, schema: pa.Schema, refused: Refused) -> None:
        self._source, self._unit, self._schema, self._refused = source, unit, schema, refused
        self._stored_schema = pa.schema([field for field in schema if LINE_COLUMNS not in (field.metadata or {})])
        self._files = unit.files or (unit,)
        self.counts = [0] * len(self._files)
        self._batches = self._joined() if unit.files and source.JOINED else self._one_by_one()
        if unit.files:
            self._batches = _together(self._batches)
        self.failed: list[BaseException] = []  # at most one; who raises it takes it out

    def __iter__(self) -> "Iterator[pa.RecordBatch]":
        return self

    def __next__(self) -> pa.RecordBatch:
        try:
            return next(self._batches)
        except StopIteration:
            raise
        except BaseException as error:
            self.failed.append(error)
            raise

    def with_first(self, first: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """All batches, of which the first was taken already."""
        yield first
        yield from self

    def _one_by_one(self) -> Iterator[pa.RecordBatch]:
        found = self._read_ahead() if self._unit.files and is_object(self._unit.path) else self._read()
        for at, (file, batches) in enumerate(found):
            name = pa.scalar(file.file.name, pa.utf8())
            for batch in batches:
                if rows := len(batch):
                    numbers = np.arange(self.counts[at], self.counts[at] + rows, dtype=np.int64)
                    self.counts[at] += rows
                    yield self._with_lines(batch, pa.repeat(name, rows), pa.array(numbers))

    def _read(self) -> Iterator[tuple[ImportUnit, Iterable[pa.RecordBatch]]]:
        for file in self._files:
            self._refused.unit = file
            yield file, self._source.import_rows(file, self._stored_schema, self._refused)

    def _read_ahead(self) -> Iterator[tuple[ImportUnit, Iterable[pa.RecordBatch]]]:
        """As `_read`, of small objects: some are read together."""

        def finished(file: ImportUnit) -> tuple[list[pa.RecordBatch], Refused]:
            refused = Refused(file, self._refused.on_error)
            return list(self._source.import_rows(file, self._stored_schema, refused)), refused

        with Workers(thread_share().waiting(TOGETHER), "spiral-import") as pool:
            for begin in range(0, len(self._files), _AHEAD):
                some = self._files[begin : begin + _AHEAD]
                for file, (batches, refused) in zip(some, pool.map(finished, some), strict=True):
                    self._refused.unit = file
                    self._refused.absorb(refused)
                    yield file, batches

    def _joined(self) -> Iterator[pa.RecordBatch]:
        """The rows of all files, which say themselves which one they are of, in the order of the files."""
        at_of = {file.name: at for at, file in enumerate(self._files)}
        for batch in self._source.import_rows(self._unit, self._stored_schema, self._refused):
            parts_at = []
            for name in batch.column(FILE).to_pylist():  # 0.1 us per row
                at = at_of[name]
                parts_at.append(self.counts[at])
                self.counts[at] += 1
            if parts_at:
                yield self._with_lines(batch, batch.column(FILE), pa.array(parts_at, pa.int64()))

    def _with_lines(self, batch: pa.RecordBatch, files: pa.Array, lines: pa.Array) -> pa.RecordBatch:
        columns = {FILE: files, INDEX: lines, **dict(zip(batch.schema.names, batch.columns, strict=True))}
        if missing := [name for name in self._schema.names if name not in columns]:
            path = cut(self._refused.unit.path)
            msg = f"{path} has no column {missing[0]!r}, which the source has. Register the file separately"
            raise SourceError(msg)
        return pa.record_batch([columns[name] for name in self._schema.names], self._schema)


def _together(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join small batches: writing one costs as much as writing a thousand rows."""
    held: list[pa.RecordBatch] = []
    rows, size = 0, 0
    for batch in batches:
        held.append(batch)
        rows, size = rows + len(batch), size + batch.nbytes
        if rows >= _BATCH_ROWS or size >= _BATCH_BYTES:
            yield from pa.Table.from_batches(held).combine_chunks().to_batches()
            held, rows, size = [], 0, 0
    if held:
        yield from pa.Table.from_batches(held).combine_chunks().to_batches()
