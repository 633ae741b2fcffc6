"""The rows that a sampled plan keeps: built once, kept on disk, mapped by every rank.

A selection lies under the digest of the relational part and the data versions. It
holds the surviving row addresses (`relational.selection`), for each joined relation
that columns come from the row that stands beside, and a small JSON file that says
where each column comes from.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np
import pyarrow as pa

from spiral_stream import expr
from spiral_stream.catalog.opened import OpenRelation
from spiral_stream.plan import nodes
from spiral_stream.plan.fingerprint import canonical, digest
from spiral_stream.planner.columns import Columns, Right, Rowed, UInt64, in_memory
from spiral_stream.planner.select import Computed, choose
from spiral_stream.relational.identity_index import IdentityIndex, build_index
from spiral_stream.relational.publish import publish
from spiral_stream.relational.selection import Selection, whole
from spiral_stream.relational.selection_build import build_selection
from spiral_stream.sources.memory import MemoryReader

INDEX_ROWS = 1 << 16  # identities hashed at a time


@final
@dataclass(frozen=True, slots=True)
class Workplace:
    """Where prepared things lie, how relations are opened, and at which versions."""

    root: Path
    open_relation: Callable[[str], OpenRelation]
    versions: Mapping[str, str]


@final
class Selected:
    """The surviving rows of a plan over an open base relation."""

    def __init__(
        self, base: OpenRelation, rows: Selection, meta: Mapping[str, Any], folder: Path, place: Workplace
    ) -> None:
        self._base, self._rows, self._folder = base, rows, folder
        self.total = rows.total
        self.counts: tuple[tuple[str, int], ...] = tuple((what, left) for what, left in meta["counts"])
        self.pushed: str | None = meta["pushed"]
        self._firsts = np.concatenate([[0], np.cumsum(rows.counts)]).astype(np.uint64)
        self._beside = [_right(spec, folder, place) for spec in meta["rights"]]
        rights = [Right(beside, partial(rows.right, k)) for k, beside in enumerate(self._beside)]
        env = {name: expr.from_json(value) for name, value in meta["env"].items()}
        schema = pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(meta["schema"])))
        self.columns = Columns(base, rows.ordinals, rights, env, schema)

    def close(self) -> None:
        """Release the base relation and the joined ones."""
        for each in [self._base, *self._beside]:
            each.close()

    def offsets_of_shard(self, shard: int) -> UInt64:
        """The surviving rows of one storage shard, as offsets in it, ascending."""
        rows = np.arange(self._firsts[shard], self._firsts[shard + 1], dtype=np.uint64)
        offsets: UInt64 = self._rows.ordinals(rows) - self._base.manifest.starts[shard]
        return offsets

    def rows_of(self, ordinals: UInt64) -> UInt64:
        """Which surviving rows stand at these ordinals; those that do not survive are left out."""
        rows, survives = self._rows.rows(ordinals)
        kept: UInt64 = rows[survives]
        return kept

    def units(self) -> tuple[UInt64, UInt64]:
        """Surviving rows of each row group in logical order, and the shard each belongs to."""
        manifest = self._base.manifest
        starts = np.concatenate([[0], np.cumsum(manifest.group_rows)]).astype(np.uint64)
        return self._rows.unit_counts(starts), manifest.group_shards

    def index(self, identity: tuple[str, ...]) -> IdentityIndex:
        """Rows sorted by the hash of their identity; built at the first use."""
        folder = self._folder / f"index-{digest(list(identity))[:16]}"
        return build_index(folder, "", self._identities(identity))

    def _identities(self, identity: tuple[str, ...]) -> Any:
        for start in range(0, self.total, INDEX_ROWS):
            rows = np.arange(start, min(start + INDEX_ROWS, self.total), dtype=np.uint64)
            table = self.columns.fetch(rows, identity)
            values = [column.to_pylist() for column in table.columns]
            yield rows, values[0] if len(values) == 1 else [repr(row) for row in zip(*values, strict=True)]


def select(sample: nodes.Sample, base: OpenRelation, place: Workplace) -> Selected:
    """The surviving rows of a plan: from disk if they were settled before.

    Raises:
        PlanError: a join finds several right rows for one left row.
        CacheError: the prepared folder cannot be written.
    """
    folder = place.root / "selections" / digest([canonical(sample.source), dict(place.versions)])
    meta_file = folder / "selected.json"
    if not meta_file.exists():
        _settle(sample, base, place, folder)
    meta = json.loads(meta_file.read_text())
    rows = whole(base.manifest.starts) if meta["whole"] else Selection.open(folder / "rows")
    return Selected(base, rows, meta, folder, place)


def _settle(sample: nodes.Sample, base: OpenRelation, place: Workplace, folder: Path) -> None:
    def opened(name: str) -> OpenRelation:
        return base if name == base.entry.name else place.open_relation(name)

    chosen = choose(sample.source, opened)
    with publish(folder) as work:
        if chosen.ordinals is not None:
            beside = [index for _, index in chosen.rights]
            build_selection(work / "rows", base.manifest.starts, [(chosen.ordinals, beside)], len(beside))
        meta = {
            "whole": chosen.ordinals is None,
            "counts": chosen.counts,
            "pushed": None if chosen.pushed is None else str(chosen.pushed),
            "rights": [_keep_right(rows, work / f"right{k}.arrow") for k, (rows, _) in enumerate(chosen.rights)],
            "env": {name: expr.to_json(value) for name, value in chosen.env.items()},
            "schema": chosen.schema.serialize().to_pybytes().hex(),
        }
        (work / "selected.json").write_text(json.dumps(meta))


def _keep_right(rows: Rowed, file: Path) -> dict[str, str]:
    """A joined relation is opened again by name; a computed table is kept."""
    if isinstance(rows, OpenRelation):
        return {"relation": rows.entry.name}
    assert isinstance(rows, Computed), rows
    table = rows.fetch(np.arange(rows.total, dtype=np.uint64), rows.schema.names)
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return {"table": file.name}


def _right(spec: Mapping[str, str], folder: Path, place: Workplace) -> OpenRelation | MemoryReader:
    if "relation" in spec:
        return place.open_relation(spec["relation"])
    return in_memory(pa.ipc.open_file(pa.memory_map(str(folder / spec["table"]))).read_all())
