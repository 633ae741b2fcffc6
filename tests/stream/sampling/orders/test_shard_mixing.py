import itertools
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spiral_stream import ShardAwareShuffle
from spiral_stream.orders import Population
from spiral_stream.sampling.orders import shard_mixing as room
from spiral_stream.sampling.orders.shard_mixing import randomness

Populate = Callable[..., Population]


def chosen(population: Population, order: ShardAwareShuffle, batch_size: int) -> dict[str, object]:
    return next(c for c in randomness(population, order, batch_size)["choices"] if c["chosen"])


@settings(deadline=None, max_examples=60, derandomize=True)
@given(
    rows=st.lists(st.integers(0, 9), min_size=1, max_size=12).filter(any),
    block=st.integers(1, 40),
    batch=st.integers(1, 12),
    by_group=st.booleans(),
)
def test_the_figures_are_those_of_counting_every_pair(
    populate: Populate, rows: list[int], block: int, batch: int, by_group: bool
) -> None:
    block = block if block >= batch or batch % block == 0 else batch
    units = [(i // 2, n) for i, n in enumerate(rows)]
    population = populate(units)
    order = ShardAwareShuffle(4, shuffle_block_size=block, sampling_granularity="row_group" if by_group else "shard")
    read = order.arrange(population, 0).rows(np.arange(population.total, dtype=np.uint64))
    shards = np.repeat([shard for shard, _ in units], rows)[read.astype(np.int64)]
    held = [np.bincount(shards[at : at + block], minlength=9) for at in range(0, shards.size, block)]

    chances = []
    for p, q in itertools.combinations(range(shards.size), 2):
        if p // batch == q // batch:
            a, b = held[p // block], held[q // block]
            same = p // block == q // block
            chances.append(
                (a * (a - 1)).sum() / (a.sum() * (a.sum() - 1)) if same else (a * b).sum() / (a.sum() * b.sum())
            )
    found = chosen(population, order, batch)

    meetings = sum(int((counts > 0).sum()) for counts in held)
    assert found["exact"]
    assert found["shards_per_block"] == pytest.approx(meetings / len(held))
    assert found["run_length"] == pytest.approx(shards.size / meetings)
    assert found["same_shard"] == pytest.approx(np.mean(chances) if chances else 0.0)


def test_larger_blocks_mix_more_shards_and_read_no_shorter_runs(populate: Populate) -> None:
    population = populate([(i, 500) for i in range(200)])

    table = randomness(population, ShardAwareShuffle(1, shuffle_block_size=10_000), 256)

    quarter, own, four = table["choices"]
    assert [c["block_rows"] for c in (quarter, own, four)] == [2_500, 10_000, 40_000]
    assert [c["shards_per_block"] for c in (quarter, own)] == [5.0, 20.0]
    assert own["same_shard"] == pytest.approx(1 / 20, rel=0.05)
    assert quarter["same_shard"] > own["same_shard"] > four["same_shard"]
    assert own["run_length"] == 500.0
    assert (table["granularity"], table["clump_size"], table["batch_size"]) == ("shard", 1, 256)


@pytest.mark.parametrize(
    ("granularity", "clump_size"),
    [("shard", 1), ("shard", 8), ("shard", 64), ("row_group", 1), ("row_group", 64), ("row", 1)],
)
def test_orders_keep_what_the_table_says(populate: Populate, granularity: str, clump_size: int) -> None:
    population = populate([(i // 4, 250) for i in range(400)])
    order = ShardAwareShuffle(2, ["storage_shard"], 10_000, granularity, clump_size)
    read = order.arrange(population, 0).rows(np.arange(population.total, dtype=np.uint64))
    batches = (read.astype(np.int64) // 1_000)[: read.size // 256 * 256].reshape(-1, 256)

    counts = np.stack([np.bincount(batch, minlength=100) for batch in batches])

    same = (counts * (counts - 1)).sum() / (batches.shape[0] * 256 * 255)
    told = chosen(population, order, 256)["same_shard"]
    assert same == pytest.approx(told, rel=0.1)


def test_rows_that_move_singly_meet_by_chance(populate: Populate) -> None:
    population = populate([(i, 100) for i in range(50)])
    order = ShardAwareShuffle(1, shuffle_block_size=100, sampling_granularity="row")

    found = chosen(population, order, 10)

    read = order.arrange(population, 0).rows(np.arange(5_000, dtype=np.uint64)).astype(np.int64) // 100
    met = np.mean([np.unique(block).size for block in read.reshape(-1, 100)])
    assert found["shards_per_block"] == pytest.approx(met, rel=0.03)
    assert found["same_shard"] == pytest.approx(99 / 4_999)
    assert not found["exact"]


def test_too_many_blocks_are_estimated_from_the_first(populate: Populate, monkeypatch: pytest.MonkeyPatch) -> None:
    population = populate([(i, 100) for i in range(50)])
    order = ShardAwareShuffle(1, shuffle_block_size=200)
    exact = chosen(population, order, 20)
    monkeypatch.setattr(room, "MOST_BLOCKS", 4)

    estimate = chosen(population, order, 20)

    assert exact["exact"]
    assert not estimate["exact"]
    assert estimate["same_shard"] == pytest.approx(exact["same_shard"])


def test_no_rows_give_no_figures(populate: Populate) -> None:
    assert randomness(populate([]), ShardAwareShuffle(1), 8)["choices"] == []
