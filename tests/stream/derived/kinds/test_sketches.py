"""Sketches of shards say, merged, what the whole says, within the error that they promise."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.derived import _runs
from spiral_stream.derived.kinds.column_facts import (
    REGISTERS,
    STEPS,
    estimated_distinct,
    points_at,
    quantile_points,
    registers_of,
)


def hashes_of(values: np.ndarray) -> np.ndarray:
    hashes = np.zeros(len(values), np.uint64)
    _runs.hash_words(values.astype(np.uint64), hashes, 0)
    return hashes


@given(st.lists(st.integers(0, 2**64 - 1), max_size=60), st.lists(st.integers(0, 2**64 - 1), max_size=60))
def test_registers_of_the_union_are_the_greater_ones(one: list[int], other: list[int]) -> None:
    a, b, both = (np.array(each, np.uint64) for each in (one, other, one + other))

    assert np.array_equal(registers_of(both), np.maximum(registers_of(a), registers_of(b)))
    assert np.array_equal(registers_of(b, registers_of(a)), registers_of(both))


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=20))
def test_a_register_keeps_the_most_zeros(hashes: list[int]) -> None:
    wanted = np.zeros(REGISTERS, np.uint8)
    for each in hashes:
        rest = f"{each:064b}"[11:]
        rank = len(rest) - len(rest.lstrip("0")) + 1
        wanted[each >> 53] = max(wanted[each >> 53], rank)

    assert np.array_equal(registers_of(np.array(hashes, np.uint64)), wanted)


def test_distinct_values_are_estimated_within_four_standard_errors() -> None:
    for count in (0, 1, 100, 1_000, 5_000, 20_000, 300_000):
        for seed in range(3):
            hashes = hashes_of(np.arange(count) + (seed << 40))
            assert abs(estimated_distinct(registers_of(np.repeat(hashes, 2))) - count) <= 4 * 0.023 * count


@given(
    shards=st.lists(st.lists(st.integers(-50, 50), max_size=300), min_size=1, max_size=6).filter(any),
    repeats=st.integers(1, 3),
)
def test_quartiles_are_wrong_by_few_ranks(shards: list[list[int]], repeats: int) -> None:
    values = [np.sort(np.array(shard * repeats, np.int64)) for shard in shards]
    kept = [shard[points_at(len(shard))] for shard in values]
    points, rows = np.array([len(each) for each in kept]), np.array([len(each) for each in values])
    joined, every = np.concatenate(kept), np.sort(np.concatenate(values))

    weights = np.repeat(rows / np.maximum(points, 1), points)
    found = joined[quantile_points(np.argsort(joined, kind="stable"), weights, int(rows.sum()))]

    assert (found[0], found[4]) == (every[0], every[-1])
    assert points.max() <= STEPS + 1
    for value, wanted in zip(found[1:4], (0.25, 0.5, 0.75), strict=True):
        low, high = np.searchsorted(every, value, "left"), np.searchsorted(every, value, "right")
        slack = len(every) * (1 / STEPS) + len(shards) + 1
        assert low - slack <= wanted * len(every) <= high + slack
