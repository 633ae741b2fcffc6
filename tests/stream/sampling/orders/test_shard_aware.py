import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spiral_stream import ShardAwareShuffle
from spiral_stream.errors import PlanError
from spiral_stream.orders import Population

Populate = Callable[..., Population]
UNITS = [(i // 4, 20 + i) for i in range(40)]  # 10 shards of 4 units each


def whole(order: ShardAwareShuffle, population: Population, pass_number: int = 0) -> np.ndarray:
    return order.arrange(population, pass_number).rows(np.arange(population.total, dtype=np.uint64))


def shard_of(population: Population, rows: np.ndarray, *, units: bool = False) -> np.ndarray:
    ends = np.cumsum(population.unit_rows)
    found = np.searchsorted(ends, rows, side="right")
    return found if units else population.unit_shards[found].astype(np.int64)


@settings(deadline=None, max_examples=60, derandomize=True)
@given(seed=st.integers(0, 1_000), block=st.integers(1, 300), by_group=st.booleans())
def test_blocks_cut_the_tape_of_whole_units(populate: Populate, seed: int, block: int, by_group: bool) -> None:
    population = populate(UNITS)
    order = ShardAwareShuffle(seed, shuffle_block_size=block, sampling_granularity="row_group" if by_group else "shard")
    units = shard_of(population, whole(order, population), units=by_group)

    rows, layout = order.units(population)[0].astype(np.int64), order.laid_out(population, 0)
    laid = np.repeat(layout.pieces, rows[layout.pieces])
    assert sorted(set(laid.tolist())) == list(range(rows.size))
    for begin in range(0, population.total, block):
        part = slice(begin, begin + block)
        assert sorted(units[part].tolist()) == sorted(laid[part].tolist())


def test_rows_inside_a_block_are_permuted_singly_unless_clumps_keep_them_together(populate: Populate) -> None:
    population = populate(UNITS)

    def neighbours(clump_size: int) -> float:
        rows = whole(ShardAwareShuffle(3, shuffle_block_size=400, clump_size=clump_size), population)
        return float((np.diff(rows.astype(np.int64)) == 1).mean())

    assert neighbours(1) < 0.02
    assert 0.70 < neighbours(4) < 0.77  # three of four places inside a clump, less those that straddle shards
    assert neighbours(10**9) > 0.97  # a block is one clump: the layout itself


def test_one_block_is_a_shuffle_of_all_rows(populate: Populate) -> None:
    population = populate([(i, 100) for i in range(50)])
    rows = whole(ShardAwareShuffle(1), population)

    shards = shard_of(population, rows).reshape(-1, 100)

    # 100 draws from 50 shards meet 43.4 of them on average.
    assert 42 < np.mean([np.unique(batch).size for batch in shards]) < 45


def test_the_order_ignores_units_unless_they_move(populate: Populate) -> None:
    coarse, fine = populate([(0, 50), (1, 70)]), populate([(0, 20), (0, 30), (1, 70)])
    order = ShardAwareShuffle(5, shuffle_block_size=30)
    by_group = ShardAwareShuffle(5, shuffle_block_size=30, sampling_granularity="row_group")

    assert np.array_equal(whole(order, coarse), whole(order, fine))
    assert not np.array_equal(whole(by_group, coarse), whole(by_group, fine))


@pytest.mark.parametrize(("granularity", "clump_size"), [("shard", 1), ("row_group", 8), ("row", 1)])
def test_ten_billion_rows_in_a_hundred_thousand_shards_are_entered_anywhere(granularity: str, clump_size: int) -> None:
    rng = np.random.default_rng(0)
    rows = rng.integers(50_000, 150_000, 100_000).astype(np.uint64)
    population = Population(rows, np.arange(rows.size, dtype=np.uint64))
    order = ShardAwareShuffle(1, sampling_granularity=granularity, clump_size=clump_size)
    positions = rng.integers(0, population.total, 1_000, dtype=np.uint64)

    tracemalloc.start()
    arrangement = order.arrange(population, 3)
    found = arrangement.rows(positions)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert population.total > 9_900_000_000
    assert peak_bytes < 20_000_000
    assert np.unique(found).size == np.unique(positions).size
    assert np.array_equal(arrangement.positions(found), positions)


def test_lists_become_tuples_so_that_plans_can_be_compared() -> None:
    order = ShardAwareShuffle(1, shard_key=["stream_id", "storage_shard"])

    assert order.shard_key == ("stream_id", "storage_shard")
    assert hash(order) == hash(ShardAwareShuffle(1, shard_key=("stream_id", "storage_shard")))
    assert order.run_seed == 1
    assert not order.needs_index


@pytest.mark.parametrize(
    ("wrong", "way_out"),
    [
        ({"seed": "17"}, "seed is '17'. Give an integer"),
        ({"seed": True}, "seed is True. Give an integer"),
        ({"shuffle_block_size": 0}, "shuffle_block_size is 0. Give an integer of at least 1"),
        ({"shuffle_block_size": 1e6}, "shuffle_block_size is 1000000.0. Give an integer of at least 1"),
        ({"clump_size": 0}, "clump_size is 0. Give an integer of at least 1"),
        ({"shard_key": "storage_shard"}, r"Give a list of column names, such as \['storage_shard'\]"),
        ({"shard_key": []}, "Give a list of column names"),
        ({"sampling_granularity": "row", "clump_size": 8}, r"or GlobalShuffle\(seed, clump_size\)"),
        ({"sampling_granularity": "file"}, "sampling_granularity is 'file'. Give one of shard, row_group, row"),
    ],
)
def test_a_wrong_parameter_is_refused_at_birth(wrong: dict[str, object], way_out: str) -> None:
    with pytest.raises(PlanError, match=way_out):
        ShardAwareShuffle(**{"seed": 1, **wrong})
