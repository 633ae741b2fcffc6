"""One permutation of all rows: the best mixing, and no locality except inside clumps of rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Final, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from spiral_stream.arguments import class_door
from spiral_stream.errors import PlanError
from spiral_stream.sampling.order import Arrangement, Order, Population, UInt64, check_integer, settled_seed
from spiral_stream.sampling.orders.permutation import permute, unpermute
from spiral_stream.sampling.orders.shuffle_key import shuffle_key

_ONE: Final = np.uint64(1)


@final
@class_door(PlanError)
@dataclass(frozen=True, slots=True)
class GlobalShuffle(Order):
    """All rows of the relation permuted by key, singly or in clumps.

    ``clump_size=n`` moves runs of n contiguous rows together (the last run may be shorter), so that one read serves n
    positions.

    Examples:
        >>> samples = photos.sample(order=spiral.GlobalShuffle(seed=17))
        >>> samples.order().rows([0, 1, 2])["photo_id"].to_pylist()
        ['p19', 'p17', 'p41']
    """

    needs_units: ClassVar[bool] = False

    seed: int | None
    clump_size: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", settled_seed("GlobalShuffle", self.seed))
        check_integer("GlobalShuffle", "clump_size", self.clump_size, least=1)

    def arrange(self, population: Population, pass_number: int) -> Arrangement:
        pass_key = shuffle_key("GlobalShuffle", self.VERSION, self.run_seed, population, pass_number)
        return Shuffled(population.total, pass_key, self.clump_size)


@final
class Shuffled(Arrangement):
    """All rows permuted by key, singly or in clumps."""

    def __init__(self, size: int, pass_key: int, clump_size: int = 1) -> None:
        self.size = size
        self.key = np.uint64(pass_key)
        self.clump_size = clump_size

    def rows(self, positions: UInt64) -> UInt64:
        return permute_clumps(positions, self.size, self.key, self.clump_size)

    def positions(self, rows: UInt64) -> UInt64:
        return unpermute_clumps(rows, self.size, self.key, self.clump_size)


def rows_in_turn(arranged: Sequence[Arrangement], begins: NDArray[np.int64], positions: UInt64) -> UInt64:
    """The rows of several arrangements; those that are shuffled alike are permuted in one call.

    Args:
        arranged: T arrangements.
        begins: shape [T], ascending from 0: where the positions of each begin.
        positions: shape [P], those of one arrangement after those of another.

    Returns:
        shape [P], uint64: the row at each.
    """
    borders = [*begins.tolist(), len(positions)]
    shuffled = [each for each in arranged if isinstance(each, Shuffled)]
    if len(shuffled) == len(arranged) and len({each.clump_size for each in shuffled}) == 1:
        counts = np.diff(borders)
        sizes = np.array([each.size for each in shuffled], dtype=np.uint64)
        keys = np.array([each.key for each in shuffled], dtype=np.uint64)
        return permute_clumps(positions, np.repeat(sizes, counts), np.repeat(keys, counts), shuffled[0].clump_size)
    every = zip(arranged, pairwise(borders), strict=True)
    return np.concatenate([each.rows(positions[slice(*ends)]) for each, ends in every])


def permute_clumps(index: UInt64, size: ArrayLike, keys: ArrayLike, clump_size: int) -> UInt64:
    """A permutation of ``range(size)`` that moves runs of ``clump_size`` values together.

    The values are cut into runs from 0 on, only the last of which may be short;
    the runs are permuted by key and laid end to end.

    Args:
        index: shape [P], uint64, each in [0, size).
        size: shape [P] or a scalar, uint64.
        keys: shape [P] or a scalar, uint64.
        clump_size: values per run; 1 permutes them singly.

    Returns:
        shape [P], uint64: the value at each place.
    """
    if clump_size == 1 or not index.size:
        return permute(index, size, keys)
    count, missing, width = _clumps(size, clump_size)
    short_at = unpermute(count - _ONE, count, keys)
    # Places behind the short clump move up by what it lacks; then all clumps have the same size.
    stretched = index + np.where(index < (short_at + _ONE) * width - missing, np.uint64(0), missing)
    slot = stretched // width
    return permute(slot, count, keys) * width + (stretched - slot * width)


def unpermute_clumps(values: UInt64, size: ArrayLike, keys: ArrayLike, clump_size: int) -> UInt64:
    """Return the place of each value: the inverse of `permute_clumps` with the same arguments."""
    if clump_size == 1 or not values.size:
        return unpermute(values, size, keys)
    count, missing, width = _clumps(size, clump_size)
    short_at = unpermute(count - _ONE, count, keys)
    clump = values // width
    slot = unpermute(clump, count, keys)
    return slot * width + (values - clump * width) - np.where(slot > short_at, missing, np.uint64(0))


def _clumps(size: ArrayLike, clump_size: int) -> tuple[UInt64, UInt64, np.uint64]:
    """The number of clumps, how many values the last one lacks (both [P] or [1]), and the clump size (a scalar)."""
    width = np.uint64(clump_size)
    n = np.atleast_1d(np.asarray(size, dtype=np.uint64))
    count = (n + (width - _ONE)) // width
    return count, count * width - n, width
