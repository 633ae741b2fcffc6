import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.batching.emission import emission_order


@given(count=st.integers(0, 300), group=st.integers(1, 40), key=st.integers(0, 2**64 - 1), window=st.integers(0, 63))
def test_every_batch_is_delivered_once_and_neighbours_stay_together(
    count: int, group: int, key: int, window: int
) -> None:
    order = emission_order(count, group, key, window)

    assert sorted(order.tolist()) == list(range(count))
    inside = order[1:][order[1:] % group != 0]
    assert (inside == order[:-1][order[1:] % group != 0] + 1).all()


def test_windows_and_chapters_draw_their_own_order() -> None:
    orders = {tuple(emission_order(80, 8, key, window).tolist()) for key in range(4) for window in range(4)}

    assert len(orders) == 16


def test_the_order_of_a_key_never_changes() -> None:
    assert emission_order(20, 4, 7, 0)[::4].tolist() == [4, 16, 12, 0, 8]


def test_a_group_of_all_batches_keeps_their_order() -> None:
    assert (emission_order(50, 50, 3, 1) == np.arange(50)).all()
