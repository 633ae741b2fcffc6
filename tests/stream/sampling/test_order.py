"""The laws that every order keeps, and the golden replays.

A golden replay changes only together with `Order.VERSION`; the failing test
prints the new one, which then goes into ``tests/replay/orders.json``.
"""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from spiral_stream import GlobalShuffle, HashBucketed, Sequential, ShardAwareShuffle, ShuffleBuckets
from spiral_stream.orders import Order, Population

REPLAY = Path(__file__).parents[2] / "replay" / "orders.json"
Populate = Callable[..., Population]
quick = settings(deadline=None, max_examples=80, derandomize=True)

UNITS = st.lists(st.integers(0, 60), max_size=25).flatmap(
    lambda rows: st.lists(st.integers(0, 2), min_size=len(rows), max_size=len(rows)).map(
        lambda steps: list(zip(np.cumsum(steps).tolist(), rows, strict=True))
    )
)
SEEDS = st.integers(-(2**70), 2**70)
ORDERS = st.one_of(
    st.just(Sequential()),
    st.builds(GlobalShuffle, seed=SEEDS, clump_size=st.integers(1, 50)),
    st.builds(
        ShardAwareShuffle,
        seed=SEEDS,
        shuffle_block_size=st.integers(1, 400) | st.just(10**12),
        sampling_granularity=st.sampled_from(["shard", "row_group"]),
        clump_size=st.integers(1, 20),
    ),
    st.builds(
        ShardAwareShuffle,
        seed=SEEDS,
        shuffle_block_size=st.integers(1, 400),
        sampling_granularity=st.just("row"),
    ),
    st.builds(
        ShardAwareShuffle,
        seed=SEEDS,
        shard_key=st.sampled_from([("grp",), ("grp", "storage_shard")]),
        shuffle_block_size=st.integers(1, 400) | st.just(10**12),
        clump_size=st.integers(1, 20),
    ),
    st.builds(
        HashBucketed,
        seed=SEEDS,
        bucket_count=st.sampled_from([1, 2, 16, 1024]),
        bucket_order=st.builds(ShuffleBuckets, seed=SEEDS),
    ),
)
SHUFFLES = [
    GlobalShuffle(7),
    GlobalShuffle(7, clump_size=5),
    ShardAwareShuffle(7, shuffle_block_size=500),
    ShardAwareShuffle(7, shuffle_block_size=500, sampling_granularity="row_group", clump_size=4),
    ShardAwareShuffle(7, shuffle_block_size=500, sampling_granularity="row"),
    HashBucketed(7, bucket_count=64),
]


def whole(order: Order, population: Population, pass_number: int = 0) -> np.ndarray:
    arrangement = order.arrange(population, pass_number)
    return arrangement.rows(np.arange(arrangement.size, dtype=np.uint64))


@quick
@given(units=UNITS, order=ORDERS, pass_number=st.integers(0, 10**6))
def test_cover_each_row_stands_at_exactly_one_position(
    populate: Populate, units: list[tuple[int, int]], order: Order, pass_number: int
) -> None:
    population = populate(units)
    arrangement = order.arrange(population, pass_number)
    positions = np.arange(population.total, dtype=np.uint64)

    rows = arrangement.rows(positions)

    assert arrangement.size == population.total
    assert rows.dtype == np.uint64
    assert np.array_equal(np.sort(rows), positions)
    assert np.array_equal(arrangement.positions(rows), positions)


@quick
@given(units=UNITS.filter(lambda units: sum(rows for _, rows in units)), order=ORDERS, picks=st.lists(st.integers(0)))
def test_pure_a_row_depends_on_its_position_only(
    populate: Populate, units: list[tuple[int, int]], order: Order, picks: list[int]
) -> None:
    population = populate(units)
    asked = np.array([pick % population.total for pick in picks], dtype=np.uint64)
    before = asked.copy()

    rows = order.arrange(population, 3).rows(asked)

    assert np.array_equal(rows, whole(order, population, 3)[asked.astype(np.int64)])
    assert np.array_equal(asked, before)
    arrangement = order.arrange(population, 3)
    split = [arrangement.rows(part) for part in np.array_split(asked, 3)]
    assert np.array_equal(np.concatenate(split), rows)
    assert np.array_equal(arrangement.positions(rows), asked)


@pytest.mark.parametrize("order", SHUFFLES, ids=repr)
def test_passes_seeds_and_streams_give_unrelated_orders(populate: Populate, order: Order) -> None:
    units = [(i // 2, 10 + i) for i in range(60)]
    plain, other = populate(units), populate(units, stream="b", identities=[f"id-{i:06d}" for i in range(2_370)])
    next_seed = type(order)(**{**{name: getattr(order, name) for name in order.__slots__}, "seed": 8})
    if isinstance(order, HashBucketed):
        next_seed = HashBucketed(8, order.bucket_count)
    seen = {
        "pass 0": whole(order, plain, 0),
        "pass 1": whole(order, plain, 1),
        "pass 2": whole(order, plain, 2),
        "next seed, pass 0": whole(next_seed, plain, 0),
        "next seed, pass 1": whole(next_seed, plain, 1),
        "stream b": whole(order, other, 0),
    }

    names = list(seen)
    # Runs that move together agree together, so the bound is loose; equal orders agree 2,370 times.
    assert max(int((seen[a] == seen[b]).sum()) for a in names for b in names if a < b) < 200
    assert np.array_equal(seen["pass 1"], whole(order, plain, 1))


@pytest.mark.parametrize("order", SHUFFLES[:1] + SHUFFLES[4:], ids=repr)
def test_epochs_are_uncorrelated(populate: Populate, order: Order) -> None:
    population = populate([(i, 100) for i in range(50)])
    passes = np.stack([whole(order, population, p).astype(np.float64) for p in range(5)])

    correlations = np.corrcoef(passes)[np.triu_indices(5, 1)] * np.sqrt(population.total - 1)

    assert np.abs(correlations).max() < 3.9


def replay_cases() -> dict[str, Order]:
    return {
        "sequential": Sequential(),
        "global": GlobalShuffle(17),
        "global_clumps": GlobalShuffle(17, clump_size=8),
        "shard": ShardAwareShuffle(17, shuffle_block_size=1_000),
        "row_group_clumps": ShardAwareShuffle(
            9176,
            ["stream_id", "storage_shard"],
            shuffle_block_size=1_000,
            sampling_granularity="row_group",
            clump_size=4,
        ),
        "row": ShardAwareShuffle(17, shuffle_block_size=1_000, sampling_granularity="row"),
        "hash_bucketed": HashBucketed(123456, bucket_order=ShuffleBuckets(123456)),
        "hash_bucketed_16": HashBucketed(123456, bucket_count=16, bucket_order=ShuffleBuckets(7)),
    }


def replay(order: Order, populate: Populate) -> dict[str, object]:
    """First 64 rows and the digest of all, in pass 2 of a fixed population of stream "demo"."""
    population = populate([(i // 3, (i * 37 + 11) % 251) for i in range(80)], stream="demo")
    rows = whole(order, population, 2)
    digest = xxhash.xxh3_128_hexdigest(rows.astype("<u8").tobytes())
    return {"version": order.VERSION, "rows": rows.size, "first": rows[:64].tolist(), "digest": digest}


@pytest.mark.parametrize("name", replay_cases())
def test_golden_replays_stay(populate: Populate, name: str) -> None:
    found = replay(replay_cases()[name], populate)

    assert found == json.loads(REPLAY.read_text())[name], json.dumps({name: found})
