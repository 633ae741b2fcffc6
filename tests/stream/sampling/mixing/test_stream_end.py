"""A stream that ends begins its next pass: uses and places of passes are two names for one thing."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.sampling.mixing.stream_end import pass_of, passes_of, use_of


@given(st.lists(st.integers(0, 1 << 62), min_size=1), st.integers(1, 1 << 40))
def test_every_use_has_one_place_in_one_pass(uses: list[int], rows: int) -> None:
    passes, places = pass_of(np.array(uses, dtype=np.uint64), np.uint64(rows))

    assert (places < rows).all()
    again = [use_of(number, place, rows) for number, place in zip(passes.tolist(), places.tolist(), strict=True)]
    assert again == uses
    assert [pass_of(use, rows) for use in uses] == list(zip(passes.tolist(), places.tolist(), strict=True))


@given(st.integers(0, 60), st.integers(0, 60), st.integers(1, 9))
def test_a_run_of_uses_touches_the_passes_of_its_uses(first: int, count: int, rows: int) -> None:
    touched = {pass_of(use, rows)[0] for use in range(first, first + count)}

    assert touched <= set(passes_of(first, first + count, rows))
    assert not count or touched == set(passes_of(first, first + count, rows))
