"""Widths of padded batches."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.batching.padding_width import common_multiple, padded


@given(st.lists(st.integers(0, 10_000), min_size=1), st.lists(st.integers(1, 64), max_size=3))
def test_a_width_is_the_least_multiple_that_holds_the_longest_sequence(longest: list[int], asked: list[int]) -> None:
    multiple = common_multiple(asked)
    widths = padded(np.array(longest), multiple)

    assert all(multiple % each == 0 for each in asked)
    for width, length in zip(widths.tolist(), longest, strict=True):
        assert width % multiple == 0
        assert max(1, length) <= width < max(1, length) + multiple
