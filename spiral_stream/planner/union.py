"""The rows of a union, as a source: those of its sides, one side after the other. Nothing is copied.

A row of the union is a row of a side, found by its number. Columns are scanned in the sides and fetched from them, so
payload is read where it lies. The units are the storage shards of the sides: a changed or added shard of one side changes
that unit and no other.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
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
from spiral_stream.plan.tree import base_scan
from spiral_stream.planner.selection.find import Workplace, make_together
from spiral_stream.planner.selection.narrow_columns import KeptRelation
from spiral_stream.planner.side import Side
from spiral_stream.sources.arrow.views import no_rows
from spiral_stream.sources.pins import FileFacts, Pinned
from spiral_stream.sources.references.policy import Reach
from spiral_stream.sources.row_filter import needed, passing
from spiral_stream.sources.source import ROW, Reader, Source, Unit, content_key, without_columns
from spiral_stream.storage.store import Facts

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
        place = Workplace(source.root, opened, versions, cache(lambda name: KeptRelation(opened(name), source.root)))
        make_together([(node, opened(base_scan(node).relation)) for node in source.sides], place)
        self._sides = [Side(node, place) for node in source.sides]
        self.remote = any(side.base.remote for side in self._sides)
        self.node_kept = all(side.base.node_kept for side in self._sides)
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
        for side, own, first in zip(self._sides, self._units, self._firsts[:-1], strict=True):
            here = [k for k in range(len(own)) if (units is None or begin + k in units) and own[k].rows]
            begin += len(own)
            for batch in side.scan(read, here) if here else ():
                rows = pa.array(batch.column(ROW).to_numpy() + first)
                found = pa.table([*batch.columns[:-1], rows], schema=schema)
                yield from passing(found, predicate, [*columns, ROW]).to_batches()

    def fetch(self, rows: NDArray[np.uint64], columns: Sequence[str]) -> pa.Table:
        if not columns:
            return without_columns(len(rows))
        schema = pa.schema([self.schema.field(name) for name in columns])
        sides = np.searchsorted(self._firsts, rows, side="right") - 1
        tables, places = [no_rows(schema)], [np.empty(0, np.int64)]
        for k in np.unique(sides).tolist():
            at = np.flatnonzero(sides == k)
            found = self._sides[k].fetch(rows[at] - self._firsts[k], columns)
            tables.append(pa.table(found.columns, schema=schema))
            places.append(at)
        if len(tables) == 2:  # noqa: PLR2004  none, and one side
            return tables[1]
        back = np.empty(len(rows), np.int64)
        back[np.concatenate(places)] = np.arange(len(rows))
        return pa.concat_tables(tables).take(pa.array(back))

    def close(self) -> None:
        for side in self._sides:
            side.close()


@final
class AllPins:
    """What pins the files of several relations."""

    def __init__(self, pins: Sequence[Pinned]) -> None:
        self._pins = pins

    def fault(self, name: str, facts: FileFacts) -> str | None:
        """Say how a file differs from what was registered; None if it is as one of the relations says."""
        faults = [pins.fault(name, facts) for pins in self._pins]
        return None if None in faults else faults[0]

    def object_of(self, name: str) -> Facts | None:
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
