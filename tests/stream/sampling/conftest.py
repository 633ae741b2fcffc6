from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from spiral_stream.orders import Population
from spiral_stream.sampling.order import Runs
from spiral_stream.seeding import identity_hashes

UInt64 = NDArray[np.uint64]


class SortedHashes:
    """A BucketIndex in memory: rows sorted by (hash, identity)."""

    def __init__(self, stream: str, identities: list[str]) -> None:
        hashes = identity_hashes(stream, identities)
        by = np.lexsort((np.array(identities, dtype=str), hashes[:, 1], hashes[:, 0]))
        self._high = hashes[by, 0]
        self._rows = by.astype(np.uint64)
        self._ranks = np.argsort(by).astype(np.uint64)

    def starts(self, bucket_count: int) -> UInt64:
        buckets = [(int(high) * bucket_count) >> 64 for high in self._high]
        return np.searchsorted(buckets, np.arange(bucket_count + 1)).astype(np.uint64)

    def rows(self, ranks: UInt64) -> UInt64:
        return self._rows[ranks.astype(np.int64)]

    def ranks(self, rows: UInt64) -> UInt64:
        return self._ranks[rows.astype(np.int64)]


def scattered(rows: UInt64, shards: UInt64) -> Runs:
    """Runs as a shard key may find them: a run a unit, of groups that several shards have rows of."""
    lasting = np.flatnonzero(rows)
    _, first, groups = np.unique(shards[lasting] * 7 % 5, return_index=True, return_inverse=True)
    numbers = np.argsort(np.argsort(first))[groups].astype(np.uint64)
    starts = (np.cumsum(rows) - rows)[lasting].astype(np.uint64)
    return Runs(starts, numbers)


def populated(units: list[tuple[int, int]], stream: str = "", identities: list[str] | None = None) -> Population:
    """A population of units, (shard, rows) each, with an index."""
    rows = np.array([rows for _, rows in units], dtype=np.uint64)
    shards = np.array([shard for shard, _ in units], dtype=np.uint64)
    names = [f"id-{i:06d}" for i in range(int(rows.sum()))] if identities is None else identities
    return Population(rows, shards, stream, SortedHashes(stream, names), scattered(rows, shards))


@pytest.fixture(scope="session")
def populate() -> Callable[..., Population]:
    """``populate([(shard, rows), ...], stream="", identities=None)`` makes a population with an index."""
    return populated
