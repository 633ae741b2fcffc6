import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream import seeding
from spiral_stream.batching.emission import emission_order
from spiral_stream.seeding import combine


@given(count=st.integers(0, 300), group=st.integers(1, 40), key=st.integers(0, 2**64 - 1), window=st.integers(0, 63))
def test_every_batch_is_delivered_once_and_neighbours_stay_together(
    count: int, group: int, key: int, window: int
) -> None:
    order = emission_order(count, group, key, window)

    assert sorted(order.tolist()) == list(range(count))
    inside = order[1:][order[1:] % group != 0]
    assert (inside == order[:-1][order[1:] % group != 0] + 1).all()


@given(groups=st.integers(0, 100), size=st.integers(1, 3), key=st.integers(0, 2**64 - 1), window=st.integers(0, 63))
def test_groups_are_in_the_order_of_their_hashes(groups: int, size: int, key: int, window: int) -> None:
    hashes = combine(np.uint64(seeding.key("emission", key, window)), np.arange(groups, dtype=np.uint64)).tolist()

    order = emission_order(groups * size, size, key, window)

    assert (order[::size] // size).tolist() == sorted(range(groups), key=hashes.__getitem__)


def test_windows_and_chapters_draw_their_own_order() -> None:
    orders = {tuple(emission_order(80, 8, key, window).tolist()) for key in range(4) for window in range(4)}

    assert len(orders) == 16


def test_the_order_of_a_key_never_changes() -> None:
    assert emission_order(20, 4, 7, 0)[::4].tolist() == [4, 16, 12, 0, 8]


def test_a_group_of_all_batches_keeps_their_order() -> None:
    assert (emission_order(50, 50, 3, 1) == np.arange(50)).all()
