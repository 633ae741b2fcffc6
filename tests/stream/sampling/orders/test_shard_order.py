"""Shuffles from shard to shard: rows stay in their shard, or within a range of it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import spiral_stream as spiral
from spiral_stream.orders import ExpandedRange, Population, WithinShards
from spiral_stream.testing import check_order


def of(sizes: list[int]) -> Population:
    """Shards of two units each, the second of which may be empty."""
    units = [part for size in sizes for part in (size - size // 3, size // 3)]
    return Population(np.array(units, np.uint64), np.repeat(np.arange(len(sizes), dtype=np.uint64), 2))


def shards_of(rows: NDArray[np.uint64], sizes: list[int]) -> NDArray[np.int64]:
    return np.searchsorted(np.cumsum(sizes), rows, side="right").astype(np.int64)


SIZES = st.lists(st.integers(0, 40), min_size=1, max_size=12).filter(any)


@given(sizes=SIZES, seed=st.integers(0, 2**40), reach=st.integers(2, 100))
def test_every_row_is_read_once(sizes: list[int], seed: int, reach: int) -> None:
    check_order(WithinShards(seed), of(sizes))
    check_order(ExpandedRange(seed, reach), of(sizes))


@given(sizes=SIZES, seed=st.integers(0, 2**40))
def test_a_shard_is_used_up_before_the_next_begins(sizes: list[int], seed: int) -> None:
    order, size = WithinShards(seed), sum(sizes)

    shards = shards_of(order.arrange(of(sizes), 1).rows(np.arange(size, dtype=np.uint64)), sizes)

    turns = 1 + np.count_nonzero(np.diff(shards))
    assert turns == np.count_nonzero(sizes)


def test_rows_move_by_less_than_the_range_and_shards_mix() -> None:
    sizes, reach = [500] * 20, 1_000
    places = np.arange(sum(sizes), dtype=np.uint64)

    shards = shards_of(ExpandedRange(3, reach).arrange(of(sizes), 0).rows(places), sizes)

    spans = [np.ptp(np.flatnonzero(shards == shard)) for shard in range(20)]
    assert max(spans) < 500 + 2 * reach
    assert min(spans) > 700
    assert {len(np.unique(shards[at : at + 64])) for at in range(1_000, 9_000, 64)} >= {2, 3}


def test_passes_differ_in_the_order_of_shards_and_in_each() -> None:
    sizes = [50] * 6
    first, second = (WithinShards(1).arrange(of(sizes), n).rows(np.arange(300, dtype=np.uint64)) for n in (0, 1))

    assert shards_of(first, sizes)[::50].tolist() != shards_of(second, sizes)[::50].tolist()
    shard = shards_of(first, sizes)[0]
    assert first[:50].tolist() != second[shards_of(second, sizes) == shard].tolist()


def test_their_outputs_stay() -> None:
    places = np.arange(12, dtype=np.uint64)

    assert WithinShards(7).arrange(of([5, 7]), 2).rows(places).tolist() == WITHIN
    assert ExpandedRange(7, 8).arrange(of([5, 7]), 2).rows(places).tolist() == SPREAD


WITHIN = [11, 7, 6, 5, 8, 9, 10, 1, 2, 0, 3, 4]
SPREAD = [2, 3, 7, 0, 4, 1, 8, 5, 9, 6, 11, 10]


@pytest.mark.parametrize(("reach", "said"), [(1, "expanded_range is 1"), (2.5, "is 2.5"), (2**63, "Give at most")])
def test_wrong_ranges_are_refused(reach: int, said: str) -> None:
    with pytest.raises(spiral.errors.PlanError, match=said):
        ExpandedRange(seed=1, expanded_range=reach)
