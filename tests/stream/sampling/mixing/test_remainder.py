"""Where a stream goes on: the uses that were left, ascending, and then all that follow."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.sampling.mixing.remainder import LeftOver, as_ranges, joined_ranges


@st.composite
def left_overs(draw: st.DrawFn) -> tuple[LeftOver, list[int]]:
    """What an earlier plan left over, and those uses."""
    then = draw(st.integers(0, 200))
    left = sorted(draw(st.sets(st.integers(0, then - 1), max_size=60))) if then else []
    return LeftOver(joined_ranges(as_ranges(np.array(left, dtype=np.int64))), then), left


@given(drawn=left_overs(), size=st.integers(0, 300))
def test_what_was_left_comes_first_and_then_all_that_follows(drawn: tuple[LeftOver, list[int]], size: int) -> None:
    left_over, left = drawn
    own = np.arange(size, dtype=np.uint64)

    assert left_over.uses(own).tolist() == [*left, *range(left_over.then, left_over.then + size)][:size]
    assert left_over.plan_uses(left_over.uses(own)).tolist() == own.tolist()


@given(drawn=left_overs())
def test_a_use_that_was_delivered_has_no_place(drawn: tuple[LeftOver, list[int]]) -> None:
    left_over, left = drawn
    gone = sorted(set(range(left_over.then)) - set(left))

    assert (left_over.plan_uses(np.array(gone, dtype=np.uint64)) == -1).all()


@given(drawn=left_overs(), begin=st.integers(0, 200), size=st.integers(0, 200))
def test_ranges_are_the_uses_in_a_row(drawn: tuple[LeftOver, list[int]], begin: int, size: int) -> None:
    left_over, _ = drawn
    ranges = left_over.ranges(begin, begin + size)

    flat = [use for first, end in ranges for use in range(first, end)]
    assert flat == left_over.uses(np.arange(begin, begin + size, dtype=np.uint64)).tolist()
    assert all(first < end for first, end in ranges)


@given(uses=st.sets(st.integers(0, 50)))
def test_ranges_are_ascending_and_as_few_as_can_be(uses: set[int]) -> None:
    ranges = as_ranges(np.array(list(uses), dtype=np.int64))

    assert [use for first, count in ranges for use in range(first, first + count)] == sorted(uses)
    assert all(a + n < b for (a, n), (b, _) in pairwise(ranges))
    assert list(joined_ranges([(use, 1) for use in sorted(uses)])) == ranges
