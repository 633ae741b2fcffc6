"""Rows stay near their place, every row is read once, and windows do not show."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spiral_stream as spiral
from spiral_stream.orders import Population, WindowShuffle
from spiral_stream.testing import check_order


def of(size: int) -> Population:
    return Population(np.array([size], np.uint64), np.zeros(1, np.uint64))


@given(size=st.integers(1, 400), window=st.integers(1, 500), seed=st.integers(0, 2**40))
def test_every_row_is_read_once_and_moves_by_less_than_two_windows(size: int, window: int, seed: int) -> None:
    order = WindowShuffle(seed, window)

    check_order(order, of(size))

    places = np.arange(size, dtype=np.uint64)
    rows = order.arrange(of(size), 0).rows(places)
    assert np.abs(rows.astype(np.int64) - places.astype(np.int64)).max() < 2 * window


def test_rows_cross_the_borders_of_windows() -> None:
    size, window = 100_000, 1_000
    rows = WindowShuffle(seed=1, window=window).arrange(of(size), 0).rows(np.arange(size, dtype=np.uint64))

    left = (rows // window != np.arange(size) // window).mean()
    assert 0.48 < left < 0.52  # the second windows lie half across


def test_passes_and_streams_differ_and_a_window_of_one_is_the_stored_order() -> None:
    places = np.arange(1_000, dtype=np.uint64)
    order = WindowShuffle(seed=1, window=100)

    first, second = (order.arrange(of(1_000), number).rows(places) for number in (0, 1))
    assert (first != second).any()
    assert (WindowShuffle(1, 1).arrange(of(1_000), 0).rows(places) == places).all()


def test_it_goes_through_rows_beyond_32_bits() -> None:
    population, order = of(10**12), WindowShuffle(seed=3, window=2**20)
    places = np.array([0, 10**11, 10**12 - 1], np.uint64)

    arranged = order.arrange(population, 5)
    assert arranged.positions(arranged.rows(places)).tolist() == places.tolist()


def test_its_outputs_stay() -> None:
    rows = WindowShuffle(seed=7, window=8).arrange(of(20), 2).rows(np.arange(20, dtype=np.uint64))

    assert rows.tolist() == [2, 5, 7, 1, 4, 11, 6, 10, 0, 12, 3, 14, 9, 16, 17, 19, 18, 8, 13, 15]


def test_a_sorted_relation_is_read_in_its_rough_order(tmp_path_factory: pytest.TempPathFactory) -> None:
    catalog = spiral.connect(tmp_path_factory.mktemp("window"))
    table = pa.table({"id": range(300), "hard": [(i * 7919) % 300 for i in range(300)]})
    catalog.register("rows", spiral.Arrow(table), identity="id")

    sampled = catalog.table("rows").sort("hard").sample(order=spiral.orders.WindowShuffle(1, 20), identity="id")
    with sampled.collate(batch_size=10, fields={"hard": spiral.Stack("hard")}).to_numpy() as read:
        hard = np.concatenate([batch["hard"] for batch in read])
    assert sorted(hard.tolist()) == list(range(300))
    assert 0 < np.abs(hard - np.arange(300)).max() < 40


@pytest.mark.parametrize(("window", "said"), [(0, "window is 0"), (True, "window is True"), (2**63, "Give at most")])
def test_wrong_windows_are_refused(window: int, said: str) -> None:
    with pytest.raises(spiral.errors.PlanError, match=said):
        WindowShuffle(seed=1, window=window)
