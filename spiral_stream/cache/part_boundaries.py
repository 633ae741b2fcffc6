"""When a cache begins a new part: each unit of a build is one, a large shard by itself or small ones together."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from spiral_stream.cache.row_workers import ShardWork
from spiral_stream.derived.build import cut_by_weight
from spiral_stream.derived.work.cooperative_build import Shards

UNIT_ROWS: Final = 1024  # shards that are smaller are made some at a time
UNIT_SHARDS: Final = 64


def units(works: Sequence[ShardWork]) -> list[Shards]:
    """Cut shards into units: small ones together.

    Args:
        works: the rows of each shard that are wanted.

    Returns:
        the shards of each unit, by their places in ``works``; shape [n] each.
    """
    sizes = np.array([len(work.offsets) for work in works], np.float64)
    return cut_by_weight(np.maximum(sizes / UNIT_ROWS, 1 / UNIT_SHARDS))
