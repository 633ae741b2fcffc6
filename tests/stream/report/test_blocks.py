"""What blocks of shards hold: the whole in one block, nothing new in a block of one shard."""

import numpy as np
import pytest

from spiral_stream import ShardAwareShuffle
from spiral_stream.catalog.statistics.skew import skew_in
from spiral_stream.orders import Population
from spiral_stream.report.blocks import block_mixes
from spiral_stream.sampling.orders.shard_mixing import randomness
from tests.fixtures.spreads import spread

SHARDS, ROWS = 40, 500


def population(shards: int = SHARDS, rows: int = ROWS) -> Population:
    return Population(np.full(shards, rows, np.uint64), np.arange(shards, dtype=np.uint64))


def test_larger_blocks_are_nearer_to_the_whole_until_one_block_is_the_whole() -> None:
    made = spread(SHARDS, 10, ROWS, "drift")
    order = ShardAwareShuffle(seed=0, shuffle_block_size=4 * ROWS)
    found = block_mixes(made, list(made.shard_names), population(), order)

    sizes = [each.block_rows for each in found]
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == SHARDS * ROWS
    assert found[-1].mean == pytest.approx(0, abs=1e-12)
    assert [each.block_rows for each in found if each.chosen] == [4 * ROWS]
    means = [each.mean for each in found]
    assert means == sorted(means, reverse=True)
    assert all(each.mean <= each.p95 for each in found)


def test_a_block_of_one_shard_is_as_far_as_the_shard() -> None:
    made = spread(8, 8, ROWS, "class")
    order = ShardAwareShuffle(seed=0, shuffle_block_size=ROWS)
    chosen = next(each for each in block_mixes(made, list(made.shard_names), population(8), order) if each.chosen)

    assert (chosen.shards_per_block, chosen.mean) == (1.0, pytest.approx(skew_in(made).mean))


def test_shards_per_block_are_those_of_explain() -> None:
    order = ShardAwareShuffle(seed=3, shuffle_block_size=1_700)
    rows = np.random.default_rng(1).integers(100, 900, SHARDS).astype(np.uint64)
    here = Population(rows, np.arange(SHARDS, dtype=np.uint64))
    made = spread(SHARDS, 3, ROWS)
    found = {each.block_rows: each.shards_per_block for each in block_mixes(made, list(made.shard_names), here, order)}
    choices: list[dict[str, float]] = randomness(here, order, 32)["choices"]  # type: ignore[assignment]

    told = {each["block_rows"]: each["shards_per_block"] for each in choices}
    assert found[1_700] == pytest.approx(told[1_700], rel=0.1)  # all but the last block, which is not whole


def test_rows_of_mixed_shards_are_as_far_as_random_ones() -> None:
    made = spread(SHARDS, 10, ROWS)
    order = ShardAwareShuffle(seed=0, shuffle_block_size=100)
    chosen = next(each for each in block_mixes(made, list(made.shard_names), population(), order) if each.chosen)

    assert chosen.mean == pytest.approx(chosen.by_chance, rel=0.2)


def test_an_order_of_single_rows_has_no_blocks_of_shards() -> None:
    made = spread(4, 2, ROWS)
    order = ShardAwareShuffle(seed=0, sampling_granularity="row")

    assert block_mixes(made, list(made.shard_names), population(4), order) == []
