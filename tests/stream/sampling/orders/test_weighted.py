"""Rows are drawn in proportion to their weights, with replacement and without, by arithmetic alone."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import spiral_stream as spiral
from spiral_stream.orders import Population, Weighted
from spiral_stream.sampling.order import WEIGHT_BLOCK
from spiral_stream.sampling.orders.weighted_pass import WeightedPass, minus_log
from spiral_stream.testing import check_order


@dataclass
class Given:
    """Weights in memory."""

    weights: NDArray[np.float64]
    asked: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.positive = int(np.count_nonzero(self.weights))

    def of(self, rows: NDArray[np.uint64]) -> NDArray[np.float64]:
        self.asked.append(len(rows))
        return self.weights[rows]

    def cumulated(self) -> NDArray[np.float64]:
        padded = np.concatenate([self.weights, np.zeros(-len(self.weights) % WEIGHT_BLOCK)])
        return np.cumsum(np.cumsum(padded.reshape(-1, WEIGHT_BLOCK), axis=1)[:, -1])


def of(weights: NDArray[np.float64]) -> Population:
    return Population(np.array([len(weights)], np.uint64), np.zeros(1, np.uint64), weights=Given(weights))


def places(size: int) -> NDArray[np.uint64]:
    return np.arange(size, dtype=np.uint64)


WEIGHTS = st.lists(st.sampled_from([0.0, 1e-300, 0.1, 1.0, 3.0, 1e18]), min_size=1, max_size=300).filter(any)


@settings(max_examples=15)
@given(weights=WEIGHTS, seed=st.integers(0, 2**40), replacement=st.booleans())
def test_orders_keep_the_law_and_never_read_a_row_of_weight_0(
    weights: list[float], seed: int, replacement: bool
) -> None:
    given = np.array(weights)
    order = Weighted("w", replacement=replacement, seed=seed)

    check_order(order, of(given))

    rows = order.arrange(of(given), 0).rows(places(order.size(of(given))))
    assert (given[rows] > 0).all()


def test_with_replacement_rows_come_as_often_as_they_weigh() -> None:
    weights = np.random.default_rng(0).random(500) ** 4
    weights[::5] = 0
    order = Weighted("w", seed=3)
    drawn = np.concatenate([order.arrange(of(weights), n).rows(places(500)) for n in range(200)])

    expected = weights / weights.sum() * len(drawn)
    counts = np.bincount(drawn.astype(np.int64), minlength=500)
    often = expected >= 5
    assert abs(((counts - expected)[often] ** 2 / expected[often]).sum() / often.sum() - 1) < 0.35
    assert not counts[::5].any()


def test_without_replacement_rows_come_as_if_drawn_one_after_the_other() -> None:
    """The first two rows of a pass against the probabilities of drawing them in turn."""
    weights = np.array([1.0, 2.0, 3.0, 4.0])
    order = Weighted("w", replacement=False, seed=1)
    rows = np.array([order.arrange(of(weights), n).rows(places(2)) for n in range(4_000)]).astype(np.int64)

    for first in range(4):
        for second in set(range(4)) - {first}:
            p = weights[first] / 10 * weights[second] / (10 - weights[first])
            found = ((rows[:, 0] == first) & (rows[:, 1] == second)).mean()
            assert abs(found - p) < 4.5 * np.sqrt(p * (1 - p) / 4_000)


@settings(max_examples=10)
@given(seed=st.integers(0, 2**40), part_rows=st.integers(20, 2_000))
def test_the_parts_of_a_pass_cannot_be_seen(seed: int, part_rows: int) -> None:
    weights = np.random.default_rng(seed % 1_000).random(1_500)
    weights[::9] = 0
    one, several = (WeightedPass(1_500, Given(weights), seed, rows) for rows in (10**9, part_rows))

    rows = one.rows(places(one.size))
    assert np.array_equal(several.rows(places(one.size)), rows)
    shuffled = np.random.default_rng(1).permutation(one.size).astype(np.uint64)
    assert np.array_equal(several.rows(shuffled), rows[shuffled])
    assert np.array_equal(several.positions(rows), places(one.size))
    assert several.positions_of(0) == []


def test_a_large_pass_is_read_part_by_part() -> None:
    weights = Given(np.full(200_000, 2.0))
    arranged = WeightedPass(200_000, weights, 1, 10_000)
    weights.asked.clear()

    first = arranged.rows(places(100))

    assert sum(weights.asked) == 200_000  # one scan
    assert np.array_equal(arranged.rows(places(50)), first[:50])
    assert sum(weights.asked) == 200_000  # none


def test_the_logarithm_is_exact_to_the_last_bits() -> None:
    values = np.concatenate([np.random.default_rng(0).random(10_000), [1.0, 2.0**-53, 0.5, np.nextafter(1, 0)]])

    found, expected = minus_log(values[values > 0]), -np.log(values[values > 0])
    assert (np.abs(found - expected) <= 4 * np.spacing(np.abs(expected))).all()


def test_its_outputs_stay() -> None:
    weights = np.arange(20, dtype=np.float64)
    drawn, once = (Weighted("w", replacement=r, seed=7).arrange(of(weights), 2).rows(places(12)) for r in (True, False))

    assert drawn.tolist() == DRAWN
    assert once.tolist() == ONCE


DRAWN = [13, 18, 10, 8, 6, 17, 4, 4, 17, 14, 11, 19]
ONCE = [10, 15, 5, 6, 17, 11, 16, 12, 14, 19, 9, 13]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"weights": 3}, "weights is 3"),
        ({"weights": ""}, "Name a column"),
        ({"weights": "w", "replacement": 1}, "Give True"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, object], said: str) -> None:
    with pytest.raises(spiral.errors.PlanError, match=said):
        Weighted(**options)  # type: ignore[arg-type]  # that is what is tested
