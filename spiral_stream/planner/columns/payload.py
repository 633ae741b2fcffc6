"""Which relation holds a payload column of a stream: the base relation, or one joined to it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np

from spiral_stream.cache.row_workers import ShardWork
from spiral_stream.catalog.relation.reader import OpenRelation
from spiral_stream.planner.selection.fetched_columns import UInt64
from spiral_stream.planner.selection.selected import Selected


@final
@dataclass(frozen=True, slots=True, eq=False)
class Payload:
    """One payload column of one stream."""

    relation: OpenRelation
    column: str
    ordinals: Callable[[UInt64], UInt64]  # [P] surviving rows -> [P] rows of the relation, by logical ordinal
    needed: Callable[[], list[ShardWork]]  # the rows of the relation that the stream reads, shard by shard


def payload_of(selected: Selected, base: OpenRelation, name: str) -> Payload | None:
    """Find where a column of a stream lies; None if it is computed."""
    found = selected.owner(name)
    if found is None:
        return None
    right, column = found
    if right is None:
        return base_payload(selected, base, column)
    relation = selected.joined(right)
    if not isinstance(relation, OpenRelation):
        return None
    k = right
    return Payload(
        relation,
        column,
        lambda rows: selected.joined_ordinals(k, rows),
        lambda: _rows_of(relation, np.unique(selected.joined_ordinals(k, np.arange(selected.total, dtype=np.uint64)))),
    )


def base_payload(selected: Selected, base: OpenRelation, column: str) -> Payload:
    """Return a column of the relation that owns the samples."""
    return Payload(base, column, selected.columns.ordinals, lambda: _base_rows(selected, base))


def _base_rows(selected: Selected, base: OpenRelation) -> list[ShardWork]:
    works = (_work(base, i, selected.offsets_of_shard(i)) for i in range(len(base.manifest.shard_names)))
    return [work for work in works if len(work.offsets)]


def _rows_of(relation: OpenRelation, ordinals: UInt64) -> list[ShardWork]:
    manifest = relation.manifest
    shards = manifest.shard_of(ordinals)
    return [
        _work(relation, int(shard), ordinals[shards == shard] - manifest.starts[shard]) for shard in np.unique(shards)
    ]


def _work(relation: OpenRelation, shard: int, offsets: UInt64) -> ShardWork:
    manifest = relation.manifest
    return ShardWork(
        manifest.shard_names[shard].as_py(),
        manifest.content_keys[shard].as_py(),
        int(manifest.starts[shard]),
        int(manifest.shard_rows[shard]),
        offsets,
    )
