"""What `shuffle_block_size` does to a column's skew: how far a block of the shuffle still is from the whole.

Rows are uniform inside a block, so what a batch can hold is what its block holds. A block is the pieces of shards that lie
in it. A piece is drawn from its shard's values, as if rows inside a shard lay in no order. Up to 64 blocks of each size are
counted, evenly spaced over the layout in which EXPLAIN counts shards (pass 0); cost is that of their pieces.
"""

from dataclasses import dataclass
from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.catalog.relation.manifest import Manifest
from spiral_stream.catalog.statistics.drift import distance_by_chance
from spiral_stream.catalog.statistics.skew import Spread
from spiral_stream.sampling.order import Population, UInt64
from spiral_stream.sampling.orders.shard_aware import ShardAwareShuffle

_BLOCKS: Final = 64  # of one size that are counted
_FACTORS: Final = tuple(4.0**power for power in range(-4, 3))  # of the block size that is used
_LEAST_ROWS: Final = 16


@final
@dataclass(frozen=True, slots=True)
class BlockMix:
    """How far blocks of one size are from the whole, as total variation: 0 alike, 1 nothing in common."""

    block_rows: int
    chosen: bool
    shards_per_block: float  # mean
    mean: float
    p95: float
    by_chance: float  # mean of as many rows drawn at random


def population_of(manifest: Manifest) -> Population:
    """Return all rows of a relation as an order sees them."""
    return Population(manifest.group_rows, manifest.group_shards)


def block_mixes(spread: Spread, names: list[str], population: Population, order: ShardAwareShuffle) -> list[BlockMix]:
    """Return what blocks of several sizes hold, around that of the order.

    Args:
        spread: of a column.
        names: of the shards that the population counts, in its order.
        population: the rows.
        order: whose blocks; with single rows or groups of rows as units there is nothing to count.
    """
    total = population.total
    if order.grouped_by or order.sampling_granularity == "row" or not total:
        return []
    chosen = min(order.shuffle_block_size, total)
    layout = order.laid_out(population, 0)
    shard_at = order.units(population)[1][layout.pieces].astype(np.int64)
    index_of = {name: k for k, name in enumerate(spread.shard_names)}
    rows_of = np.array([index_of.get(name, -1) for name in names], np.int64)
    mixer = _Mixer(spread)
    found = []
    for size in _sizes(total, chosen):
        blocks = [_block(layout.begins, shard_at, at, size) for at in _chosen(total, size)]
        known = [(rows_of[shards], rows) for shards, rows in blocks]
        distances = [mixer.distance(shards[shards >= 0], rows[shards >= 0]) for shards, rows in known]
        met = float(np.mean([len(np.unique(shards)) for shards, _ in blocks]))
        mean, p95 = float(np.mean(distances)), float(np.quantile(distances, 0.95))
        by_chance = distance_by_chance(mixer.overall, min(size, int(mixer.overall.sum())))
        found.append(BlockMix(size, size == chosen, met, mean, p95, by_chance))
    return found


def _sizes(total: int, chosen: int) -> list[int]:
    """Block sizes to compare, each at least three times the one before; the chosen one and the whole are among them."""
    near = [int(chosen * factor) for factor in _FACTORS]
    fixed = {chosen, total}
    sizes = [
        size for size in near if _LEAST_ROWS <= size <= total and all(3 * size <= f or size >= 3 * f for f in fixed)
    ]
    return sorted({*sizes, *fixed})


def _chosen(total: int, size: int) -> NDArray[np.int64]:
    """Where the blocks that are counted begin: whole ones, if there are any."""
    blocks = max(1, total // size)
    return np.unique(np.linspace(0, blocks - 1, min(blocks, _BLOCKS)).astype(np.int64)) * size


def _block(
    begins: UInt64, shard_at: NDArray[np.int64], at: int, size: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The shards of a block's pieces, and the rows of each piece."""
    end = min(at + size, int(begins[-1]))
    first, stop = np.searchsorted(begins, [at, end - 1], side="right")
    edges = np.clip(begins[first - 1 : stop + 1].astype(np.int64), at, end)
    return shard_at[first - 1 : stop], np.diff(edges).astype(np.float64)


@final
class _Mixer:
    """Mixes the values of shards."""

    def __init__(self, spread: Spread) -> None:
        self._spread = spread
        self._ends = np.cumsum(np.bincount(spread.shards, minlength=len(spread.shard_names)))
        self._rows = np.bincount(spread.shards, weights=spread.counts)
        self._draw = np.random.Generator(np.random.PCG64(0))  # the same picture each time
        self.overall = np.bincount(spread.codes, weights=spread.counts).astype(np.int64)

    def distance(self, shards: NDArray[np.int64], rows: NDArray[np.float64]) -> float:
        """Total variation to the whole of some rows of each of some shards."""
        if not len(shards):
            return 0.0
        stops = self._ends[shards]
        begins = np.where(shards > 0, self._ends[shards - 1], 0)
        held = np.zeros(len(self.overall))
        for shard, begin, stop, count in zip(shards.tolist(), begins, stops, rows.tolist(), strict=True):
            counts = self._spread.counts[begin:stop]
            drawn = counts if count >= self._rows[shard] else self._draw.multivariate_hypergeometric(counts, int(count))
            np.add.at(held, self._spread.codes[begin:stop], drawn)
        return float(0.5 * np.abs(held / held.sum() - self.overall / self.overall.sum()).sum())
