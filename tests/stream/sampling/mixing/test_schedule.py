from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spiral_stream.errors import PlanError
from spiral_stream.sampling.mixing.schedule import FOREVER, Course, Schedule, in_integers, shortest_stretch

few = settings(deadline=None, max_examples=60)


@given(weights=st.lists(st.fractions(0, 100, max_denominator=60), min_size=1, max_size=6).filter(any))
def test_integers_keep_the_proportion_and_are_the_smallest(weights: list[Fraction]) -> None:
    whole = in_integers(weights)

    assert [Fraction(each, sum(whole)) for each in whole] == [each / sum(weights) for each in weights]
    assert np.gcd.reduce(whole) == 1


@few
@given(
    starts=st.lists(st.integers(0, 400), min_size=1, max_size=4, unique=True).map(sorted),
    data=st.data(),
    total=st.integers(1, 150),
    epoch=st.integers(0, 5),
)
def test_an_integral_is_the_sum_of_the_shares(starts: list[int], data: st.DataObject, total: int, epoch: int) -> None:
    """The shares are lines between points, so the trapezoids of whole samples are exact."""
    weights = st.tuples(st.integers(1, 9), st.integers(1, 9))
    schedule = Schedule(tuple((start, data.draw(weights)) for start in starts))
    course = Course(schedule, total, slices=1)
    shares = np.array([course.shares(epoch, at) for at in range(total + 1)])
    whole = course.integral(epoch).astype(float)

    assert shares.sum(axis=1) == pytest.approx(1)
    assert whole / whole.sum() == pytest.approx(((shares[1:] + shares[:-1]) / 2).sum(axis=0) / total)


def test_shares_are_level_before_and_after_the_points() -> None:
    course = Course(Schedule(((200, (1, 0)), (400, (0, 1)))), total=100, slices=4)

    assert [course.level(epoch) for epoch in range(5)] == [2, 1, 0, 0, FOREVER]
    assert course.shares(0, 0).tolist() == [1, 0]
    assert course.shares(3, 0).tolist() == [0.5, 0.5]
    assert course.shares(9, 0).tolist() == [0, 1]


def test_jumps_take_one_sample_and_are_no_moves() -> None:
    jump = ((0, (1, 0)), (500, (1, 0)), (501, (0, 1)))
    ramp = ((0, (1, 0)), (500, (1, 0)), (800, (0, 1)))

    assert (Schedule(jump).moves, Schedule(ramp).moves) == ((0, 0), (500, 800))
    assert (shortest_stretch(jump), shortest_stretch(ramp)) == (500, 300)
    assert shortest_stretch(((0, (1, 1)), (9, (2, 2)))) is None


@pytest.mark.parametrize(
    ("points", "way_out"),
    [
        ((), r"has no point. Give \(sample number, weights\)"),
        (((5, (1,)), (5, (1,))), "Give its points in ascending order"),
        (((0, (1,)), (5, (1, 1))), "Give one weight for each stream, 0 where it rests"),
        (((0, (1, 0)), (5, (2, 0))), "Leave the stream out, or give it a weight at some point"),
    ],
)
def test_a_wrong_schedule_is_refused(points: tuple[tuple[int, tuple[int, ...]], ...], way_out: str) -> None:
    with pytest.raises(PlanError, match=way_out):
        Schedule(points)
