"""Rows of Arrow stream files on an object store: one unit per file, rows are read by range.

A file is walked once when it is opened: its heads are read, and where each buffer lies is held. Fetching rows asks for
their bytes alone, those of all files together, in as many rounds as lists and texts lie in each other, plus one. Every answer
is compared with the object that was walked.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.errors import SourceError, cut
from spiral_stream.expr import Expr
from spiral_stream.sources.arrow.messages import BatchPlaces, walked
from spiral_stream.sources.arrow.ranges import Range, Rounds, Runs, columns_of, together, unread_type
from spiral_stream.sources.arrow.stream import THREADS, stored, stored_column
from spiral_stream.sources.arrow.table import no_rows
from spiral_stream.sources.files.lru import HeldFiles
from spiral_stream.sources.row_filter import needed, passing
from spiral_stream.sources.source import ROW, Known, Reader, Unit, content_key, without_columns
from spiral_stream.storage.file_object import WindowedObject, look, read_several
from spiral_stream.storage.store import Facts
from spiral_stream.storage.uri import printable
from spiral_stream.threads import Workers, thread_share

FILES: Final = 1024  # of known files whose places are held
SCAN_ROWS: Final = 65_536  # that are read together
SCAN_BYTES: Final = 32 << 20  # of batches that are


@final
@dataclass(frozen=True, slots=True, eq=False)
class StreamObject:
    """One file that was walked."""

    name: str
    path: str  # its URI
    schema: pa.Schema  # as the file has it
    blocks: tuple[BatchPlaces, ...]
    starts: NDArray[np.int64]  # [batches + 1]
    facts: Facts
    content_key: str

    @property
    def size_bytes(self) -> int:
        """Of the file."""
        return self.facts.size

    @property
    def mtime_ns(self) -> int:
        """When it was changed."""
        return self.facts.modified_ns

    @property
    def unit(self) -> Unit:
        """The file as a unit."""
        groups = tuple(block.rows for block in self.blocks)
        return Unit(self.name, int(self.starts[-1]), self.size_bytes, self.content_key, groups)


_Part = tuple[StreamObject, int, Runs]  # a file, one of its batches, and rows of that


@final
class ArrowObjectReader(Reader):
    """Open stream files on a store, with one schema.

    Args:
        root: the URI that they lie below.
        names: of the files, relative to it.
        base: folder that relative references start from.
        allow_outside: whether references may name files outside ``base``.
        known: the files that the source had; then each is walked when it is first read.
        mark: what the names of the files say of the rows; if anything, a file of another name has other rows.
    """

    remote = True

    def __init__(
        self,
        root: str,
        names: Sequence[str],
        base: str,
        *,
        allow_outside: bool,
        known: Known | None = None,
        mark: str = "",
    ) -> None:
        self.base, self.allow_outside, self.trusting = base, allow_outside, known is not None
        self._root = root
        self._names = list(names) if known is None else known.names.to_pylist()
        self._held = HeldFiles[StreamObject](
            "Arrow file",
            lambda unit: _walk(root, self._names[unit], mark),
            None if known is None else FILES,
            known,
            self._need_same_columns,
        )
        self._file = self._held.file
        self.first = self._file(0)
        self.schema = stored(self.first.schema)
        if known is None:
            with Workers(thread_share().waiting(THREADS), "spiral-walk") as pool:
                files = list(pool.map(self._file, range(len(self._names))))
            rows = np.array([file.starts[-1] for file in files], np.uint64)
        else:
            rows = known.rows
        self._starts = np.concatenate([[0], np.cumsum(rows)]).astype(np.uint64)

    def units(self) -> Sequence[Unit]:
        return [self._file(unit).unit for unit in range(len(self._names))]

    def has_values(self, name: str, child: str) -> bool:
        """Whether a field of a struct column holds values: the first batch in which any row has some decides."""
        for file in map(self._file, range(len(self._names))):
            for block in file.blocks:
                column = columns_of(file.schema, block)[name]
                inner = column.children[column.kind.get_field_index(child)]
                runs = np.array([[0, block.rows]])
                valid, values = _read([(file, [column.valid(runs), inner.valid(runs)])])[0]
                if valid.any():
                    return bool((valid & values).any())
        return True

    def scan(
        self,
        columns: Sequence[str],
        predicate: Expr | None = None,
        units: Sequence[int] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        read = needed(columns, predicate)
        for unit in range(len(self._names)) if units is None else sorted(units):
            file, first = self._file(unit), int(self._starts[unit])
            for parts in _some(file):
                start = int(file.starts[parts[0][1]])
                stop = int(file.starts[parts[-1][1] + 1])
                rows = pa.array(np.arange(first + start, first + stop, dtype=np.uint64))
                table = self._rows(parts, read).append_column(ROW, rows) if read else pa.table([rows], names=[ROW])
                yield from passing(table, predicate, [*columns, ROW]).to_batches()

    def fetch(self, rows: NDArray[np.uint64], columns: Sequence[str]) -> pa.Table:
        rows = np.asarray(rows, dtype=np.uint64)
        if len(rows) and rows.max() >= self._starts[-1]:
            msg = f"Arrow files in {cut(printable(self._root))}: row {int(rows.max())} was asked for, but there are "
            raise SourceError(msg + f"{int(self._starts[-1])} rows")
        if not len(rows):
            return no_rows(pa.schema([self.schema.field(name) for name in columns]))
        if not columns:
            return without_columns(len(rows))
        wanted, places = np.unique(rows, return_inverse=True)
        units = np.searchsorted(self._starts, wanted, side="right") - 1
        parts: list[_Part] = []
        for unit in np.unique(units).tolist():
            file = self._file(unit)
            inside = (wanted[units == unit] - self._starts[unit]).astype(np.int64)
            batches = np.searchsorted(file.starts, inside, side="right") - 1
            parts += [(file, at, _runs(inside[batches == at] - file.starts[at])) for at in np.unique(batches).tolist()]
        return self._rows(parts, columns).take(pa.array(places)).combine_chunks()

    def close(self) -> None:
        self._held.clear()

    def _rows(self, parts: Sequence[_Part], columns: Sequence[str]) -> pa.Table:
        """Rows of batches, in the order of the batches."""
        names = list(dict.fromkeys(columns))
        asked: list[tuple[StreamObject, list[Rounds]]] = []
        for file, batch, runs in parts:
            with _reading(file.path):
                there = columns_of(file.schema, file.blocks[batch])
                asked.append((file, [there[name].taken(runs) for name in names]))
        fields = [self.schema.field(name) for name in names]
        found = [
            pa.record_batch(
                [stored_column(each, field) for each, field in zip(arrays, fields, strict=True)], pa.schema(fields)
            )
            for arrays in _read(asked)
        ]
        return pa.Table.from_batches(found).select(list(columns))

    def _need_same_columns(self, unit: int, file: StreamObject) -> None:
        if unit and not file.schema.equals(self.first.schema):
            msg = f"Arrow file {cut(file.path)} has other columns than {cut(self.first.path)}. Save the dataset again"
            raise SourceError(msg)


def _read(asked: Sequence[tuple[StreamObject, Sequence[Rounds]]]) -> list[list[Any]]:
    """Read what generators of several batches ask for: all of a round together."""
    reading = together([_of_file(file, rounds) for file, rounds in asked])
    try:
        ranges = next(reading)
        while True:
            ranges = reading.send(_bytes(ranges))
    except StopIteration as done:
        found: list[list[Any]] = done.value
        return found


def _of_file(file: StreamObject, rounds: Sequence[Rounds]) -> Rounds:
    """The ranges that generators of one batch ask for, each with its file."""
    reading = together(rounds)
    with _reading(file.path):
        try:
            ranges = next(reading)
            while True:
                data = yield [(file, *each) for each in ranges]
                ranges = reading.send(data)
        except StopIteration as done:
            return done.value


def _bytes(ranges: Sequence[Range]) -> list[memoryview]:
    """Bytes of files, in the order asked; empty ranges too."""
    some = [(file.path, file.facts, start, size) for file, start, size in ranges if size]
    found = iter(read_several(some))
    return [next(found) if size else memoryview(b"") for _, _, size in ranges]


def _runs(rows: NDArray[np.int64]) -> Runs:
    """Runs of neighbours among sorted rows."""
    begins = np.append(0, np.flatnonzero(np.diff(rows) != 1) + 1)
    return np.stack([rows[begins], np.append(rows[begins[1:] - 1], rows[-1]) + 1], axis=1)


def _some(file: StreamObject) -> Iterator[list[_Part]]:
    """Whole batches of a file, some at a time."""
    some: list[_Part] = []
    rows = size = 0
    for at, block in enumerate(file.blocks):
        some.append((file, at, np.array([[0, block.rows]])))
        rows, size = rows + block.rows, size + int(block.buffers[:, 1].sum())
        if rows >= SCAN_ROWS or size >= SCAN_BYTES:
            yield some
            some, rows, size = [], 0, 0
    if some:
        yield some


def _walk(root: str, name: str, mark: str) -> StreamObject:
    """Read the heads of a file.

    Raises:
        SourceError: it is no Arrow stream, ends early, or has columns that are not read by range.
    """
    uri = f"{root}/{name}"
    facts = look(uri)
    with _reading(uri):
        schema, blocks = walked(WindowedObject(uri, facts))
        for field in schema:
            if (kind := unread_type(field.type)) is not None:
                msg = f"column {field.name!r} has {kind}, which nothing reads by range"
                raise ValueError(msg)
        if blocks:
            columns_of(schema, blocks[0])
    rows = [block.rows for block in blocks]
    starts = np.concatenate([[0], np.cumsum(rows)]).astype(np.int64)
    key = content_key(schema.remove_metadata().serialize().to_pybytes(), facts.size, facts.mark, str(rows))
    return StreamObject(name, uri, schema, blocks, starts, facts, content_key(key, mark, name) if mark else key)


@contextmanager
def _reading(uri: str) -> Iterator[None]:
    """Name the file at which something goes wrong.

    Raises:
        SourceError: always then.
    """
    try:
        yield
    except (OSError, ValueError, pa.ArrowException) as error:
        msg = (
            f"Arrow file {cut(printable(uri))}: {error}. Save the dataset again, copy it to this machine, or write Parquet "
            "files: dataset.to_parquet(...)"
        )
        raise SourceError(msg) from error
