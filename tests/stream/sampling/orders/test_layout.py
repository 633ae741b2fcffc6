import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.sampling.orders.layout import Layout

ROWS = st.lists(st.integers(0, 6), min_size=1, max_size=40).map(lambda rows: np.array(rows, dtype=np.uint64))
KEYS = st.integers(0, 2**64 - 1)


@given(rows=ROWS, key=KEYS)
def test_every_place_belongs_to_one_piece_and_pieces_are_whole(rows: np.ndarray, key: int) -> None:
    layout = Layout(rows, key)
    places = np.arange(int(rows.sum()), dtype=np.uint64)
    pieces, offsets = layout.at(places)

    assert np.bincount(pieces, minlength=rows.size).tolist() == rows.tolist()
    assert (layout.begin(pieces) + offsets).tolist() == places.tolist()
    for piece in np.unique(pieces).tolist():
        assert offsets[pieces == piece].tolist() == list(range(int(rows[piece])))


@given(rows=ROWS, key=KEYS)
def test_pieces_are_a_permutation_that_the_key_decides(rows: np.ndarray, key: int) -> None:
    layout = Layout(rows, key)

    assert sorted(layout.pieces.tolist()) == list(range(rows.size))
    assert layout.pieces.tolist() == Layout(rows, key).pieces.tolist()
    assert layout.begins.tolist() == [0, *np.cumsum(rows[layout.pieces]).tolist()]


def test_other_keys_lay_pieces_in_another_order() -> None:
    rows = np.ones(50, dtype=np.uint64)

    assert len({tuple(Layout(rows, key).pieces.tolist()) for key in range(20)}) == 20
