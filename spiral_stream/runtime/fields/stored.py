"""Look up rows of a relation in a cache, shard by shard."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from spiral_stream.cache.store.reader import CachedShard, CacheReader
from spiral_stream.catalog.relation.reader import OpenRelation
from spiral_stream.sampling.order import UInt64

Int64 = NDArray[np.int64]


def stored_rows(
    relation: OpenRelation, cache: CacheReader | None, ordinals: UInt64
) -> Iterator[tuple[Int64, CachedShard, Int64]]:
    """Yield for each shard: the places in ``ordinals`` that the cache holds, the cached shard, and their rows in it.

    Args:
        relation: the relation that owns the rows.
        cache: None yields nothing.
        ordinals: shape [P], uint64: rows of the relation.
    """
    if cache is None:
        return
    manifest = relation.manifest
    shards = manifest.shard_of(ordinals)
    for shard in np.unique(shards):
        stored = cache.shard(manifest.content_keys[int(shard)].as_py())
        if stored is None:
            continue
        places = np.flatnonzero(shards == shard)
        found = stored.find(ordinals[places] - manifest.starts[shard])
        yield places[found >= 0], stored, found[found >= 0]
