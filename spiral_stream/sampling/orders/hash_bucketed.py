"""An order that depends on identities only, never on where or when rows were stored.

A row's bucket is the leading bits of the unseeded 128-bit hash of (stream, identity). `Population.index` holds the rows
sorted by (hash, identity); it is built once for all seeds and bucket counts. For each pass the buckets are permuted and
laid end to end, and the rows inside each are permuted by key. Memory: 8 bytes per bucket and array.
"""

from dataclasses import dataclass
from typing import ClassVar, Final, final

import numpy as np

from spiral_stream.arguments import check, class_door, of_kind
from spiral_stream.errors import PlanError
from spiral_stream.sampling.order import (
    Arrangement,
    BucketIndex,
    Order,
    Population,
    UInt64,
    check_integer,
    settled_seed,
)
from spiral_stream.sampling.orders.layout import Layout, Units
from spiral_stream.sampling.orders.shuffle_key import shuffle_key

MOST_BUCKETS: Final = 2**24


@final
@class_door(PlanError)
@dataclass(frozen=True, slots=True)
class ShuffleBuckets:
    """Buckets come in a new keyed order in every pass.

    Examples:
        >>> order = spiral.HashBucketed(seed=17, bucket_count=64, bucket_order=spiral.ShuffleBuckets(seed=3))
        >>> photos.sample(order=order).order().rows([0])["photo_id"].to_pylist()
        ['p44']
    """

    VERSION: ClassVar[int] = 1
    seed: int

    def __post_init__(self) -> None:
        check_integer("ShuffleBuckets", "seed", self.seed)


@final
@class_door(PlanError)
@dataclass(frozen=True, slots=True)
class HashBucketed(Order):
    """Buckets of identity hashes in keyed order, rows permuted inside each.

    ``bucket_count`` is a power of two; ``bucket_order`` is ``ShuffleBuckets(seed)``
    unless given.

    Examples:
        >>> photos.sample(order=spiral.HashBucketed(seed=17, bucket_count=64)).order().rows([0])[
        ...     "photo_id"
        ... ].to_pylist()
        ['p11']
    """

    needs_index: ClassVar[bool] = True
    needs_units: ClassVar[bool] = False

    seed: int | None
    bucket_count: int = 8192
    bucket_order: ShuffleBuckets | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", settled_seed("HashBucketed", self.seed))
        check_integer("HashBucketed", "bucket_count", self.bucket_count, least=1)
        if self.bucket_count & (self.bucket_count - 1) or self.bucket_count > MOST_BUCKETS:
            fitting = min(1 << self.bucket_count.bit_length(), MOST_BUCKETS)
            msg = (
                f"HashBucketed: bucket_count is {self.bucket_count}; buckets are the leading bits of a hash. "
                f"Give a power of two up to {MOST_BUCKETS}, such as {fitting}"
            )
            raise PlanError(msg)
        if self.bucket_order is None:
            object.__setattr__(self, "bucket_order", ShuffleBuckets(self.run_seed))
        check(self, "HashBucketed", " is ", bucket_order=of_kind(ShuffleBuckets, "ShuffleBuckets(seed=...)"))

    def arrange(self, population: Population, pass_number: int) -> Arrangement:
        """Return the order of one pass.

        Raises:
            PlanError: the population has no index of identity hashes.
        """
        if population.index is None:
            msg = (
                "HashBucketed: the selection has no index of identity hashes. "
                "Prepare it with one (Order.needs_index says so), or use ShardAwareShuffle"
            )
            raise PlanError(msg)
        order = self.bucket_order or ShuffleBuckets(self.run_seed)
        bucket_key = shuffle_key("ShuffleBuckets", order.VERSION, order.seed, population, pass_number)
        row_key = shuffle_key("HashBucketed", self.VERSION, self.run_seed, population, pass_number)
        return _Buckets(population.index, self.bucket_count, bucket_key, row_key)


@final
class _Buckets(Arrangement):
    """Buckets of an index of hashes: which rows its ranks are."""

    def __init__(self, index: BucketIndex, bucket_count: int, bucket_key: int, row_key: int) -> None:
        rows = np.diff(index.starts(bucket_count))
        self._index, self._buckets = index, Units(rows, Layout(rows, bucket_key), row_key)
        self.size = self._buckets.size

    def rows(self, positions: UInt64) -> UInt64:
        return self._index.rows(self._buckets.rows(positions))

    def positions(self, rows: UInt64) -> UInt64:
        return self._buckets.positions(self._index.ranks(np.asarray(rows, dtype=np.uint64)))
