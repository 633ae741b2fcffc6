"""Rows of Parquet files with one schema: one unit per file, row groups are read in one go.

Files are sorted by name relative to their common folder. Parquet has no row
addresses, so a fetch decodes the needed columns of whole row groups; decoded
row groups stay in a cache bounded in bytes, because shuffled batches of one
block come back to the same groups: 256 rows of a block of 100,000 take 0.3 ms
of CPU once it is decoded, where ``pyarrow.dataset`` ``take`` needs 48 ms per call
(2 columns, row groups of 20,000).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.arguments import FLAG, check, class_door, of_kind
from spiral_stream.errors import SourceError
from spiral_stream.expr import Expr
from spiral_stream.sources.arrow.files import FilesReader
from spiral_stream.sources.arrow.table import as_plain
from spiral_stream.sources.columnar.parquet_file import (
    ParquetFile,
    chunks_of,
    opened_file,
    parquet_storage,
    read_footer,
    rows_at_once,
    scan_runs,
)
from spiral_stream.sources.files.listing import Paths, common_folder, listed, set_given_paths
from spiral_stream.sources.files.lru import Recent
from spiral_stream.sources.files.partition_columns import has_keys, hive_columns, need_equal, with_added
from spiral_stream.sources.row_filter import needed, passing, split_without
from spiral_stream.sources.source import ROW, Known, Reader, Source, ordinals_of

CACHE_BYTES: Final = 256 << 20  # decoded row groups kept by one reader
FOOTERS: Final = 4096  # held of known files: some 10 kB each
_SMALL_BYTES: Final = (
    4 << 20
)  # of row groups that one thread decodes: handing 1,000 rows to others costs twice their work


@final
@class_door(SourceError)
@dataclass(frozen=True, slots=True)
class Parquet(Source):
    """One Parquet file, a folder of them (searched below), a glob such as ``part-*.parquet``, a brace pattern, or a list.

    Args:
        path: file, folder, glob (``part-*.parquet``), brace pattern (``part-{000..127}.parquet``), or a list of these,
            on this machine or as URIs of an object store; ``~`` is expanded. The order of a list does not matter: files
            are read in the order of their names.
        base: folder that relative references are resolved against; by default
            the common folder of the files.
        allow_outside: whether references may name files that do not lie below ``base``; by default
            only where no base is given.
        hive: whether folders called ``key=value`` below the common folder become columns: int64 if all values of a key
            are whole numbers, else utf8. By default they do if there are any. Conditions on them leave files out. A
            key that the files store as a column too is refused, unless statistics show that all values are the folder's.
        origin: whether to add the columns ``__file__``, the name of a row's file below the common folder, and
            ``__index_in_file__``, its place in that file.

    Examples:
        >>> Path("parts").mkdir()
        >>> pq.write_table(text_rows, "parts/0.parquet")
        >>> entry = catalog.register("from-parquet", spiral.Parquet("parts/*.parquet"), identity="doc_id")
        >>> catalog.table("from-parquet").count()
        40
    """

    KIND: ClassVar[str] = "parquet"
    path: str | Sequence[str]
    base: str | None = None
    allow_outside: bool | None = None
    hive: bool | None = None
    origin: bool = False

    def __post_init__(self) -> None:
        set_given_paths(self, "Parquet")
        check(self, "Parquet", "=", SourceError, hive=of_kind(bool | None, "True, False or None"), origin=FLAG)

    @property
    def _paths(self) -> Paths:
        return self.path if isinstance(self.path, str) else tuple(self.path)

    def open(self) -> Reader:
        return self._open(*listed(self._paths, "Parquet", (".parquet",)), None)

    def open_known(self, known: Known) -> Reader:
        return self._open(common_folder(self._paths), known.names.to_pylist(), known)

    def pinned(self) -> "Parquet":
        if self.hive is not None:
            return self
        _, names = listed(self._paths, "Parquet", (".parquet",))
        return replace(self, hive=has_keys(names))

    def settled_by(self, before: Source) -> tuple[Source, str]:
        if self.hive is not None or not isinstance(before, Parquet) or before.hive is None:
            return self, ""
        settled = replace(self, hive=before.hive)
        if settled.hive or settled == self.pinned():
            return settled, ""
        return settled, (
            "it is registered without columns of its folders called name=value, and stays so. For the columns give hive=True and "
            "replace=True; hive=False says that it shall have none"
        )

    def _open(self, root: str, names: Sequence[str], known: Known | None) -> Reader:
        keyed = has_keys(names) if self.hive is None else self.hive
        of_files = hive_columns(root, names) if keyed else {}
        marks = [f"{key}: {values.type}" for key, values in of_files.items()] + ["origin"] * self.origin
        outside = bool(self.allow_outside)
        mark = ", ".join(marks)
        rows = ParquetReader(root, names, self.base or root, allow_outside=outside, known=known, mark=mark)
        stored = rows.stored_keys(of_files)
        return with_added(rows, {k: v for k, v in of_files.items() if k not in stored}, known, origin=self.origin)


@final
class ParquetReader(FilesReader[ParquetFile]):
    """Open Parquet files; holds footers and decoded row groups, no file handles.

    Args:
        root: the folder that they lie in.
        names: of the files, relative to it.
        base: folder that relative references start from.
        allow_outside: whether references may name files outside ``base``.
        known: the files that the source had; then footers are read when they are needed.
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
        super().__init__("Parquet file", root, names, known, None if known is None else FOOTERS)
        self.base, self.allow_outside, self._mark = base, allow_outside, mark
        self._cache = Recent(CACHE_BYTES)
        self._count()
        self.schema = _common_schema([self._file(unit) for unit in range(1 if known is not None else len(self._names))])

    def stored_keys(self, of_files: Mapping[str, pa.Array]) -> frozenset[str]:
        """Return the keys of folders that the files store as columns, with the same values.

        Raises:
            SourceError: a file stores other values.
        """
        found = frozenset(of_files) & frozenset(self.schema.names)
        for unit in range(len(self._names)) if found and self._known is None else ():
            file = self._file(unit)
            for key in sorted(found):
                need_equal(file.path, key, of_files[key][unit].as_py(), _ranges(file, key))
        return found

    def opened(self, unit: int) -> Any:
        """Return what Arrow reads the footer of a file by: its path, or an object whose footer is held."""
        return opened_file(self._file(unit))

    def _opened(self, unit: int) -> ParquetFile:
        return read_footer(self._root, self._names[unit], self._mark)

    def scan(
        self,
        columns: Sequence[str],
        predicate: Expr | None = None,
        units: Sequence[int] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        read = needed(columns, predicate)
        for unit in range(len(self._names)) if units is None else sorted(units):
            file = self._file(unit)
            groups, first = self._surviving(file, predicate), int(self._starts[unit])
            starts = (file.starts.astype(np.int64) + first).tolist()
            if not read:
                for group in groups:
                    yield from ordinals_of(starts[group], starts[group + 1])
                continue
            spans = [(starts[group], starts[group + 1]) for group in groups if starts[group] < starts[group + 1]]
            numbers = _Ordinals(spans)
            for batch in self.read_batches(file, groups, read) if spans else ():
                here = pa.array(numbers.next(len(batch)))
                table = pa.Table.from_batches([batch]).select(read).append_column(ROW, here)
                yield from passing(table, predicate, [*columns, ROW]).to_batches()

    def _fetch(self, rows: NDArray[np.uint64], columns: Sequence[str]) -> pa.Table:
        order, runs = self._by_group(rows)
        pieces = []
        for unit, group, first, indices in runs:
            offsets = pa.array(rows[indices] - first)
            taken = {name: self._column(unit, group, name).take(offsets) for name in dict.fromkeys(columns)}
            pieces.append(pa.table(taken))
        together = pa.concat_tables(pieces)
        if (order[1:] < order[:-1]).any():
            back = np.empty(len(rows), dtype=np.int64)
            back[order] = np.arange(len(rows))
            together = together.take(pa.array(back))
        fields = [self.schema.field(name) for name in columns]
        return pa.table([together.column(name) for name in columns], schema=pa.schema(fields))

    def _by_group(
        self, rows: NDArray[np.uint64]
    ) -> tuple[NDArray[np.intp], list[tuple[int, int, np.uint64, NDArray[np.intp]]]]:
        """Order rows by row group. Each run is: file, row group, the group's first row, and the places of its rows."""
        units = np.searchsorted(self._starts, rows, side="right") - 1
        order = np.argsort(units, kind="stable")
        runs = []
        for indices in np.split(order, np.flatnonzero(np.diff(units[order])) + 1):
            unit = int(units[indices[0]])
            first, starts = self._starts[unit], self._file(unit).starts
            groups = np.searchsorted(starts, rows[indices] - first, side="right") - 1
            by = np.argsort(groups, kind="stable")
            for at in np.split(by, np.flatnonzero(np.diff(groups[by])) + 1):
                group = int(groups[at[0]])
                runs.append((unit, group, first + starts[group], indices[at]))
        return np.concatenate([indices for *_, indices in runs]), runs

    def close(self) -> None:
        super().close()
        self._cache.clear()

    def _surviving(self, file: ParquetFile, predicate: Expr | None) -> list[int]:
        """Row groups of a file that its statistics cannot rule out."""
        import pyarrow.dataset as pads
        from pyarrow.fs import LocalFileSystem

        from spiral_stream.dialects.arrow import to_parquet
        from spiral_stream.dialects.pushdown import split

        compared, _ = split_without(predicate, self.schema, frozenset(_extensions(self.schema)))
        lowered, _ = split(compared, self.schema, to_parquet)
        if lowered is None or file.has_views:  # statistics are compared in the file's own types
            return list(range(file.footer.num_row_groups))
        with parquet_storage(file):
            expression = to_parquet(lowered, self.schema)
            form = pads.ParquetFileFormat()
            local = file.held is None
            fragment = (
                form.make_fragment(file.path, filesystem=LocalFileSystem())
                if local
                else form.make_fragment(opened_file(file))
            )
            fragments = fragment.split_by_row_group(filter=expression, schema=self.schema)
            return sorted(group.id for piece in fragments for group in piece.row_groups)

    def read_batches(self, file: ParquetFile, groups: list[int], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        import pyarrow.parquet as pq

        for run in scan_runs(file, groups, columns):  # Arrow holds what is stored of all groups that it is given
            chunks = chunks_of(file, run, columns)
            with parquet_storage(file), pq.ParquetFile(opened_file(file, chunks), metadata=file.footer) as opened:
                threads = sum(file.footer.row_group(g).total_byte_size for g in run) >= _SMALL_BYTES
                read = {"row_groups": run, "columns": list(columns), "use_threads": threads}
                batches = opened.iter_batches(batch_size=rows_at_once(file, run[0], columns), **read)
                while True:
                    batch = next(batches, None)
                    self._need_unchanged(file)
                    if batch is None:
                        break
                    yield as_plain(batch) if file.has_views else batch

    def _column(self, unit: int, group: int, name: str) -> pa.ChunkedArray:
        """One decoded column of one row group, from the cache or the file."""
        found = self._cache.get((unit, group, name))
        if found is None:
            import pyarrow.parquet as pq

            file = self._file(unit)
            chunks = chunks_of(file, [group], [name])
            with parquet_storage(file), pq.ParquetFile(opened_file(file, chunks), metadata=file.footer) as opened:
                table = opened.read_row_group(group, columns=[name])
                found = (as_plain(table) if file.has_views else table).column(name)
            self._need_unchanged(file)
            self._cache.put((unit, group, name), found)
        return found


def _extensions(schema: pa.Schema) -> list[str]:
    """Columns that Arrow compares with no statistics."""
    return [field.name for field in schema if isinstance(field.type, pa.BaseExtensionType)]


@final
class _Ordinals:
    """The rows of some runs, end to end, as many at a time as are asked for.

    Args:
        runs: first row and end of each.
    """

    def __init__(self, runs: Sequence[tuple[int, int]]) -> None:
        self._runs, self._at, self._next = runs, 0, runs[0][0] if runs else 0

    def next(self, count: int) -> NDArray[np.uint64]:
        """Return the next rows: shape [count], uint64."""
        found = []
        while count:
            end = self._runs[self._at][1]
            some = min(count, end - self._next)
            found.append(np.arange(self._next, self._next + some, dtype=np.uint64))
            count, self._next = count - some, self._next + some
            if self._next == end and self._at + 1 < len(self._runs):
                self._at += 1
                self._next = self._runs[self._at][0]
        return found[0] if len(found) == 1 else np.concatenate([np.empty(0, np.uint64), *found])


def _common_schema(files: Sequence[ParquetFile]) -> pa.Schema:
    first = files[0]
    for file in files[1:]:
        if not file.schema.equals(first.schema):
            msg = (
                f"Parquet: {file.path} differs from {first.path}: {_difference(first.schema, file.schema)}. "
                f"Rewrite it, or register the files separately, under names, and put them together: {_together(first, file)}"
            )
            raise SourceError(msg)
    return first.schema


def _ranges(file: ParquetFile, name: str) -> list[tuple[Any, Any] | None]:
    """Least and greatest value of a column in each row group; None where statistics do not say, or there are nulls."""
    at = file.footer.schema.names.index(name) if name in file.footer.schema.names else -1
    found = []
    for group in range(file.footer.num_row_groups):
        facts = file.footer.row_group(group).column(at).statistics if at >= 0 else None
        unsure = facts is None or not facts.has_min_max or not facts.has_null_count or facts.null_count
        found.append(None if facts is None or unsure else (facts.min, facts.max))
    return found


def _together(first: ParquetFile, file: ParquetFile) -> str:
    """How two relations become one whose columns are alike."""
    more, less = (
        [name for name in one.schema.names if name not in other.schema.names]
        for one, other in ((file, first), (first, file))
    )
    if not (more or less):
        return "a.union(b), with columns alike by select(...) and cast(...)"
    a, b = (f".drop({', '.join(f'{name!r}' for name in names[:3])})" if names else "" for names in (less, more))
    return (
        f'a{a}.union(b{b}), or catalog.sql("select * from a union all by name select * from b"), which fills with nulls'  # noqa: S608
    )


def _difference(left: pa.Schema, right: pa.Schema) -> str:
    for name in [*left.names, *right.names]:
        if name not in right.names:
            return f"it lacks column {name!r}"
        if name not in left.names:
            return f"it has a column {name!r} more"
        if left.field(name) != right.field(name):
            return f"column {name!r} is {right.field(name)}, not {left.field(name)}"
    return f"its columns are in the order {', '.join(right.names)}, not {', '.join(left.names)}"
