"""Each position draws any row, by itself and the same every time."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spiral_stream as spiral
from spiral_stream.orders import Population, WithReplacement
from spiral_stream.seeding import below
from spiral_stream.testing import check_order


def of(size: int) -> Population:
    return Population(np.array([size], np.uint64), np.zeros(1, np.uint64))


@given(size=st.integers(1, 400), seed=st.integers(0, 2**40))
def test_rows_are_found_at_every_place_that_draws_them(size: int, seed: int) -> None:
    check_order(WithReplacement(seed), of(size))


def test_each_row_is_drawn_with_the_same_probability() -> None:
    size, passes = 100, 400
    order = WithReplacement(5)
    drawn = np.concatenate([order.arrange(of(size), n).rows(np.arange(size, dtype=np.uint64)) for n in range(passes)])

    counts = np.bincount(drawn.astype(np.int64), minlength=size)
    assert ((counts - passes) ** 2 / passes).sum() < 160  # chi square with 99 degrees of freedom: 1 in 10,000
    missing = [size - len(np.unique(part)) for part in np.split(drawn, passes)]
    assert abs(np.mean(missing) / size - 0.366) < 0.01


@given(key=st.integers(0, 2**64 - 1), size=st.integers(1, 2**62))
def test_a_key_stands_for_the_high_word_of_its_product_with_the_size(key: int, size: int) -> None:
    assert int(below(np.array([key], np.uint64), size)[0]) == key * size >> 64


def test_its_outputs_stay_and_reach_rows_beyond_32_bits() -> None:
    places = np.arange(10, dtype=np.uint64)

    assert WithReplacement(7).arrange(of(20), 2).rows(places).tolist() == GOLDEN
    assert int(WithReplacement(7).arrange(of(10**12), 0).rows(places).max()) > 2**33


GOLDEN = [5, 13, 16, 6, 7, 7, 13, 6, 17, 12]


def test_positions_of_rows_are_not_a_function_and_refused() -> None:
    with pytest.raises(spiral.errors.PlanError, match="places_of"):
        WithReplacement(1).arrange(of(5), 0).positions(np.zeros(1, np.uint64))
