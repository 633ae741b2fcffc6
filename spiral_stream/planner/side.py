"""The rows of one relational plan, read as those of a relation: one side of a union, or what an aggregate groups.

Rows are counted in the order of `to_arrow`: that of the base relation, or of the last sort. Nothing is copied; columns
are scanned and fetched where they lie.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final, final

import numpy as np
import pyarrow as pa

from spiral_stream.plan import nodes
from spiral_stream.plan.saving.fingerprint import canonical, digest
from spiral_stream.plan.tree import base_scan, spine
from spiral_stream.planner.selection.find import Workplace, read_by
from spiral_stream.planner.selection.late_columns import UInt64, place_of
from spiral_stream.planner.selection.selected import select
from spiral_stream.planner.selection.sorted import sorted_rows
from spiral_stream.sources.source import ROW, Unit, content_key

_VERSION: Final = 1  # of what enters content keys
_CHUNK: Final = 1 << 16  # rows that are fetched at a time where they are sorted
_SORTED_ROWS: Final = 1 << 20  # of one unit


@final
class Side:
    """The surviving rows of a plan over one relation. Thread-safe."""

    def __init__(self, node: nodes.Node, place: Workplace) -> None:
        """Find the rows.

        Args:
            node: a relational plan over a relation that ``place`` knows.
            place: where relations are opened and derived files lie.

        Raises:
            PlanError: a join finds several right rows for one left row.
            CacheError: the prepared folder cannot be written.
        """
        self.base = place.open_relation(base_scan(node).relation)
        self._selected = select(node, self.base, place)
        self.schema, self.total = node.schema(), self._selected.total
        chosen = any(isinstance(each, nodes.Distinct | nodes.Limit | nodes.Sort) for each in spine(node))
        own = () if chosen else (self.base.entry.name,)  # verbs that look at all rows depend on all shards
        others = {name: place.versions[name] for name in sorted(read_by(node) - set(own))}
        self._about = digest([_VERSION, canonical(node), others])
        is_sorted = any(isinstance(each, nodes.Sort) for each in spine(node))
        self._sorted = sorted_rows(self._selected, node, place.open_relation) if is_sorted and self.total else None

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
        own = [leaf for leaf in leaves if place_of(leaf)[0] is None]
        for batch in self.base.scan(own, None, shards):
            rows, survives = survivors.rows(batch.column(ROW).to_numpy())
            table = pa.table({name: batch.column(name) for name in own})
            if not survives.all():
                rows, table = rows[survives], table.filter(pa.array(survives)) if own else table
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
