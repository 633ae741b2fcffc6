"""A deal is a permutation of a step's batches: in each microstep batches of neighbouring cost, and nobody waits for nothing."""

from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.sampling.dealing import POLICIES, dealt, microsteps, wait_share, waits, worlds

COSTS = st.floats(0, 1e9, allow_nan=False, width=32) | st.sampled_from([0.0, 1.0, 2.0])
STEPS = st.tuples(st.integers(1, 8), st.integers(1, 3), st.integers(1, 6)).flatmap(
    lambda shape: st.tuples(st.just(shape), st.lists(COSTS, min_size=prod(shape), max_size=prod(shape)))
)


@given(STEPS, st.sampled_from(POLICIES), st.integers(0, 3))
def test_every_batch_of_a_step_has_one_place(
    step: tuple[tuple[int, ...], list[float]], policy: str, short: int
) -> None:
    (world, merge, _), costs = step
    some = np.array(costs[: max(1, len(costs) - short)])

    order = dealt(some, world, merge, policy)  # type: ignore[arg-type]

    assert sorted(order.tolist()) == list(range(len(some)))
    assert dealt(some.copy(), world, merge, policy).tolist() == order.tolist()  # type: ignore[arg-type]


@given(STEPS)
def test_a_microstep_has_batches_of_neighbouring_cost_the_costliest_first(
    step: tuple[tuple[int, ...], list[float]],
) -> None:
    (world, merge, _), costs = step
    order = dealt(np.array(costs), world, merge, "cost")

    stripes = np.array(costs)[order].reshape(-1, world * merge)
    assert all(here.min() >= after.max() for here, after in zip(stripes[:-1], stripes[1:], strict=True))


@given(STEPS)
def test_a_deal_never_lets_ranks_wait_longer_than_the_order_does(step: tuple[tuple[int, ...], list[float]]) -> None:
    (world, _, count), costs = step
    some = np.array(costs[: world * count])

    with_deal = microsteps(some[dealt(some, world, 1, "cost")], world, 1)
    without = microsteps(some, world, 1)

    assert with_deal.max(axis=1).sum() <= without.max(axis=1).sum() * (1 + 1e-12)
    assert wait_share(with_deal) <= wait_share(without) + 1e-9


@given(STEPS)
def test_sums_of_ranks_differ_by_less_than_the_costliest_batch(step: tuple[tuple[int, ...], list[float]]) -> None:
    (world, _, count), costs = step
    some = np.array(costs[: world * count])

    sums = microsteps(some[dealt(some, world, 1, "cost")], world, 1).sum(axis=0)

    assert sums.max() - sums.min() <= some.max() * (1 + 1e-9)


def test_batches_of_equal_cost_go_by_position() -> None:
    assert dealt(np.ones(12), 3, 2, "cost").tolist() == [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]
    assert dealt(np.ones(4), 4, 1, "cost").tolist() == [0, 1, 2, 3]


def test_the_wait_is_the_share_of_all_time_that_ranks_do_not_work() -> None:
    per_rank = np.array([[4.0, 2.0], [1.0, 1.0], [0.0, 0.0]])

    assert waits(per_rank).tolist() == [0.25, 0.0, 0.0]
    assert wait_share(per_rank) == pytest.approx(1 - 4 / 5)
    assert wait_share([per_rank[:1], per_rank[1:]]) == pytest.approx(0.2)


def test_merged_batches_count_together() -> None:
    assert microsteps(np.array([1.0, 2.0, 3.0, 4.0, 5.0]), 2, 2).tolist() == [[3.0, 7.0], [5.0, 0.0]]


@pytest.mark.parametrize(
    ("step_batches", "merge", "found"), [(24, 1, [1, 2, 3, 4, 6, 8, 12, 24]), (24, 5, []), (24, 4, [1, 2, 3, 6])]
)
def test_ranks_that_share_a_step_evenly(step_batches: int, merge: int, found: list[int]) -> None:
    assert worlds(step_batches, merge) == found
