"""Read a registered relation by logical ordinals, whatever its source.

This is the one data plane: `to_arrow`, the relational part and the prepared
stream all read columns through `OpenRelation.scan` and `OpenRelation.fetch`, as
Arrow arrays that NumPy views without a copy where they have fixed width.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Self, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.catalog.names import suggestions
from spiral_stream.catalog.relation.entry import STORAGE_SHARD, Entry
from spiral_stream.catalog.relation.on_store import bring_rows
from spiral_stream.catalog.relation.row_identity import ROW_ID, is_made, row_ids
from spiral_stream.catalog.relation.shard_rows import SourceRows
from spiral_stream.catalog.shared.mirror import home_of
from spiral_stream.errors import SourceError, cut
from spiral_stream.expr import Expr
from spiral_stream.sources.pins import source_file_name
from spiral_stream.sources.references.policy import Reach
from spiral_stream.sources.row_filter import needed, passing, split_without
from spiral_stream.sources.source import ROW, Known, Spans, without_columns

UInt64 = NDArray[np.uint64]
LARGE: Final = (
    1_000  # units; those of a larger relation are looked at when they are first read, and not when it is opened
)


@final
class OpenRelation:
    """An open relation. Thread-safe if its source's reader is; use as a context manager.

    Raises:
        SourceError: the source cannot be read, or is no longer what was registered.
    """

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.schema: pa.Schema = entry.schema
        self.manifest = entry.manifest()
        bring_rows(entry)
        pins = entry.pins(self.manifest)
        units = self.manifest
        large = len(units.unit_names) > LARGE
        known = Known(units.unit_names, units.unit_rows, units.unit_keys)
        try:
            self._reader = entry.source.open_known(known) if large else entry.source.open()
        except SourceError as error:
            again = ". Or register the rows again with replace=True" if entry.is_copy else ""
            if not again and "<name>" not in str(error):
                raise
            raise SourceError(f"{entry.name}: {error}{again}".replace("<name>", f'"{entry.name}"')) from error
        self._looked = np.zeros(len(units.unit_names), dtype=np.bool_)  # [U] whether a unit's files are as registered
        self._unit_starts = np.concatenate([[0], np.cumsum(units.unit_rows)]).astype(np.uint64)
        pinned = self._reader.pinned_by if pins is None else pins
        self._reach = Reach(self._reader.base, confined=not self._reader.allow_outside, pins=pinned)
        try:
            if not self._reader.trusting:
                self._refuse_changes()
                self._refuse_edits(None)
                self._looked[:] = True
            self._refuse_types()
        except BaseException:
            self._reader.close()
            raise
        self._closed = False
        self.synthesised = frozenset(self.schema.names) - frozenset(self._reader.schema.names)  # storage_shard, ROW_ID
        self._row_ids = row_ids(units) if ROW_ID in self.synthesised else None

    @property
    def base(self) -> Reach:
        """Where relative references start, the files that they may name, and the pins of those files."""
        return self._reach

    @property
    def remote(self) -> bool:
        """Whether reading rows waits for a network."""
        return self._reader.remote

    @property
    def gone(self) -> bool:
        """Whether its rows can no longer be read: only what is stored of them."""
        return self._reader.gone

    @property
    def node_cached(self) -> bool:
        """Whether the node cache keeps what is read of its rows over a network."""
        return self._reader.node_cached

    def files(self) -> Mapping[str, str]:
        """Return the source's own local files: name within the source -> path."""
        return self._reader.files()

    def scan(
        self,
        columns: Sequence[str],
        predicate: Expr | None = None,
        shards: Sequence[int] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Read columns, with `ROW` (uint64 logical ordinals) appended.

        Batches come in physical order, which need not be logical order.

        Args:
            columns: which to read; may be empty.
            predicate: keep only rows for which it is true; pushed into the source.
            shards: indices into ``manifest.shard_names``; None reads all.

        Raises:
            SourceError: a column is unknown, or the storage failed.
        """
        self._refuse_unknown([*columns, *sorted(predicate.columns() if predicate is not None else ())])
        pushed, late = split_without(predicate, self.schema, self.synthesised)
        read = needed(columns, late)
        returned = pa.schema([*(self.schema.field(name) for name in columns), pa.field(ROW, pa.uint64())])
        stored = [name for name in read if name not in self.synthesised]
        units = None if shards is None else self.manifest.units_of(shards)
        others = units is not None and self._have_others(units, shards)
        self._look_at(units)
        for batch in self._reader.scan(stored, pushed, units):
            table = self._with_made(pa.Table.from_batches([batch]), read)
            if others:
                table = table.filter(pa.array(np.isin(self._shards_of(table), np.asarray(shards))))
            passed = passing(table, late, [*columns, ROW]).combine_chunks()
            yield from pa.table(passed.columns, schema=returned).to_batches()

    def fetch(self, ordinals: UInt64, columns: Sequence[str]) -> pa.Table:
        """Read rows by logical ordinal.

        Args:
            ordinals: shape [P], uint64, in any order, repeats allowed.
            columns: which to read. Blobs come back as ``large_binary``.

        Returns:
            a table of P rows, in the order asked.

        Raises:
            SourceError: a column is unknown, an ordinal is out of range, or the storage failed.
        """
        self._refuse_unknown(columns)
        ordinals = np.asarray(ordinals, dtype=np.uint64)
        stored = [name for name in columns if name not in self.synthesised]
        rows = self._physical(ordinals)
        table = self._reader.fetch(rows, stored) if stored or not columns else without_columns(len(rows))
        arrays = [table.column(name) if name in stored else self._made(name, ordinals, rows) for name in columns]
        if not arrays:
            return table
        return pa.table(arrays, schema=pa.schema([self.schema.field(name) for name in columns]))

    @property
    def mapped_lists(self) -> frozenset[str]:
        """Columns of lists of integers that lie in mapped files, for `spans`."""
        return self._reader.mapped_lists

    def spans(self, ordinals: UInt64, column: str) -> Spans:
        """Find the lists of rows by logical ordinal, without reading them; arguments and errors as `fetch`.

        Args:
            ordinals: shape [P], uint64.
            column: one of `in_place`.
        """
        return self._reader.spans(self._physical(ordinals), column)

    def by_shard(self) -> SourceRows:
        """Return the rows as registration saw them: pieces that it made are found by the same keys."""
        return SourceRows(self.entry.source, self.manifest, self._reader, self._look_at)

    def close(self) -> None:
        """Release the source's handles."""
        self._closed = True
        self._reader.close()

    def __reduce__(self) -> tuple[type["OpenRelation"], tuple[Entry]]:
        """A copy in another process opens the source itself."""
        return OpenRelation, (self.entry,)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _physical(self, ordinals: UInt64) -> UInt64:
        """The source's ordinals of rows, whose units are as they were registered.

        Raises:
            SourceError: an ordinal is out of range, or a unit changed.
        """
        ordinals = np.asarray(ordinals, dtype=np.uint64)
        if len(ordinals) and int(ordinals.max()) >= self.manifest.total:
            msg = f"{self.entry.name}: row {int(ordinals.max())} was asked for, but it has {self.manifest.total} rows"
            raise SourceError(msg)
        rows = self.manifest.physical(ordinals)
        if not self._looked.all():
            self._look_at(np.unique(np.searchsorted(self._unit_starts, rows, side="right") - 1))
        return rows

    def _with_made(self, table: pa.Table, columns: Sequence[str]) -> pa.Table:
        """The table with logical ordinals in `ROW` and, where asked, the columns that are computed."""
        physical = table.column(ROW).to_numpy()
        logical = self.manifest.logical(physical)
        stored = frozenset(table.column_names)
        arrays = {
            name: table.column(name) if name in stored else self._made(name, logical, physical) for name in columns
        }
        return pa.table({**arrays, ROW: pa.array(logical)})

    def _made(self, name: str, logical: UInt64, physical: UInt64) -> pa.Array | pa.ChunkedArray:
        """A column that no source stores: the rows' identities, or their storage shards."""
        if name == ROW_ID:
            assert self._row_ids is not None
            return self._row_ids.of(physical)
        return self.manifest.shard_names.take(pa.array(self.manifest.shard_of(logical)))

    def _have_others(self, units: Sequence[int], shards: Sequence[int] | None) -> bool:
        """Whether physical units have rows of other shards too."""
        wanted = self.manifest.shard_rows[np.unique(np.asarray(shards, dtype=np.int64))].sum()
        return bool(self.manifest.unit_rows[np.asarray(units, dtype=np.int64)].sum() != wanted)

    def _shards_of(self, table: pa.Table) -> NDArray[np.intp]:
        return self.manifest.shard_of(table.column(ROW).to_numpy())

    def _refuse_unknown(self, columns: Sequence[str]) -> None:
        if self._closed:
            msg = f"{self.entry.name}: the relation is closed. Open it again: OpenRelation(entry)"
            raise SourceError(msg)
        for name in columns:
            if name not in self.schema.names:
                msg = f"{self.entry.name}: {name!r} is not a column; {suggestions(name, self.schema.names)}"
                raise SourceError(msg)

    def _refuse_changes(self) -> None:
        """Compare the source's units with those registered; needs no row."""
        units = self._reader.units()
        changed = self.manifest.changed_units(units)
        if not changed:
            return
        first, then, now = changed[0], self.manifest.unit_names.to_pylist(), [unit.name for unit in units]
        kind = "new" if first not in then else "gone" if first not in now else "changed"
        more = f", and {len(changed) - 1} more" if len(changed) > 1 else ""
        msg = (
            f"{self.entry.name}: storage shard {first!r}{self._holding(first)} is {kind} since registration{more}. "
            f"{self.entry.way_out}, or restore it"
        )
        raise SourceError(msg)

    def _look_at(self, units: Sequence[int] | NDArray[np.intp] | None) -> None:
        """Compare the files of units (None: all) with what they were like at registration, when they are first read."""
        units = np.arange(len(self._looked)) if units is None else np.asarray(units, dtype=np.intp)
        new = units[~self._looked[units]]
        if len(new):
            self._refuse_edits(new.tolist())
            self._looked[new] = True

    def _refuse_edits(self, units: Sequence[int] | None) -> None:
        """Compare the source's own files with what they were like when it was registered; 8 us each."""
        pins, source_files = self._reach.pins, home_of(self.entry.root).lasting(self._reader.files(units))
        for name, path in source_files.items() if pins is not None else ():
            assert pins is not None
            try:
                now = os.stat(path)  # noqa: PTH116
                fault = pins.fault(source_file_name(name), now.st_size, now.st_mtime_ns, now.st_ino)
            except OSError as error:
                way_out = self.entry.way_out
                fault = f"{error.strerror}. Restore the file, or {way_out[0].lower()}{way_out[1:]}"
            if fault is not None:
                msg = f"{self.entry.name}: {cut(path)} {fault}"
                raise SourceError(msg)

    def _refuse_types(self) -> None:
        """Compare the columns' types with those registered, which a changed catalog may have otherwise."""
        for field in self.schema:
            if field.name not in self._reader.schema.names:
                if field.name == STORAGE_SHARD or is_made(field):
                    continue
                found = "is not there"
            elif self._reader.schema.field(field.name).type != field.type:
                found = f"is {self._reader.schema.field(field.name).type}, registered as {field.type}"
            else:
                continue
            msg = f"{self.entry.name}: column {cut(field.name)!r} {found}. {self.entry.way_out}, or restore it"
            raise SourceError(msg)

    def _holding(self, unit: str) -> str:
        """The logical shards of a physical unit, if they are called otherwise."""
        names = self.manifest.unit_names.to_pylist()
        if unit not in names:
            return ""
        ends = np.cumsum(self.manifest.unit_rows)
        of_unit = np.searchsorted(ends, self.manifest.run_physical, side="right") == names.index(unit)
        shards = np.unique(self.manifest.shard_of(self.manifest.run_start[of_unit]))
        held = [self.manifest.shard_names[int(shard)].as_py() for shard in shards[:3]]
        return "" if held in ([], [unit]) else f" (which holds {', '.join(held)})"
