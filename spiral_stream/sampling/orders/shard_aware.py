"""Shards in random order, rows mixed over blocks of many shards: random enough, and read in long runs.

Storage units (shards, row groups or single rows) are permuted for each pass and laid end to end. This layout is cut into
blocks of ``shuffle_block_size`` rows, and rows are permuted inside each block, singly or in clumps. Only the table of
units is in memory (8 bytes per unit and array); an epoch is never sorted or materialized.

If the shard key names other columns, a unit is all rows that are equal in these columns (version 2). Its runs of
neighbouring rows are laid end to end, and the table has an entry per run.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, final, get_args

import numpy as np

from spiral_stream.arguments import check, class_door, one_of
from spiral_stream.errors import PlanError, shown
from spiral_stream.sampling.order import Arrangement, Order, Population, Runs, UInt64, check_integer, settled_seed
from spiral_stream.sampling.orders.layout import Layout, Units
from spiral_stream.sampling.orders.shuffle import Shuffled, permute_clumps, unpermute_clumps
from spiral_stream.sampling.orders.shuffle_key import shuffle_key
from spiral_stream.seeding import combine, key

_FREE_KEYS: Final = frozenset(
    ("stream_id", "storage_shard")
)  # the same for every row of a shard, so no runs are needed
Granularity = Literal["shard", "row_group", "row"]
GRANULARITIES: Final = get_args(Granularity)


@final
@class_door(PlanError)
@dataclass(frozen=True, slots=True)
class ShardAwareShuffle(Order):
    """Permute storage units, then rows inside blocks of the layout they form.

    ``sampling_granularity`` is the unit that is moved whole when the layout is made. Inside a block, rows are permuted
    singly, unless ``clump_size`` keeps runs of that many rows together. ``shard_key`` names the columns in which the rows
    of a ``"shard"`` are equal; such rows have to lie together in storage, in a few runs. It may name ``stream_id``, which
    changes nothing: each stream of a mixture always has its own order.

    Examples:
        >>> order = spiral.ShardAwareShuffle(seed=17, shuffle_block_size=24)
        >>> photos.sample(order=order).order().rows([0, 1, 2])["photo_id"].to_pylist()
        ['p20', 'p08', 'p13']
    """

    seed: int | None
    shard_key: Sequence[str] = ("storage_shard",)
    shuffle_block_size: int = 1_000_000
    sampling_granularity: Granularity = "shard"
    clump_size: int = 1

    def __post_init__(self) -> None:
        name = "ShardAwareShuffle"
        object.__setattr__(self, "seed", settled_seed(name, self.seed))
        check_integer(name, "shuffle_block_size", self.shuffle_block_size, least=1)
        check_integer(name, "clump_size", self.clump_size, least=1)
        if isinstance(self.shard_key, str) or not self.shard_key or not all(isinstance(k, str) for k in self.shard_key):
            msg = (
                f"{name}: shard_key is {shown(self.shard_key)}. Give a list of column names, such as ['storage_shard']"
            )
            raise PlanError(msg)
        object.__setattr__(self, "shard_key", tuple(self.shard_key))
        check(self, name, " is ", sampling_granularity=one_of(GRANULARITIES))
        if self.grouped_by and self.sampling_granularity != "shard":
            named = [each for each in self.grouped_by if each not in _FREE_KEYS]
            msg = (
                f"{name}: shard_key names {', '.join(map(repr, named))}, but sampling_granularity="
                f"{self.sampling_granularity!r} moves smaller pieces, whatever they hold. Use sampling_granularity='shard', or "
                "shard_key=['storage_shard']"
            )
            raise PlanError(msg)
        if self.sampling_granularity == "row" and self.clump_size > 1:
            msg = (
                f"{name}: clump_size is {self.clump_size}, but single rows are no longer neighbours once they have moved. "
                "Drop it, use sampling_granularity='row_group', or GlobalShuffle(seed, clump_size)"
            )
            raise PlanError(msg)

    @property
    def version(self) -> int:
        """The version of the order: 2 if it groups rows by columns other than their shard, else 1."""
        return 2 if self.grouped_by else self.VERSION

    @property
    def grouped_by(self) -> tuple[str, ...]:
        if _FREE_KEYS.issuperset(self.shard_key):
            return ()
        return tuple(dict.fromkeys(each for each in self.shard_key if each != "stream_id"))

    def arrange(self, population: Population, pass_number: int) -> Arrangement:
        pass_key = self._key(population, pass_number)
        spread: Arrangement
        if self.sampling_granularity == "row":
            spread = Shuffled(population.total, key("units", pass_key))
        else:
            unit_rows, _ = self.units(population)
            layout = Layout(unit_rows, key("units", pass_key))
            grouped = self.grouped_by
            spread = _Groups(self._runs(population), population.total, layout) if grouped else Units(unit_rows, layout)
        return _Blocks(spread, population.total, pass_key, self.shuffle_block_size, self.clump_size)

    def units(self, population: Population) -> tuple[UInt64, UInt64]:
        """Return rows and shard of each unit, in row order; two arrays of shape [U].

        If columns group the rows, the units are the groups, and each is its own shard.
        """
        if self.grouped_by:
            rows = _group_rows(self._runs(population), population.total)
            return rows, np.arange(len(rows), dtype=np.uint64)
        rows, shards = population.unit_rows.astype(np.uint64), population.unit_shards.astype(np.uint64)
        if self.sampling_granularity == "row_group" or not rows.size:
            return rows, shards
        first = np.flatnonzero(np.concatenate(([True], shards[1:] != shards[:-1])))
        return np.add.reduceat(rows, first), shards[first]

    def laid_out(self, population: Population, pass_number: int) -> Layout:
        """Return the units in the order of one pass."""
        return Layout(self.units(population)[0], key("units", self._key(population, pass_number)))

    def _runs(self, population: Population) -> Runs:
        assert population.runs is not None  # whoever builds a population asks for `Order.grouped_by`
        return population.runs

    def _key(self, population: Population, pass_number: int) -> int:
        return shuffle_key("ShardAwareShuffle", self.VERSION, self.run_seed, population, pass_number)


@final
class _Groups(Arrangement):
    """Units that are groups of runs: a group's runs in row order, laid end to end."""

    def __init__(self, runs: Runs, total: int, layout: Layout) -> None:
        self.size, self._layout = total, layout
        self._starts = runs.starts
        rows = _run_rows(runs, total)
        self._order = np.argsort(
            runs.groups, kind="stable"
        )  # runs by group, as if groups were laid in order of their number
        ends = np.cumsum(rows[self._order], dtype=np.uint64)
        self._laid: UInt64 = ends - rows[self._order]  # [R] where each of these runs begins
        self._laid_of = np.empty_like(self._laid)
        self._laid_of[self._order] = self._laid
        self._groups = runs.groups.astype(np.int64)
        group_rows = _group_rows(runs, total)
        self._begins: UInt64 = np.cumsum(group_rows, dtype=np.uint64) - group_rows

    def rows(self, positions: UInt64) -> UInt64:
        groups, offsets = self._layout.at(positions)
        laid = self._begins[groups] + offsets
        at = np.searchsorted(self._laid, laid, side="right") - 1
        return self._starts[self._order[at]] + (laid - self._laid[at])

    def positions(self, rows: UInt64) -> UInt64:
        runs = np.searchsorted(self._starts, rows, side="right") - 1
        groups = self._groups[runs]
        laid: UInt64 = self._laid_of[runs] + (rows - self._starts[runs])
        return self._layout.begin(groups) + (laid - self._begins[groups])


def _run_rows(runs: Runs, total: int) -> UInt64:
    """Rows of each run; shape [R], uint64."""
    return np.diff(np.append(runs.starts, np.uint64(total))).astype(np.uint64)


def _group_rows(runs: Runs, total: int) -> UInt64:
    """Rows of each group; shape [G], uint64."""
    rows = _run_rows(runs, total)
    out = np.zeros(int(runs.groups.max(initial=0)) + 1 if len(rows) else 0, dtype=np.uint64)
    np.add.at(out, runs.groups.astype(np.int64), rows)
    return out


@final
class _Blocks(Arrangement):
    def __init__(self, spread: Arrangement, size: int, pass_key: int, block_size: int, clump_size: int) -> None:
        self.size = size
        self._spread = spread
        self._key = np.array(key("blocks", pass_key), dtype=np.uint64)
        self._block_size = np.uint64(min(block_size, max(size, 1)))
        self._clump_size = clump_size

    def rows(self, positions: UInt64) -> UInt64:
        positions = np.asarray(positions, dtype=np.uint64)
        begin, size, keys = self._blocks(positions)
        return self._spread.rows(begin + permute_clumps(positions - begin, size, keys, self._clump_size))

    def positions(self, rows: UInt64) -> UInt64:
        spread_at = self._spread.positions(np.asarray(rows, dtype=np.uint64))
        begin, size, keys = self._blocks(spread_at)
        return begin + unpermute_clumps(spread_at - begin, size, keys, self._clump_size)

    def _blocks(self, positions: UInt64) -> tuple[UInt64, UInt64, UInt64]:
        """Begin, size and key of the block around each place: three arrays of shape [P], or [1] where it is one block."""
        number = positions // self._block_size
        if (
            number.size and (number == number[0]).all()
        ):  # as for most batches; of 1,024 rows, it takes a quarter less time
            number = number[:1]
        begin = number * self._block_size
        return begin, np.minimum(self._block_size, np.uint64(self.size) - begin), combine(self._key, number)
