"""Where a stream goes on: the uses that were left, ascending, and then all that follow."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.sampling.carry import Carry, as_ranges, joined_ranges


@st.composite
def carries(draw: st.DrawFn) -> tuple[Carry, list[int]]:
    """A carry, and the uses that it left."""
    then = draw(st.integers(0, 200))
    left = sorted(draw(st.sets(st.integers(0, then - 1), max_size=60))) if then else []
    return Carry(joined_ranges(as_ranges(np.array(left, dtype=np.int64))), then), left


@given(drawn=carries(), size=st.integers(0, 300))
def test_what_was_left_comes_first_and_then_all_that_follows(drawn: tuple[Carry, list[int]], size: int) -> None:
    carry, left = drawn
    own = np.arange(size, dtype=np.uint64)

    assert carry.uses(own).tolist() == [*left, *range(carry.then, carry.then + size)][:size]
    assert carry.own(carry.uses(own)).tolist() == own.tolist()


@given(drawn=carries())
def test_a_use_that_was_delivered_has_no_place(drawn: tuple[Carry, list[int]]) -> None:
    carry, left = drawn
    gone = sorted(set(range(carry.then)) - set(left))

    assert (carry.own(np.array(gone, dtype=np.uint64)) == -1).all()


@given(drawn=carries(), begin=st.integers(0, 200), size=st.integers(0, 200))
def test_ranges_are_the_uses_in_a_row(drawn: tuple[Carry, list[int]], begin: int, size: int) -> None:
    carry, _ = drawn
    ranges = carry.ranges(begin, begin + size)

    flat = [use for first, end in ranges for use in range(first, end)]
    assert flat == carry.uses(np.arange(begin, begin + size, dtype=np.uint64)).tolist()
    assert all(first < end for first, end in ranges)


@given(uses=st.sets(st.integers(0, 50)))
def test_ranges_are_ascending_and_as_few_as_can_be(uses: set[int]) -> None:
    ranges = as_ranges(np.array(list(uses), dtype=np.int64))

    assert [use for first, count in ranges for use in range(first, first + count)] == sorted(uses)
    assert all(a + n < b for (a, n), (b, _) in pairwise(ranges))
    assert list(joined_ranges([(use, 1) for use in sorted(uses)])) == ranges
