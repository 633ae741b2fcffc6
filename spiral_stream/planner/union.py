"""The rows of a union as a source: the rows of its sides, one side after the other. Nothing is copied.

A row of the union is a row of a side, found by its number. Columns are scanned in the sides and fetched from them, so
payload is read where it lies. The units are the storage shards of the sides: a changed or added shard of one side changes
that unit and no other.

A side is the rows of one relational plan, read as those of a relation; `aggregate` groups the rows of one, too. They are
counted in the order of `to_arrow`: that of the base relation, or of the last sort.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import ClassVar, Final, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.catalog.relation.entry import Entry
from spiral_stream.catalog.relation.pin import reference_columns
from spiral_stream.catalog.relation.reader import OpenRelation
from spiral_stream.errors import PlanError, cut
from spiral_stream.expr import Expr
from spiral_stream.plan import nodes
from spiral_stream.plan.saving.fingerprint import canonical, digest
from spiral_stream.plan.tree import base_scan, relations_of, spine
from spiral_stream.planner.selection.fetched_columns import UInt64, leaf_of
from spiral_stream.planner.selection.find import Workplace, make_together
from spiral_stream.planner.selection.narrow_columns import NarrowSource
from spiral_stream.planner.selection.selected import select
from spiral_stream.planner.selection.sorted import sorted_rows
from spiral_stream.sources.arrow.table import no_rows
from spiral_stream.sources.change_detection import content_key
from spiral_stream.sources.pins import Pinned
from spiral_stream.sources.references.policy import Reach
from spiral_stream.sources.row_filter import needed, passing
from spiral_stream.sources.source import ROW, Reader, Source, Unit, without_columns
from spiral_stream.storage.store import ObjectStat

_VERSION: Final = 1  # of what enters content keys
_CHUNK: Final = 1 << 16  # rows that are fetched at a time where they are sorted
_SORTED_ROWS: Final = 1 << 20  # of one unit


@final
class Side:
    """The surviving rows of a plan over one relation. Thread-safe."""

    def __init__(self, node: nodes.Node, workplace: Workplace) -> None:
        """Find the rows.

        Args:
            node: a relational plan over a relation that ``workplace`` knows.
            workplace: where relations are opened and derived files lie.

        Raises:
            PlanError: a join finds several right rows for one left row.
            CacheError: the prepared folder cannot be written.
        """
        self.base = workplace.open_relation(base_scan(node).relation)
        self._selected = select(node, self.base, workplace)
        self.schema, self.total = node.schema(), self._selected.total
        chosen = any(isinstance(each, nodes.Distinct | nodes.Limit | nodes.Sort) for each in spine(node))
        depends_on = () if chosen else (self.base.entry.name,)  # verbs that look at all rows depend on all shards
        others = {name: workplace.versions[name] for name in sorted(set(relations_of(node)) - set(depends_on))}
        self._about = digest([_VERSION, canonical(node), others])
        is_sorted = any(isinstance(each, nodes.Sort) for each in spine(node))
        self._sorted = sorted_rows(self._selected, node, workplace.open_relation) if is_sorted and self.total else None

    def units(self) -> list[Unit]:
        """Return the pieces in which the rows lie: the storage shards of the relation, or parts of the sorted rows."""
        if self._sorted is not None:
            starts = [*range(0, self.total, _SORTED_ROWS), self.total]
            return [self._unit(f"{at:012d}", str(at), [end - at]) for at, end in pairwise(starts)]
        rows, shards = self._selected.units()
        manifest = self.base.manifest
        ends = np.searchsorted(shards, np.arange(len(manifest.shard_names)), side="right").tolist()
        names, keys = manifest.shard_names.to_pylist(), manifest.content_keys.to_pylist()
        groups = [rows[begin:end] for begin, end in pairwise([0, *ends])]
        return [
            self._unit(name, key, each[each > 0].tolist()) for name, key, each in zip(names, keys, groups, strict=True)
        ]

    def scan(self, columns: Sequence[str], units: Sequence[int]) -> Iterator[pa.RecordBatch]:
        """Read columns of some units, with the rows in `ROW`; batches come as the relation is stored."""
        if self._sorted is None:
            yield from self._as_stored(columns, units)
            return
        for unit in units:
            end = min(self.total, (unit + 1) * _SORTED_ROWS)
            for at in range(unit * _SORTED_ROWS, end, _CHUNK):
                rows = np.arange(at, min(end, at + _CHUNK), dtype=np.uint64)
                yield from _batches(rows, self.fetch(rows, columns))

    def in_order(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Read columns of all rows in their order, with the rows in `ROW`; memory holds a shard where it lies in pieces."""
        starts, shards = self.base.manifest.run_start, range(len(self.base.manifest.shard_names))
        scattered = len(starts) > len(shards)
        for unit in shards if self._sorted is None else range(len(self.units())):
            batches = self.scan(columns, [unit])
            if scattered and self._sorted is None:
                found = list(batches)
                yield from pa.Table.from_batches(found).sort_by(ROW).to_batches() if found else ()
            else:
                yield from batches

    def fetch(self, rows: UInt64, columns: Sequence[str]) -> pa.Table:
        """Read columns of rows by number, in the order asked."""
        return self._selected.columns.fetch(rows if self._sorted is None else self._sorted.rows(rows), columns)

    def _as_stored(self, names: Sequence[str], shards: Sequence[int]) -> Iterator[pa.RecordBatch]:
        """Read columns of all surviving rows of some storage shards, in the order in which the relation is stored."""
        columns, survivors = self._selected.columns, self._selected.rows
        leaves = sorted({leaf for name in names for leaf in columns.env[name].columns()})
        base_leaves = [leaf for leaf in leaves if leaf_of(leaf)[0] is None]
        for batch in self.base.scan(base_leaves, None, shards):
            rows, survives = survivors.rows(batch.column(ROW).to_numpy())
            table = pa.table({name: batch.column(name) for name in base_leaves})
            if not survives.all():
                rows, table = rows[survives], table.filter(pa.array(survives)) if base_leaves else table
            if len(rows):
                yield from _batches(rows, columns.computed(rows, table, names))

    def close(self) -> None:
        """Release the relations."""
        self._selected.close()

    def _unit(self, name: str, key: str, groups: list[int]) -> Unit:
        return Unit(name, sum(groups), None, content_key(self._about, name, key), tuple(groups))


def _batches(rows: UInt64, table: pa.Table) -> Iterator[pa.RecordBatch]:
    numbered = pa.table([*table.columns, pa.array(rows)], names=[*table.column_names, ROW])
    yield from numbered.combine_chunks().to_batches()


_BETWEEN: Final = "/"  # the number of a side, and the name of its unit


@final
@dataclass(frozen=True, slots=True, eq=False)
class UnionRows(Source):
    """The rows of several relational plans with the same columns, each over one relation.

    Args:
        sides: the plans.
        entries: the relations that they read.
        columns: of the union.
        root: of derived files.
    """

    KIND: ClassVar[str] = "union"
    sides: tuple[nodes.Node, ...]
    entries: tuple[Entry, ...]
    columns: pa.Schema
    root: Path

    def open(self) -> "UnionReader":
        return UnionReader(self)


@final
class UnionReader(Reader):
    """The sides of a union, open."""

    def __init__(self, source: UnionRows) -> None:
        """Open the sides; their surviving rows are found if nobody found them before.

        Raises:
            PlanError: the sides name files from different folders.
        """
        self.schema = source.columns
        entries = {entry.name: entry for entry in source.entries}
        opened = cache(lambda name: OpenRelation(entries[name]))
        versions = {name: entry.data_version for name, entry in entries.items()}
        workplace = Workplace(
            source.root, opened, versions, cache(lambda name: NarrowSource(opened(name), source.root))
        )
        make_together([(node, opened(base_scan(node).relation)) for node in source.sides], workplace)
        self._sides = [Side(node, workplace) for node in source.sides]
        self.remote = any(side.base.remote for side in self._sides)
        self.node_cached = all(side.base.node_cached for side in self._sides)
        self._firsts = np.cumsum([0, *(side.total for side in self._sides)]).astype(np.uint64)
        self._units = [side.units() for side in self._sides]
        reaches = [side.base.base for side in self._sides]
        self.base, self.allow_outside = reaches[0].folder, not reaches[0].confined
        if reference_columns(self.schema):
            _need_one_folder(reaches)
        pins = [reach.pins for reach in reaches]
        self.pinned_by = AllPins([each for each in pins if each is not None]) if None not in pins else None

    def units(self) -> Sequence[Unit]:
        digits = len(str(len(self._sides) - 1))
        return [
            replace(unit, name=f"{k:0{digits}d}{_BETWEEN}{unit.name}", content_key=content_key(k, unit.content_key))
            for k, units in enumerate(self._units)
            for unit in units
        ]

    def scan(
        self, columns: Sequence[str], predicate: Expr | None = None, units: Sequence[int] | None = None
    ) -> Iterator[pa.RecordBatch]:
        read = needed(columns, predicate)
        schema = pa.schema([*(self.schema.field(name) for name in read), pa.field(ROW, pa.uint64())])
        begin = 0
        for side, side_units, first in zip(self._sides, self._units, self._firsts[:-1], strict=True):
            here = [k for k in range(len(side_units)) if (units is None or begin + k in units) and side_units[k].rows]
            begin += len(side_units)
            for batch in side.scan(read, here) if here else ():
                rows = pa.array(batch.column(ROW).to_numpy() + first)
                found = pa.table([*batch.columns[:-1], rows], schema=schema)
                yield from passing(found, predicate, [*columns, ROW]).to_batches()

    def fetch(self, rows: NDArray[np.uint64], columns: Sequence[str]) -> pa.Table:
        if not columns:
            return without_columns(len(rows))
        schema = pa.schema([self.schema.field(name) for name in columns])
        sides = np.searchsorted(self._firsts, rows, side="right") - 1
        tables, indices = [no_rows(schema)], [np.empty(0, np.int64)]
        for k in np.unique(sides).tolist():
            at = np.flatnonzero(sides == k)
            found = self._sides[k].fetch(rows[at] - self._firsts[k], columns)
            tables.append(pa.table(found.columns, schema=schema))
            indices.append(at)
        if len(tables) == 2:  # noqa: PLR2004  none, and one side
            return tables[1]
        back = np.empty(len(rows), np.int64)
        back[np.concatenate(indices)] = np.arange(len(rows))
        return pa.concat_tables(tables).take(pa.array(back))

    def close(self) -> None:
        for side in self._sides:
            side.close()


@final
class AllPins:
    """What pins the files of several relations."""

    def __init__(self, pins: Sequence[Pinned]) -> None:
        self._pins = pins

    def fault(self, name: str, size: int, mark: int, inode: int | None = None, etag: str | None = None) -> str | None:
        """Say how a file differs from what was registered; None if it is as one of the relations says."""
        faults = [pins.fault(name, size, mark, inode, etag) for pins in self._pins]
        return None if None in faults else faults[0]

    def object_of(self, name: str) -> ObjectStat | None:
        """Return what an object was like, where the relations that know it agree."""
        found = {pins.object_of(name) for pins in self._pins} - {None}
        return found.pop() if len(found) == 1 else None


def _need_one_folder(reaches: Sequence[Reach]) -> None:
    """Refuse references that mean other files, or may name others, depending on the side.

    Raises:
        PlanError: names both folders.
    """
    first = reaches[0]
    for reach in reaches[1:]:
        if (reach.folder, reach.confined) != (first.folder, first.confined):
            found = f"{cut(first.folder)} on one side and {cut(reach.folder)} on another"
            if reach.folder == first.folder:
                found = "confined to their folder on one side only"
            msg = (
                f"sample: the union names files, and these lie in {found}. Register the sides with one base=... and one "
                "allow_outside=..., or mix the relations as streams: spiral_stream.mix([...])"
            )
            raise PlanError(msg)
