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
from spiral_stream.sampling.orders.layout import Layout
from spiral_stream.sampling.orders.permutation import permute, unpermute
from spiral_stream.sampling.orders.shuffle_key import shuffle_key
from spiral_stream.sampling.orders.window_shuffle import Windows
from spiral_stream.seeding import combine, key


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
        return _Within(_Shards(population, key("shards", pass_key)), key("rows", pass_key))


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
        shards = _Shards(population, key("shards", pass_key))
        return Windows(population.total, self.expanded_range // 2, pass_key, shards)


@final
class _Shards:
    """Shards laid end to end in a keyed order: places there, and rows. Those of one shard stay in row order."""

    def __init__(self, population: Population, pass_key: int) -> None:
        shards = population.unit_shards
        turns = np.ones(len(shards), dtype=np.bool_)
        turns[1:] = shards[1:] != shards[:-1]
        self.sizes: UInt64 = np.add.reduceat(population.unit_rows.astype(np.uint64), np.flatnonzero(turns))
        self.starts = np.concatenate((np.zeros(1, dtype=np.uint64), np.cumsum(self.sizes, dtype=np.uint64)))
        self.layout = Layout(self.sizes, pass_key)

    def rows(self, ranks: UInt64) -> UInt64:
        shards, offsets = self.layout.at(ranks)
        return self.starts[shards] + offsets

    def ranks(self, rows: UInt64) -> UInt64:
        shards = np.searchsorted(self.starts, rows, side="right") - 1
        return self.layout.begin(shards) + (rows - self.starts[shards])


@final
class _Within(Arrangement):
    def __init__(self, shards: _Shards, pass_key: int) -> None:
        self.size, self._shards, self._key = int(shards.starts[-1]), shards, np.uint64(pass_key)

    def rows(self, positions: UInt64) -> UInt64:
        shards, offsets = self._shards.layout.at(np.asarray(positions, dtype=np.uint64))
        return self._shards.starts[shards] + permute(offsets, self._shards.sizes[shards], self._keys(shards))

    def positions(self, rows: UInt64) -> UInt64:
        wanted = np.asarray(rows, dtype=np.uint64)
        shards = np.searchsorted(self._shards.starts, wanted, side="right") - 1
        in_shard = wanted - self._shards.starts[shards]
        return self._shards.layout.begin(shards) + unpermute(in_shard, self._shards.sizes[shards], self._keys(shards))

    def _keys(self, shards: np.ndarray[tuple[int], np.dtype[np.int64]]) -> UInt64:
        return combine(self._key, shards.astype(np.uint64))
