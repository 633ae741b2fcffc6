"""Rows of Vortex files with one schema: one unit per file, read by Vortex's own scanner.

A fetch reads rows by their indices, and long stretches of neighbouring rows as ranges. A range costs 0.17 ms of CPU, so a
stretch of numbers and texts has to be long before it pays; of lists it pays at once, since indices that are neighbours in a
list column cost 0.2 ms each. Files are read and not mapped: one that is cut short is an error, and does not end the process.
What is read is a segment of a column, 8,192 rows as vortex-data writes them; all files of a reader share a cache of segments.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Final, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.arguments import FLAG, check, class_door
from spiral_stream.display.progress import working
from spiral_stream.errors import SourceError, SpiralError, anew, cut, is_failure
from spiral_stream.expr import Expr
from spiral_stream.extras import need
from spiral_stream.sources.arrow.files import FilesReader
from spiral_stream.sources.arrow.table import plain, plain_column
from spiral_stream.sources.change_detection import content_key
from spiral_stream.sources.files.listing import Paths, common_folder, listed, set_given_paths
from spiral_stream.sources.files.partition_columns import with_added
from spiral_stream.sources.row_filter import needed, passing, split_without
from spiral_stream.sources.source import ROW, Known, Reader, Source, Unit
from spiral_stream.storage.file_object import RemoteBytes, look, maps, read_parts
from spiral_stream.storage.objects import IN_FLIGHT

STRETCH: Final = 1024  # neighbouring rows from which on a range is read
LISTS: Final = 8  # the same where lists are read
CACHE_BYTES: Final = 256 << 20  # of segments that one reader keeps
FILES: Final = 256  # open at the same time
SCAN_ROWS: Final = 1 << 20  # that are asked for at once
SCAN_BYTES: Final = 64 << 20  # of a file, where texts, bytes or lists are read
FEWEST: Final = 64  # rows of such a stretch
_TAIL_BYTES: Final = 1 << 16  # of a file, which hold its footer or most of it


@final
@class_door(SourceError)
@dataclass(frozen=True, slots=True)
class Vortex(Source):
    """Files of vortex-data: one, a folder of them (searched below), a glob, a brace pattern, or a list.

    Needs the extra ``vortex``. Texts come back as ``utf8``, bytes as ``large_binary``.

    Args:
        path: file, folder, glob, brace pattern, or a list of these; ``~`` is expanded. URIs of one object store are such
            paths too. Files are read in the order of their names.
        base: folder that relative references are resolved against; by default the common folder of the files.
        allow_outside: whether references may name files that do not lie below ``base``; by default only where no base is
            given.
        origin: whether to add the columns ``__file__``, the name of a row's file below the common folder, and
            ``__index_in_file__``, its place in that file.

    Examples:
        >>> import vortex
        >>> vortex.io.write(vortex.array(text_rows.select(["doc_id", "text"])), "texts.vortex")
        >>> entry = catalog.register("from-vortex", spiral.sources.Vortex("texts.vortex"), identity="doc_id")
        >>> catalog.table("from-vortex").count()
        40
    """

    KIND: ClassVar[str] = "vortex"
    path: str | Sequence[str]
    base: str | None = None
    allow_outside: bool | None = None
    origin: bool = False

    def __post_init__(self) -> None:
        set_given_paths(self, "Vortex")
        check(self, "Vortex", "=", SourceError, origin=FLAG)

    @property
    def _paths(self) -> Paths:
        return self.path if isinstance(self.path, str) else tuple(self.path)

    def open(self) -> Reader:
        return self._open(*listed(self._paths, "Vortex", (".vortex",)), None)

    def open_known(self, known: Known) -> Reader:
        return self._open(common_folder(self._paths), known.names.to_pylist(), known)

    def _open(self, root: str, names: Sequence[str], known: Known | None) -> Reader:
        need("vortex", "Vortex(...)", "write the rows to Lance or Parquet")
        rows = VortexReader(self, root, names, known)
        return with_added(rows, {}, known, origin=self.origin)


@final
@dataclass(frozen=True, slots=True, eq=False)
class VortexFile:
    """One open file."""

    path: str
    opened: Any  # vortex.VortexFile
    schema: pa.Schema
    unit: Unit
    size_bytes: int
    mtime_ns: int
    remote: RemoteBytes | None = None  # what reads it, if it is an object

    @property
    def content_key(self) -> str:
        """Of its rows."""
        return self.unit.content_key


@final
class VortexReader(FilesReader[VortexFile]):
    """Open Vortex files.

    Args:
        source: the files.
        root: the folder that they lie in.
        names: of the files, relative to it.
        known: the files that the source had; then each is opened when it is first read.
    """

    def __init__(self, source: Vortex, root: str, names: Sequence[str], known: Known | None) -> None:
        import vortex

        super().__init__("Vortex file", root, names, known, FILES)
        self.base, self.allow_outside, self._mark = source.base or root, bool(source.allow_outside), source.origin
        self._segments = vortex.SegmentCache(CACHE_BYTES)
        with working(f"reading {len(names):,} footers", "files", len(names)):
            first = self._file(0)
        self.schema = first.schema
        arrow = (
            first.opened.dtype.to_arrow_schema()
        )  # which Vortex compares with values of the same extension type only
        self._marked = frozenset(field.name for field in arrow if isinstance(field.type, pa.BaseExtensionType))
        self._count()

    def scan(
        self,
        columns: Sequence[str],
        predicate: Expr | None = None,
        units: Sequence[int] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        from spiral_stream.dialects.pushdown import all_of, split
        from spiral_stream.dialects.vortex import to_vortex

        compared, others = split_without(predicate, self.schema, self._marked)
        pushed, late = split(compared, self.schema, to_vortex)
        late = all_of([part for part in (late, others) if part is not None])
        lowered = None if pushed is None else to_vortex(pushed, self.schema)
        read = needed(columns, late)
        schema = pa.schema([*(self.schema.field(name) for name in read), pa.field(ROW, pa.uint64())])
        for unit in range(len(self._names)) if units is None else sorted(units):
            for rows, table in self._read(self._file(unit), read, lowered):
                ordinals = pa.array(rows.astype(np.uint64) + self._starts[unit])
                arrays = [] if table is None else table.columns
                found = pa.table([*arrays, ordinals], schema=schema)
                yield from passing(found, late, [*columns, ROW]).to_batches()

    def _fetch(self, rows: NDArray[np.uint64], columns: Sequence[str]) -> pa.Table:
        distinct, inverse = np.unique(rows, return_inverse=True)
        units = np.searchsorted(self._starts, distinct, side="right") - 1
        parts = []
        for unit in np.unique(units).tolist():
            inside = (distinct[units == unit] - self._starts[unit]).astype(np.int64)
            parts.append(self._take(self._file(unit), inside, columns))
        together = pa.concat_tables(parts)
        if len(distinct) < len(rows) or (inverse[1:] < inverse[:-1]).any():
            together = together.take(pa.array(inverse))
        return together

    def close(self) -> None:
        super().close()
        self._segments.clear()

    def _opened(self, unit: int) -> VortexFile:
        return _open(self._root, self._names[unit], self._segments, origin=self._mark)

    def _need_alike(self, unit: int, file: VortexFile) -> None:
        if unit and not file.schema.equals(self.schema):
            here, there = (
                ", ".join(f"{field.name} {field.type}" for field in each) for each in (file.schema, self.schema)
            )
            msg = (
                f"Vortex: {cut(file.path)} has the columns {cut(here)}; the first file has {cut(there)}. Rewrite it, or register "
                "the files separately"
            )
            raise SourceError(msg)

    def _read(
        self, file: VortexFile, columns: Sequence[str], lowered: Any
    ) -> Iterator[tuple[NDArray[np.int64], pa.Table | None]]:
        """Rows of a file that pass what Vortex can decide: their places in the file, and their columns if any are asked for."""
        with _storage(file.path, file.remote):
            values = file.opened.to_repeated_scan(list(columns), expr=lowered)
        step = _rows_at_once(file, self._fields(columns))
        for start in range(0, file.unit.rows, step):
            stop = min(start + step, file.unit.rows)
            with _storage(file.path, file.remote):
                rows = np.arange(start, stop) if lowered is None else self._passing_rows(file, lowered, start, stop)
            if not columns and len(rows):
                self._need_unchanged(file)
                yield rows, None
            elif len(rows):
                with _storage(file.path, file.remote):
                    arrays = values.execute(row_range=(start, stop))
                yield from self._paired(file, rows, arrays, columns)

    def _paired(
        self, file: VortexFile, rows: NDArray[np.int64], arrays: Any, columns: Sequence[str]
    ) -> Iterator[tuple[NDArray[np.int64], pa.Table]]:
        done = 0
        while True:
            with _storage(file.path, file.remote):
                array = next(arrays, None)
                table = None if array is None else self._as_table(array.to_arrow_table(), columns)
            self._need_unchanged(file)
            if table is None:
                break
            if len(table):
                yield rows[done : done + len(table)], table
            done += len(table)
        if done != len(rows):
            msg = f"Vortex file {cut(file.path)}: {len(rows):,} rows pass a condition, and {done:,} came. Rewrite the file"
            raise SourceError(msg)

    def _passing_rows(self, file: VortexFile, lowered: Any, start: int, stop: int) -> NDArray[np.int64]:
        """Places of the rows that pass. Counted first, which zone maps answer without a look at the rows where none does."""
        import vortex.expr

        count = sum(len(a) for a in file.opened.to_repeated_scan([], expr=lowered).execute(row_range=(start, stop)))
        if not count:
            return np.empty(0, np.int64)
        if count == stop - start:
            return np.arange(start, stop)
        scan = file.opened.to_repeated_scan(vortex.expr.pack({"passes": lowered}))
        masks = [a.to_arrow_array().field("passes").fill_null(False) for a in scan.execute(row_range=(start, stop))]
        mask = np.concatenate([each.to_numpy(zero_copy_only=False) for each in masks])
        found: NDArray[np.int64] = np.flatnonzero(mask) + start
        return found

    def _take(self, file: VortexFile, rows: NDArray[np.int64], columns: Sequence[str]) -> pa.Table:
        """Read ascending rows of a file."""
        import vortex

        borders = np.flatnonzero(np.diff(rows) != 1) + 1
        starts, stops = np.append(0, borders), np.append(borders, len(rows))
        long = stops - starts >= (LISTS if any(map(_has_lists, self._fields(columns))) else STRETCH)
        single = np.ones(len(rows), np.bool_)
        parts, order = [], []
        with _storage(file.path, file.remote):
            scan = file.opened.to_repeated_scan(list(columns))
            for first, last in zip(starts[long].tolist(), stops[long].tolist(), strict=True):
                single[first:last] = False
                order.append(np.arange(first, last))
                arrays = scan.execute(row_range=(int(rows[first]), int(rows[last - 1]) + 1))
                parts += [self._as_table(array.to_arrow_table(), columns) for array in arrays]
            if single.any():
                order.append(np.flatnonzero(single))
                indices = vortex.array(pa.array(rows[single], pa.uint64()))
                parts.append(self._as_table(file.opened.to_arrow(list(columns), indices=indices).read_all(), columns))
        self._need_unchanged(file)
        found = pa.concat_tables(parts)
        order_at = np.concatenate(order)
        return found if (order_at[1:] > order_at[:-1]).all() else found.take(pa.array(np.argsort(order_at)))

    def _as_table(self, table: pa.Table, columns: Sequence[str]) -> pa.Table:
        """The columns in the order asked, of the types of the schema."""
        fields = self._fields(columns)
        found = [plain_column(table.column(field.name), field.type) for field in fields]
        return pa.table(found, names=fields.names).cast(fields)

    def _fields(self, columns: Sequence[str]) -> pa.Schema:
        return pa.schema([self.schema.field(name) for name in columns])


def _open(root: str, name: str, segments: Any, *, origin: bool) -> VortexFile:
    """Open a file or an object.

    Raises:
        SourceError: it is no Vortex file, is cut short, or cannot be read.
    """
    import vortex

    path = f"{root.rstrip('/')}/{name}"
    seen = look(path)
    start = max(0, seen.size - _TAIL_BYTES)
    tail = b"".join(data for _, data in read_parts(path, seen, [(start, seen.size - start)]))
    key, remote = content_key(tail, seen.size, seen.mark), None if maps(path) else RemoteBytes(path, seen)
    given = {"segment_cache": segments, "cache_key": content_key(path, key)}
    with _storage(path, remote):
        opened: Any = (
            vortex.open(path, **given)
            if remote is None
            else vortex.open_readable(remote, concurrency=IN_FLIGHT, **given)
        )
        key = content_key(key, "origin", name) if origin else key
        schema, rows = _types(opened.dtype.to_arrow_schema()), len(opened)
        groups = tuple(stop - start for start, stop in opened.splits()) if rows else ()
        unit = Unit(name, rows, seen.size, key, groups)
        return VortexFile(path, opened, schema, unit, seen.size, seen.modified_ns, remote)


def _rows_at_once(file: VortexFile, columns: pa.Schema) -> int:
    """How many rows a scan asks for: Vortex returns all of a stretch in one piece, which texts and bytes could make large."""
    fixed = all(pa.types.is_primitive(field.type) for field in columns)
    row_bytes = file.size_bytes / max(1, file.unit.rows)
    return SCAN_ROWS if fixed else max(FEWEST, min(SCAN_ROWS, int(SCAN_BYTES / max(1.0, row_bytes))))


def _has_lists(field: pa.Field) -> bool:
    kind = field.type
    if pa.types.is_struct(kind):
        return any(_has_lists(kind.field(at)) for at in range(kind.num_fields))
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _types(schema: pa.Schema) -> pa.Schema:
    """The columns as they are read: no view types, which rows cannot be taken of."""
    fields = [field.with_type(pa.large_binary()) if pa.types.is_binary_view(field.type) else field for field in schema]
    return plain(pa.schema(fields))


@contextmanager
def _storage(path: str, remote: RemoteBytes | None = None) -> Iterator[None]:
    """Turn Vortex's failures into SourceError, Rust panics (a BaseException) included; or into the store's, if it failed."""
    try:
        yield
    except (SpiralError, MemoryError):
        raise
    except BaseException as error:
        if not is_failure(error):
            raise
        if remote is not None and remote.error is not None:
            raise anew(remote.error) from None
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        msg = f"Vortex file {cut(path)}: {cut(first)}. Check that the file is whole and has not changed"
        raise SourceError(msg) from error
