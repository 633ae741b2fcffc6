"""Sizes, ranges and names of transforms are checked when they are made."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream import RandomHorizontalFlip, Tokenize
from spiral_stream.errors import PlanError
from spiral_stream.transforms import CenterCrop, Named, Resize
from spiral_stream.transforms.transform import LARGEST_SIDE, checked_range, checked_size

SIDE = st.integers(1, LARGEST_SIDE)


@given(height=SIDE, width=SIDE)
def test_a_size_is_a_number_or_a_pair(height: int, width: int) -> None:
    assert checked_size("Resize", height) == checked_size("Resize", [height]) == height
    assert checked_size("Resize", [height, width]) == (height, width)


@pytest.mark.parametrize("size", [0, -1, LARGEST_SIDE + 1, 1.5, True, "224", None, (), (1, 2, 3), (1, 0)])
def test_another_size_is_refused(size: Any) -> None:
    with pytest.raises(PlanError, match=r"Resize: size is .*. Give a whole number of pixels or \(height, width\)"):
        checked_size("Resize", size)


@given(low=st.floats(0.01, 5), more=st.floats(0, 5))
def test_a_range_is_two_ascending_numbers(low: float, more: float) -> None:
    assert checked_range("X", "scale", [low, low + more]) == (low, low + more)


@pytest.mark.parametrize("given_range", [(0, 1), (2, 1), (1,), (1, 2, 3), "12", 1, (1, float("inf")), (True, 2)])
def test_another_range_is_refused(given_range: Any) -> None:
    with pytest.raises(PlanError, match=r"X: scale is .*. Give \(low, high\) with 0 < low <= high"):
        checked_range("X", "scale", given_range)


def test_a_transform_names_its_column() -> None:
    transform = Tokenize("text", "t")

    assert transform >> "tokens" == Named(transform, "tokens")
    for name in ("", None, 3):
        with pytest.raises(PlanError, match=r'give the name of the new column, as in Tokenize\(\.\.\.\) >> "tokens"'):
            transform >> name  # type: ignore[operator]


def test_in_evaluation_a_step_that_draws_is_replaced() -> None:
    assert Resize(8).evaluation() == (Resize(8),)
    assert CenterCrop(8).evaluation() == (CenterCrop(8),)
    assert RandomHorizontalFlip().evaluation() == ()
