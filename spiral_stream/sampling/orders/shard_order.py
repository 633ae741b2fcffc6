"""Shuffles that go shard by shard: rows permuted within each, or spread over a range around it.

Both lay the shards end to end in a new order in every pass. They are those of Mosaic's StreamingDataset: `WithinShards` is
its ``py1s`` (and ``py2s``), `ExpandedRange` its ``py1e``. Its ``py1b`` and ``py1br``, blocks of rows permuted by themselves, are
`ShardAwareShuffle`, whose blocks cut shards elsewhere in every pass; its ``naive`` is `GlobalShuffle`.
"""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from spiral_stream.arguments import class_door
from spiral_stream.errors import PlanError
from spiral_stream.sampling.order import Arrangement, Order, Population, UInt64, check_integer, settled_seed
from spiral_stream.sampling.orders.layout import Layout, Units
from spiral_stream.sampling.orders.shuffle_key import shuffle_key
from spiral_stream.sampling.orders.window_shuffle import Windows
from spiral_stream.seeding import key


@final
@class_door(PlanError)
@dataclass(frozen=True, slots=True)
class WithinShards(Order):
    """Shards in a new order, and the rows of each permuted; the next shard begins when one is used up.

    A batch has rows of one shard, or of two. Take it where shards were filled at random and are dear to open.

    Examples:
        >>> photos.sample(order=spiral.orders.WithinShards(seed=17)).order().rows([0, 1])["photo_id"].to_pylist()
        ['p35', 'p24']
    """

    needs_units: ClassVar[bool] = False

    seed: int | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", settled_seed("WithinShards", self.seed))

    def arrange(self, population: Population, pass_number: int) -> Arrangement:
        pass_key = shuffle_key("WithinShards", self.VERSION, self.run_seed, population, pass_number)
        return _shards(population, pass_key, key("rows", pass_key))


@final
@class_door(PlanError)
@dataclass(frozen=True, slots=True)
class ExpandedRange(Order):
    """Shards in a new order, and each row moved by up to ``expanded_range`` rows from its place among them.

    Rows are permuted in windows of half the range, twice: the second windows begin in the middle of the first. So rows of
    a shard mix with those of the shards around it, and no border stops them, unlike those of blocks.

    Examples:
        >>> photos.sample(order=spiral.orders.ExpandedRange(seed=17, expanded_range=24)).order().rows([0])[
        ...     "photo_id"
        ... ].to_pylist()
        ['p36']
    """

    needs_units: ClassVar[bool] = False

    seed: int | None
    expanded_range: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", settled_seed("ExpandedRange", self.seed))
        check_integer("ExpandedRange", "expanded_range", self.expanded_range, least=2)

    def arrange(self, population: Population, pass_number: int) -> Arrangement:
        pass_key = shuffle_key("ExpandedRange", self.VERSION, self.run_seed, population, pass_number)
        return Windows(population.total, self.expanded_range // 2, pass_key, _shards(population, pass_key))


def _shards(population: Population, pass_key: int, row_key: int | None = None) -> Units:
    """Shards laid end to end in a keyed order; those of one shard stay in row order, or ``row_key`` permutes them."""
    shards = population.unit_shards
    turns = np.ones(len(shards), dtype=np.bool_)
    turns[1:] = shards[1:] != shards[:-1]
    rows: UInt64 = np.add.reduceat(population.unit_rows.astype(np.uint64), np.flatnonzero(turns))
    return Units(rows, Layout(rows, key("shards", pass_key)), row_key)
