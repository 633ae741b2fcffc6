from collections.abc import Callable

import numpy as np

from spiral_stream import Sequential
from spiral_stream.orders import Population


def test_row_p_stands_at_position_p_in_every_pass(populate: Callable[..., Population]) -> None:
    population = populate([(0, 5), (1, 7)])
    places = np.array([3, 0, 11], dtype=np.uint64)
    for number in (0, 1, 10**6):
        arranged = Sequential().arrange(population, number)
        assert arranged.size == 12
        assert arranged.rows(places).tolist() == arranged.positions(places).tolist() == [3, 0, 11]


def test_what_is_returned_is_the_callers(populate: Callable[..., Population]) -> None:
    arranged, places = Sequential().arrange(populate([(0, 5)]), 0), np.arange(5, dtype=np.uint64)
    arranged.rows(places)[:] = 9
    arranged.positions(places)[:] = 9

    assert places.tolist() == [0, 1, 2, 3, 4]


def test_it_needs_neither_seed_nor_index() -> None:
    order = Sequential()

    assert (order.run_seed, order.needs_index, order.grouped_by) == (0, False, ())
