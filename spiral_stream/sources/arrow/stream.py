"""Rows of Arrow stream files, memory-mapped: one unit per file, its record batches are read in one go.

A stream has no index, so a file that is opened is walked once: 16 us per record batch, which touches the head of each
batch and none of its values. Values stay in the mapped file until rows of them are taken: 256 rows of three columns
from 200 batches take 1.9 ms of CPU. Mapped files of the last `FILES` in use are held; a mapping holds no file descriptor.
On an object store a file is read from its begin to its end, once: catalogs import it.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.dialects.offsets import unsliced_table
from spiral_stream.errors import DamageError, SourceError, cut
from spiral_stream.expr import Expr
from spiral_stream.integrity.blocks import Mapped, moment, need_sound
from spiral_stream.integrity.regular_files import need_file
from spiral_stream.sources.arrow.files import FilesReader
from spiral_stream.sources.arrow.table import plain, plain_column, same_items
from spiral_stream.sources.change_detection import content_key
from spiral_stream.sources.row_filter import needed, passing
from spiral_stream.sources.source import ROW, Known, Unit
from spiral_stream.storage.file_object import opened_forward
from spiral_stream.storage.store import ObjectStat
from spiral_stream.storage.uri import printable

FILES: Final = 1024  # mapped at the same time
SCAN_ROWS: Final = 65_536  # that a condition is asked of at once, at least if they have fewer than
SCAN_BYTES: Final = 32 << 20
_FILE_MAGIC: Final = b"ARROW1"  # of Arrow's other format, which has an index at its end
_END: Final = b"\xff\xff\xff\xff\0\0\0\0"  # of a stream that was closed
_EXTENSION: Final = b"ARROW:extension:"


@final
@dataclass(frozen=True, slots=True, eq=False)
class StreamFile:
    """One mapped file. Its batches are views on the file."""

    name: str
    path: str
    schema: pa.Schema  # as the file has it
    batches: tuple[pa.RecordBatch, ...]  # the non-empty ones, with the types of `stored`
    starts: NDArray[np.int64]  # [batches + 1]
    size_bytes: int
    mtime_ns: int
    content_key: str

    @property
    def unit(self) -> Unit:
        """The file as a unit."""
        groups = tuple(len(batch) for batch in self.batches)
        return Unit(self.name, int(self.starts[-1]), self.size_bytes, self.content_key, groups)


@final
class ArrowStreamReader(FilesReader[StreamFile]):
    """Open stream files with one schema.

    Args:
        root: the folder that they lie in.
        names: of the files, relative to it.
        base: folder that relative references start from.
        allow_outside: whether references may name files outside ``base``.
        known: the files that the source had; then each is walked when it is first read.
        mark: what the names of the files say of the rows; if anything, a file of another name has other rows.
    """

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
        super().__init__("Arrow file", root, names, known, FILES)
        self.base, self.allow_outside, self._mark = base, allow_outside, mark
        self.first = self._file(0)
        self.schema = stored(self.first.schema)
        self._count()

    def has_values(self, name: str, child: str) -> bool:
        """Whether a field of a struct column holds values: the first batch in which any row has some decides."""
        for unit in range(len(self._names)):
            for batch in self._file(unit).batches:
                column = batch.column(name)
                if column.null_count < len(column):
                    return has_values(column, child)
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
            for start, some in _together(file, read):
                rows = pa.array(np.arange(first + start, first + start + len(some), dtype=np.uint64))
                table = some.append_column(ROW, rows) if read else pa.table([rows], names=[ROW])
                with self._reading(file):
                    passed = _copied(passing(table, predicate, [*columns, ROW])).to_batches()
                yield from passed

    def _opened(self, unit: int) -> StreamFile:
        return _walk(self._root, self._names[unit], self._mark)

    def _fetch(self, rows: NDArray[np.uint64], columns: Sequence[str]) -> pa.Table:
        units = np.searchsorted(self._starts, rows, side="right") - 1
        files = {unit: self._file(unit) for unit in np.unique(units).tolist()}
        inside = (rows - self._starts[units]).astype(np.int64)
        batches = np.empty(len(rows), np.int64)
        for unit, file in files.items():
            here = units == unit
            batches[here] = np.searchsorted(file.starts, inside[here], side="right") - 1
            inside[here] -= file.starts[batches[here]]
        alike = (np.diff(units) == 0) & (np.diff(batches) == 0) & (np.diff(inside) == 1)
        first = np.append(0, np.flatnonzero(~alike) + 1)
        counts = np.diff(np.append(first, len(rows)))
        runs = zip(units[first].tolist(), batches[first].tolist(), inside[first].tolist(), counts.tolist(), strict=True)
        taken = [files[unit].batches[batch].slice(start, count) for unit, batch, start, count in runs]  # 2 us each
        with self._reading(*files.values()):
            return _copied(pa.Table.from_batches(taken).select(list(columns)))

    @contextmanager
    def _reading(self, *files: StreamFile) -> Iterator[None]:
        """Name what goes wrong while values are read from mapped files.

        Raises:
            SourceError: a file changed, or cannot be read.
        """
        since = moment()
        try:
            yield
            self._need_unchanged(*files)
            need_sound(since)
        except (DamageError, OSError, pa.ArrowException) as error:
            names = ", ".join(cut(file.path) for file in files[:3])
            msg = f"Arrow file {names}: {error}. Check that the files are whole and have not changed"
            raise SourceError(msg) from error

    def _need_alike(self, unit: int, file: StreamFile) -> None:
        if unit and not file.schema.equals(self.first.schema):
            msg = f"Arrow file {cut(file.path)} has other columns than {cut(self.first.path)}. Save the dataset again"
            raise SourceError(msg)


def has_values(column: pa.StructArray, child: str) -> bool:
    """Whether a field of structs holds values."""
    import pyarrow.compute as pc

    return bool(pc.struct_field(column, child).null_count < len(column))


def object_batches(uri: str, facts: ObjectStat | None) -> Iterator[pa.RecordBatch]:
    """Yield the record batches of a stream on an object store, with the types of `stored`: first one without rows.

    It is read from its begin to its end, and values that were damaged are found. The metadata of its schema is kept.

    Raises:
        SourceError: it is no Arrow stream, ends early, is damaged, or the store failed.
    """
    try:
        with opened_forward(uri, facts) as file:
            _need_stream(file.read(len(_FILE_MAGIC)))
            file.seek(0)
            aligned = pa.ipc.IpcReadOptions(ensure_alignment=pa.ipc.Alignment.At64Byte)  # Lance panics at decimals of 8
            with pa.ipc.open_stream(file, options=aligned) as opened:
                types = stored(opened.schema).with_metadata(opened.schema.metadata)
                yield pa.RecordBatch.from_pylist([], types)
                for batch in opened:
                    batch.validate(full=True)
                    yield _as_stored(batch, types)
            end = file.tell()
            file.seek(max(0, end - len(_END)))
            _need_end(file.read(len(_END)), end, file.seek(0, os.SEEK_END))
    except (OSError, ValueError, pa.ArrowException) as error:
        msg = f"Arrow file {cut(printable(uri))}: {error}. Replace the file, or save the dataset again"
        raise SourceError(msg) from error


def stored(schema: pa.Schema) -> pa.Schema:
    """Return the columns as they are read: extension types as what they store, whether their package is imported or not."""
    return plain(pa.schema([_stored(field) for field in schema]))


def stored_column(column: pa.Array, field: pa.Field) -> pa.Array:
    """Return the values of a column in the type that `stored` gives it."""
    found = column.storage if isinstance(column.type, pa.BaseExtensionType) else column
    if found.type != field.type:
        found = plain_column(found, field.type)
    return found if str(found.type) == str(field.type) else found.cast(field.type)


def _stored(field: pa.Field) -> pa.Field:
    known = isinstance(field.type, pa.BaseExtensionType)
    kept = {key: value for key, value in (field.metadata or {}).items() if not key.startswith(_EXTENSION)}
    kind = field.type.storage_type if known else field.type
    marked = known or len(kept) < len(field.metadata or {})
    return pa.field(field.name, same_items(kind) if marked else kind, field.nullable, kept or None)


def _together(file: StreamFile, columns: Sequence[str]) -> Iterator[tuple[int, pa.Table]]:
    """Batches of a file, some at a time, with the place of the first row: a condition costs 0.9 ms, whatever it is asked of."""
    start = rows = size = 0
    some: list[pa.RecordBatch] = []
    for batch in file.batches:
        chosen = batch.select(list(columns))
        some.append(chosen)
        rows, size = rows + len(batch), size + chosen.get_total_buffer_size()
        if rows >= SCAN_ROWS or size >= SCAN_BYTES:
            yield start, pa.Table.from_batches(some)
            start, rows, size, some = start + rows, 0, 0, []
    if some:
        yield start, pa.Table.from_batches(some)


def _copied(table: pa.Table) -> pa.Table:
    """The rows in memory of their own: a view on a mapped file would be read when nobody looks at the file any more."""
    several = pa.concat_tables([table, table.slice(0, 0)])  # so that a single chunk is copied too
    return unsliced_table(several.combine_chunks())


def _walk(root: str, name: str, mark: str) -> StreamFile:
    """Map a file and read the heads of its batches.

    Raises:
        SourceError: it is no Arrow stream, or ends early.
    """
    path = os.path.join(root, name)  # noqa: PTH118
    try:
        facts = os.stat(path)  # noqa: PTH116
        need_file(path, facts)
        mapped = Mapped(path)
        _need_stream(memoryview(mapped))
        source = pa.BufferReader(pa.py_buffer(mapped))
        with pa.ipc.open_stream(source) as opened:
            schema = opened.schema
            batches = tuple(batch for batch in opened if len(batch))
        _need_end(memoryview(mapped)[: source.tell()], source.tell(), len(memoryview(mapped)))
    except (OSError, ValueError, pa.ArrowException) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        msg = f"Arrow file {cut(path)}: {reason}. Replace the file, or save the dataset again"
        raise SourceError(msg) from error
    types = stored(schema)
    rows = [len(batch) for batch in batches]
    starts = np.concatenate([[0], np.cumsum(rows)]).astype(np.int64)
    key = content_key(schema.remove_metadata().serialize().to_pybytes(), facts.st_size, facts.st_mtime_ns, str(rows))
    key = content_key(key, mark, name) if mark else key
    as_read = batches if types.equals(schema) else tuple(_as_stored(batch, types) for batch in batches)
    return StreamFile(name, path, schema, as_read, starts, facts.st_size, facts.st_mtime_ns, key)


def _need_stream(data: bytes | memoryview) -> None:
    if bytes(data[: len(_FILE_MAGIC)]) == _FILE_MAGIC:
        msg = "it is an Arrow file with an index at its end (Feather), not a stream"
        raise ValueError(msg)


def _need_end(read: bytes | memoryview, place: int, size: int) -> None:
    """Refuse a stream that was cut between two batches, which Arrow reads without a word.

    Raises:
        ValueError: it has no mark of its end, or more follows.
    """
    if bytes(read)[-len(_END) :] != _END or place != size:
        msg = f"its rows end at byte {place:,} of {size:,} without Arrow's mark of an end: it was cut, or not closed"
        raise ValueError(msg)


def _as_stored(batch: pa.RecordBatch, types: pa.Schema) -> pa.RecordBatch:
    columns = [stored_column(column, field) for column, field in zip(batch.columns, types, strict=True)]
    return pa.record_batch(columns, schema=types)
