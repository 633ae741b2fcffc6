"""Shards in random order, rows mixed over blocks of many shards: random enough, read in long runs.

Storage units (shards, row groups or single rows) are permuted for each pass and
laid end to end; the tape is cut into blocks of ``shuffle_block_size`` rows, and
inside a block rows are permuted singly or in clumps. Only the unit table is in
memory (8 bytes a unit and array); an epoch is never sorted or materialized.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, final, get_args

import numpy as np

from spiral_stream.errors import PlanError, shown
from spiral_stream.sampling.order import Arrangement, Order, Population, UInt64, check_whole
from spiral_stream.sampling.permutation import permute, unpermute
from spiral_stream.sampling.shuffle import permute_clumps, unpermute_clumps
from spiral_stream.sampling.tape import Tape
from spiral_stream.seeding import combine, key

Granularity = Literal["shard", "row_group", "row"]
GRANULARITIES: Final = get_args(Granularity)


@final
@dataclass(frozen=True, slots=True)
class ShardAwareShuffle(Order):
    """Permute storage units, then rows inside blocks of the tape they form.

    ``sampling_granularity`` is the unit that moves whole between blocks; rows
    inside a block are always permuted singly, unless ``clump_size`` keeps runs of
    that many rows of the tape together. A leading ``stream_id`` in ``shard_key``
    says that each stream of a mixture has its own order.
    """

    seed: int
    shard_key: Sequence[str] = ("storage_shard",)
    shuffle_block_size: int = 1_000_000
    sampling_granularity: Granularity = "shard"
    clump_size: int = 1

    def __post_init__(self) -> None:
        name = "ShardAwareShuffle"
        check_whole(name, "seed", self.seed)
        check_whole(name, "shuffle_block_size", self.shuffle_block_size, least=1)
        check_whole(name, "clump_size", self.clump_size, least=1)
        if isinstance(self.shard_key, str) or not self.shard_key or not all(isinstance(k, str) for k in self.shard_key):
            msg = (
                f"{name}: shard_key is {shown(self.shard_key)}. Give a list of column names, such as ['storage_shard']"
            )
            raise PlanError(msg)
        object.__setattr__(self, "shard_key", tuple(self.shard_key))
        if self.sampling_granularity not in GRANULARITIES:
            msg = f"{name}: sampling_granularity is {shown(self.sampling_granularity)}. Give one of {', '.join(GRANULARITIES)}"
            raise PlanError(msg)
        if self.sampling_granularity == "row" and self.clump_size > 1:
            msg = (
                f"{name}: clump_size is {self.clump_size}, but single rows that moved are no neighbours any more. "
                "Drop it, use sampling_granularity='row_group', or GlobalShuffle(seed, clump_size)"
            )
            raise PlanError(msg)

    def arrange(self, population: Population, pass_number: int) -> Arrangement:
        own = self._key(population, pass_number)
        spread: _Units | _Rows
        if self.sampling_granularity == "row":
            spread = _Rows(population.total, own)
        else:
            spread = _Units(self.units(population)[0], self.tape(population, pass_number))
        return _Blocks(spread, population.total, own, self.shuffle_block_size, self.clump_size)

    def units(self, population: Population) -> tuple[UInt64, UInt64]:
        """What moves whole between blocks: rows and shard of each unit, in row order; two arrays of shape [U]."""
        rows, shards = population.unit_rows.astype(np.uint64), population.unit_shards.astype(np.uint64)
        if self.sampling_granularity == "row_group" or not rows.size:
            return rows, shards
        first = np.flatnonzero(np.concatenate(([True], shards[1:] != shards[:-1])))
        return np.add.reduceat(rows, first), shards[first]

    def tape(self, population: Population, pass_number: int) -> Tape:
        """The units in the order of one pass."""
        return Tape(self.units(population)[0], key("units", self._key(population, pass_number)))

    def _key(self, population: Population, pass_number: int) -> int:
        return key("ShardAwareShuffle", self.VERSION, self.seed, population.stream, pass_number)


@final
class _Units:
    """Units laid end to end: a permutation of rows that keeps each unit whole."""

    def __init__(self, unit_rows: UInt64, tape: Tape) -> None:
        self.tape = tape
        self.starts = np.concatenate((np.zeros(1, dtype=np.uint64), np.cumsum(unit_rows, dtype=np.uint64)))

    def rows(self, places: UInt64) -> UInt64:
        units, offsets = self.tape.at(places)
        return self.starts[units] + offsets

    def places(self, rows: UInt64) -> UInt64:
        units = np.searchsorted(self.starts, rows, side="right") - 1
        return self.tape.begin(units) + (rows - self.starts[units])


@final
class _Rows:
    """The same for units of one row each, which need no table."""

    def __init__(self, total: int, own_key: int) -> None:
        self._total = total
        self._key = np.uint64(key("units", own_key))

    def rows(self, places: UInt64) -> UInt64:
        return permute(places, self._total, self._key)

    def places(self, rows: UInt64) -> UInt64:
        return unpermute(rows, self._total, self._key)


@final
class _Blocks(Arrangement):
    def __init__(self, spread: _Units | _Rows, size: int, own_key: int, block_size: int, clump_size: int) -> None:
        self.size = size
        self._spread = spread
        self._key = np.array(key("blocks", own_key), dtype=np.uint64)
        self._block_size = np.uint64(min(block_size, max(size, 1)))
        self._clump_size = clump_size

    def rows(self, positions: UInt64) -> UInt64:
        positions = np.asarray(positions, dtype=np.uint64)
        begin, size, keys = self._blocks(positions)
        return self._spread.rows(begin + permute_clumps(positions - begin, size, keys, self._clump_size))

    def positions(self, rows: UInt64) -> UInt64:
        places = self._spread.places(np.asarray(rows, dtype=np.uint64))
        begin, size, keys = self._blocks(places)
        return begin + unpermute_clumps(places - begin, size, keys, self._clump_size)

    def _blocks(self, places: UInt64) -> tuple[UInt64, UInt64, UInt64]:
        """Begin, size and key of the block around each place: three arrays of shape [P]."""
        number = places // self._block_size
        begin = number * self._block_size
        return begin, np.minimum(self._block_size, np.uint64(self.size) - begin), combine(self._key, number)
