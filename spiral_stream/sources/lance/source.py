"""Rows of a Lance dataset: one unit per fragment, addressed by live row number.

Physical ordinals are Lance's own row offsets: rows of all fragments in manifest order, deleted rows not counted. Blob columns
hold payload apart from the other columns, in the older form (v1) or the newer (v2). They are read as ``large_binary`` through
`read_blobs`, which coalesces requests: 80 to 110 us of CPU per row of 100 KB, as `take` of ``large_binary``.
"""

import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.arguments import FLAG, check, class_door
from spiral_stream.errors import SourceError, cut, shown
from spiral_stream.expr import Expr
from spiral_stream.sources.arrow.table import no_rows, plain, plain_column
from spiral_stream.sources.change_detection import content_key
from spiral_stream.sources.files.partition_columns import with_added
from spiral_stream.sources.files.paths import absolute, is_remote, not_found, outside_allowed
from spiral_stream.sources.files.watch import FileStamp, Watch, facts_of
from spiral_stream.sources.lance.calls import counting, lance_options, storage
from spiral_stream.sources.lance.lancedb import dataset_of, is_table
from spiral_stream.sources.row_filter import needed, passing, split_without
from spiral_stream.sources.schema import unreadable
from spiral_stream.sources.source import ROW, Known, Reader, Source, Unit, ordinals_of, without_columns
from spiral_stream.storage.open import need_answer

if TYPE_CHECKING:
    import lance


_BLOB_MARK: Final = b"lance-encoding:blob"


def is_blob(field: pa.Field) -> bool:
    """Whether a column of a Lance dataset is a blob, of either form."""
    return _BLOB_MARK in (field.metadata or {}) or "lance.blob" in str(field.type)


def as_read(field: pa.Field) -> pa.Field:
    """The blob as `scan` and `fetch` give it: plain ``large_binary``."""
    metadata = {k: v for k, v in (field.metadata or {}).items() if not k.startswith((b"lance-encoding:", b"ARROW:"))}
    return pa.field(field.name, pa.large_binary(), field.nullable, metadata or None)


GROUP_ROWS: Final = 4096  # rows read in one go; past some 64 rows longer runs gain little (facts, 3.1)
_EXTERNAL: Final = 3  # kind of a blob that lies in a file of its own
_SCAN: Final = {
    "io_buffer_size": 64 << 20
}  # else Lance reads ahead as much as it may: 4.4 bytes of memory per row of 8
_WIDE_SCAN: Final = {"batch_readahead": 2, "fragment_readahead": 1, "io_buffer_size": 32 << 20, "batch_size": 64}


@final
@class_door(SourceError)
@dataclass(frozen=True, slots=True)
class Lance(Source):
    """A Lance dataset, at one version or (until registered) at its newest.

    Args:
        uri: folder of the dataset, or its URI on an object store; ``~`` is expanded. Or a table of LanceDB on this
            machine, at the version it shows.
        version: which version; None is the newest when it is opened, or the version of the table.
        base: folder that relative references are resolved against; by default the folder that the dataset lies in.
        allow_outside: whether references may name files that do not lie below ``base``; by default only where no base is
            given.
        origin: whether to add the columns ``__file__``, the name of a row's fragment, and ``__index_in_file__``, its place
            among the fragment's rows.

    Examples:
        >>> import lance
        >>> dataset = lance.write_dataset(text_rows, "texts.lance")
        >>> entry = catalog.register("from-lance", spiral.Lance("texts.lance"), identity="doc_id")
        >>> catalog.table("from-lance").count()
        40
    """

    KIND: ClassVar[str] = "lance"
    uri: str
    version: int | None = None
    base: str | None = None
    allow_outside: bool | None = None
    origin: bool = False

    def __post_init__(self) -> None:
        check(self, "Lance", "=", SourceError, origin=FLAG)
        if is_table(self.uri):
            uri, version = dataset_of(self.uri)
            object.__setattr__(self, "uri", uri)
            object.__setattr__(self, "version", version if self.version is None else self.version)
        if isinstance(self.uri, list | tuple):
            msg = (
                f"Lance: {shown(self.uri)} are {len(self.uri)} datasets, and a source is one. Register each under a name of its "
                'own, and lay them end to end: catalog.table("a").union(catalog.table("b"))'
            )
            raise SourceError(msg)
        object.__setattr__(self, "uri", absolute(self.uri))
        object.__setattr__(self, "allow_outside", outside_allowed(self.base, self.allow_outside))
        if self.base is not None:
            object.__setattr__(self, "base", absolute(self.base))

    def open(self) -> Reader:
        return with_added(LanceReader(self), {}, None, origin=self.origin)

    def open_known(self, known: Known) -> Reader:
        return with_added(LanceReader(self, known), {}, known, origin=self.origin)

    def pinned(self) -> "Lance":
        with LanceReader(self) as reader:
            return replace(self, version=reader.version)


@final
class LanceReader(Reader):
    """An open Lance dataset at a fixed version.

    Args:
        source: the dataset.
        known: the fragments that it had; then their files are looked at when they are first read.
    """

    def __init__(self, source: Lance, known: Known | None = None) -> None:
        self.trusting = known is not None
        self._title = f"Lance dataset {source.uri}"
        self._dataset = _open(source)
        self.version = int(self._dataset.version)
        self.base = source.base or os.path.dirname(source.uri)  # noqa: PTH120  may be a remote URI
        self.allow_outside = bool(source.allow_outside)
        self._known, self._origin = known, source.origin
        self._root, self._local = source.uri, not is_remote(source.uri)
        self.remote, self.node_cached = not self._local, self._local  # Lance has a client of its own
        with self._called():  # Lance panics at a manifest whose types are damaged
            self._stored: pa.Schema = self._dataset.schema
            counts = [each.count_rows() for each in self._fragments] if known is None else known.rows
        self._rows = np.asarray(counts, dtype=np.uint64)
        self._starts = np.concatenate([[0], np.cumsum(self._rows)]).astype(np.uint64)
        self._deleted: dict[int, NDArray[np.uint64]] = {}
        self._lock = threading.Lock()
        self._blobs = tuple([field.name for field in self._stored if is_blob(field)])
        self.schema = plain(pa.schema([as_read(f) if f.name in self._blobs else f for f in self._stored]))
        if known is None and (wrong := [name for name in self.schema.names if unreadable(name)]):
            named = f"a column is called {shown(wrong[0])}"
            msg = f"{self._title}: {named}, which Lance cannot read by its name. Rename it, or drop it"
            raise SourceError(msg)
        self._paths: dict[int, list[str]] = {}  # of fragments that were looked at
        self._watch = Watch({})
        for unit in range(len(self._rows)) if known is None else ():
            self._paths_of(unit)

    def _called(self) -> AbstractContextManager[None]:
        """While Lance is called: its errors become ours, and what it asks of a store is counted."""
        local = self._local or self._dataset is None  # closed
        return storage(self._title) if local else counting(self._dataset.io_stats_incremental, self._title)

    @cached_property
    def _fragments(self) -> "list[lance.LanceFragment]":
        """The fragments in manifest order; 7 us each, which a plan over kept columns does not need."""
        with self._called():
            found = list(self._dataset.get_fragments())
        if self._known is not None and len(self._known.rows) != len(found):
            msg = (
                f"{self._title}: it had {len(self._known.rows):,} fragments when it was registered, now {len(found):,}. "
                "Take the data as it is now with catalog.refresh(<name>), or restore it"
            )
            raise SourceError(msg)
        return found

    @cached_property
    def _by_id(self) -> tuple[NDArray[np.uint64], NDArray[np.intp]]:
        """The fragments' ids in ascending order, and which fragment has each."""
        ids = np.array([each.fragment_id for each in self._fragments], dtype=np.uint64)
        units = np.argsort(ids)
        return ids[units], units

    def units(self) -> Sequence[Unit]:
        schema = plain(self._stored) if self._blobs else self.schema
        facts = repr([(field.name, str(field.type), field.nullable) for field in schema])
        with self._called():
            return [
                Unit(
                    name=f"fragment-{fragment.fragment_id:08d}",
                    rows=int(rows),
                    size_bytes=self._size_bytes(fragment),
                    content_key=_fragment_key(fragment, facts, self._origin),
                    groups=pieces_of(int(rows)),
                )
                for fragment, rows in zip(self._fragments, self._rows, strict=True)
            ]

    def files(self, units: Sequence[int] | None = None) -> Mapping[str, str]:
        wanted = range(len(self._rows)) if units is None else units
        return {os.path.relpath(path, self._root): path for unit in wanted for path in self._paths_of(unit)}

    def refuse_outside(self) -> None:
        import pyarrow.compute as pc

        for name in self._blobs if not self.allow_outside else ():
            if "lance.blob" not in str(self._stored.field(name).type):
                continue  # the older form has no files of others
            with self._called():
                scanner = self._dataset.scanner(columns=[name], blob_handling="blobs_descriptions")
                for batch in scanner.to_batches():
                    outside = batch.column(name).filter(
                        pc.equal(pc.struct_field(batch.column(name), "kind"), _EXTERNAL)
                    )
                    if len(outside):
                        msg = (
                            f"{self._title}: column {name!r} has blobs in files of their own, such as "
                            f"{cut(outside[0].as_py()['blob_uri'])}, which Lance reads wherever they are. Store the bytes "
                            "inline, name them in a struct<uri, offset, length>, or register with allow_outside=True"
                        )
                        raise SourceError(msg)

    def scan(
        self,
        columns: Sequence[str],
        predicate: Expr | None = None,
        units: Sequence[int] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        from spiral_stream.dialects.pushdown import all_of, split
        from spiral_stream.dialects.sql import to_lance

        chosen = range(len(self._rows)) if units is None else sorted(units)
        if not columns and predicate is None:
            for unit in chosen:
                yield from ordinals_of(int(self._starts[unit]), int(self._starts[unit + 1]))
            return
        # Lance 14 finds no null in a v1 blob column, so conditions on blobs are evaluated here.
        lowerable, on_blobs = split_without(predicate, self.schema, frozenset(self._blobs))
        pushed, residual = split(lowerable, self.schema, to_lance)
        late = all_of([part for part in (residual, on_blobs) if part is not None])
        read = needed(columns, late)
        schema = self._schema_of(read)
        options: dict[str, Any] = dict(_WIDE_SCAN if self._is_wide(read) else _SCAN)
        with self._called():
            scanner = self._dataset.scanner(
                columns=read,
                filter=None if pushed is None else to_lance(pushed, self.schema),
                fragments=[self._fragments[i] for i in chosen],
                with_row_address=True,
                scan_in_order=True,
                blob_handling="all_binary",
                **options,
            )
            batches = iter(scanner.to_batches())
        while True:
            with self._called():
                batch = next(batches, None)
            if batch is None:
                self._need_unchanged(chosen)
                return
            rows = self._physical(batch.column("_rowaddr").to_numpy())
            arrays = [plain_column(batch.column(name), self.schema.field(name).type) for name in read]
            found = pa.record_batch([*arrays, pa.array(rows)], schema=schema)
            if late is None:
                yield found
            else:
                yield from passing(found, late, [*columns, ROW]).to_batches()

    def fetch(self, rows: NDArray[np.uint64], columns: Sequence[str]) -> pa.Table:
        rows = np.ascontiguousarray(rows, dtype=np.uint64)
        if len(rows) and int(rows.max()) >= int(self._starts[-1]):
            msg = f"{self._title}: row {int(rows.max())} was asked for, but it has {int(self._starts[-1])} rows"
            raise SourceError(msg)
        schema = pa.schema([self.schema.field(name) for name in columns])
        if not len(rows):
            return no_rows(schema)
        if not columns:
            return without_columns(len(rows))
        distinct, inverse = np.unique(rows, return_inverse=True)
        in_order = len(distinct) == len(rows) and bool((inverse[1:] > inverse[:-1]).all())
        stored = [name for name in dict.fromkeys(columns) if name not in self._blobs]
        taken = None
        with self._called():
            if stored:
                taken = self._dataset.take(pa.array(distinct), columns=stored)
                taken = taken if in_order else taken.take(pa.array(inverse))
            blobs = {name: self._read_blobs(name, rows) for name in columns if name in self._blobs}
        self._need_unchanged(np.unique(np.searchsorted(self._starts, distinct, side="right") - 1).tolist())
        arrays = [
            blobs[name] if name in blobs else plain_column(taken.column(name), schema.field(name).type)  # type: ignore[union-attr]  # stored names imply a taken table
            for name in columns
        ]
        return pa.table(arrays, schema=schema)

    def close(self) -> None:
        self._fragments = []
        self._dataset = None

    def _read_blobs(self, name: str, rows: NDArray[np.uint64]) -> pa.Array:
        found = self._dataset.read_blobs(name, indices=pa.array(rows), preserve_order=True)
        return pa.array([payload for _, payload in found], pa.large_binary())

    def _is_wide(self, columns: Sequence[str]) -> bool:
        """Whether a scan could hold hundreds of MB in read-ahead (facts, 0.8)."""
        kinds = [self.schema.field(name).type for name in columns]
        return any(pa.types.is_large_binary(kind) or pa.types.is_binary(kind) for kind in kinds)

    def _schema_of(self, columns: Sequence[str]) -> pa.Schema:
        return pa.schema([*(self.schema.field(name) for name in columns), pa.field(ROW, pa.uint64())])

    def _physical(self, addresses: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Row addresses (fragment << 32 | offset) to physical ordinals, [P] -> [P]."""
        ids, offsets = addresses >> np.uint64(32), addresses & np.uint64(0xFFFFFFFF)
        rows = np.empty(len(addresses), dtype=np.uint64)
        known, units = self._by_id
        borders = np.flatnonzero(ids[1:] != ids[:-1]) + 1  # rows of a fragment come together
        for first, last in pairwise([0, *borders.tolist(), len(ids)] if len(ids) else []):
            unit = int(units[np.searchsorted(known, ids[first])])
            here = slice(first, last)
            deleted = self._deleted_offsets(unit)
            before = np.searchsorted(deleted, offsets[here]).astype(np.uint64) if len(deleted) else np.uint64(0)
            rows[here] = self._starts[unit] + offsets[here] - before
        return rows

    def _deleted_offsets(self, unit: int) -> NDArray[np.uint64]:
        """Offsets of a fragment's deleted rows, ascending; read once, 8 bytes each."""
        with self._lock:
            if unit not in self._deleted:
                fragment = self._fragments[unit]
                deleted = np.empty(0, dtype=np.uint64)
                if fragment.num_deletions:
                    with self._called():
                        live = self._dataset.scanner(columns=[], fragments=[fragment], with_row_address=True).to_table()
                    offsets = live.column("_rowaddr").to_numpy() & np.uint64(0xFFFFFFFF)
                    everything = np.arange(fragment.physical_rows, dtype=np.uint64)
                    deleted = np.setdiff1d(everything, offsets, assume_unique=True)
                self._deleted[unit] = deleted
            return self._deleted[unit]

    def _files_of(self, fragment: "lance.LanceFragment") -> dict[str, FileStamp]:
        """The local files of a fragment's rows, and what they are like; 5 us each.

        Raises:
            SourceError: one is gone, or has not the size that the manifest says.
        """
        found: dict[str, FileStamp] = {}
        for file in fragment.data_files() if self._local else ():
            if file.base_id is not None:
                continue  # in another folder, which only Lance knows
            path = os.path.join(self._root, "data", file.path)  # noqa: PTH118
            found[path] = facts = facts_of(os.stat(path))  # noqa: PTH116
            if file.file_size_bytes not in (None, facts[0]):
                msg = (
                    f"{self._title}: {cut(path)} has {facts[0]:,} bytes, its manifest says {file.file_size_bytes:,}. "
                    "Restore the file, or write the dataset again"
                )
                raise SourceError(msg)
            if self._blobs:
                found |= {str(each): facts_of(each.stat()) for each in Path(path).with_suffix("").glob("*.blob")}
        return found

    def _paths_of(self, unit: int) -> list[str]:
        """The local files of a fragment; the first call notes what they are like."""
        if unit not in self._paths:
            with self._called():
                found = self._files_of(self._fragments[unit])
            for path, facts in found.items():
                self._watch.know(path, facts)
            self._paths[unit] = list(found)
        return self._paths[unit]

    def _need_unchanged(self, units: Iterable[int]) -> None:
        self._watch.need_unchanged(path for unit in units for path in self._paths_of(unit))

    def _size_bytes(self, fragment: "lance.LanceFragment") -> int | None:
        """Bytes of the fragment's files; packed blobs lie in a folder named like the data file."""
        total = 0
        for file in fragment.data_files():
            if file.file_size_bytes is None:
                return None
            total += file.file_size_bytes
            if self._blobs and self._local:
                sidecar = Path(self._root, "data", file.path).with_suffix("")
                total += sum(entry.stat().st_size for entry in sidecar.glob("*.blob"))
        return total


def _open(source: Lance) -> "lance.LanceDataset":
    import lance

    if not is_remote(source.uri) and not Path(source.uri).is_dir():
        raise not_found(source.uri, "Lance dataset")
    options = lance_options(source.uri)
    need_answer(source.uri)
    try:
        with storage(f"Lance dataset {source.uri}"):
            return lance.dataset(source.uri, version=source.version, storage_options=options)
    except SourceError as error:
        if source.version is None:
            raise
        with storage(f"Lance dataset {source.uri}"):
            versions = [entry["version"] for entry in lance.dataset(source.uri, storage_options=options).versions()]
        msg = (
            f"Lance dataset {source.uri}: version {source.version} is gone; it has {versions[0]} to {versions[-1]}. "
            "Tag versions that streams use, or take the newest with catalog.refresh(<name>)"
        )
        raise SourceError(msg) from error


def _fragment_key(fragment: "lance.LanceFragment", facts: str, origin: bool) -> str:
    """Lance never rewrites a file: its name stands for its bytes. Rows that say their fragment's number differ by it."""
    files = [f"{file.path}{file.fields}{file.column_indices}" for file in fragment.data_files()]
    overlays = repr(fragment.metadata.overlays)
    said = ("origin", fragment.fragment_id) if origin else ()
    return content_key(facts, *files, str(fragment.deletion_file()), overlays, *said)


def pieces_of(rows: int) -> tuple[int, ...]:
    """Return the lengths of the pieces that a fragment of so many rows is read in."""
    full, rest = divmod(rows, GROUP_ROWS)
    return (GROUP_ROWS,) * full + ((rest,) if rest else ())
