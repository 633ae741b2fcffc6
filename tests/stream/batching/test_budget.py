import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream import BatchBudget
from spiral_stream.batching import Setting, Window
from spiral_stream.batching.budget import BatchLimits, limits_of, oversize_error, too_large, truncated
from spiral_stream.errors import PlanError


def window(lengths: list[int], *costs: list[int]) -> Window:
    count = len(lengths)
    arrays = tuple(np.array(cost, dtype=np.int64) for cost in costs)
    return Window(np.arange(count), np.zeros(count, np.int32), np.array(lengths, dtype=np.int64), (), arrays)


@given(st.lists(st.integers(0, 5_000), min_size=1), st.integers(1, 64), st.integers(64, 2_000), st.booleans())
def test_a_truncated_sample_fits_and_loses_no_more_than_it_must(
    lengths: list[int], multiple: int, tokens: int, padded: bool
) -> None:
    limits = BatchLimits(multiple, None, tokens, padded, ())
    cut = truncated(np.array(lengths), limits)

    assert not too_large(window(cut.tolist()), limits).any()
    assert (cut == lengths)[~too_large(window(lengths), limits)].all()
    longer = (cut + (multiple if padded else 1)).tolist()
    assert too_large(window(longer), limits)[cut < lengths].all()


def test_a_width_is_the_next_multiple_and_at_least_one() -> None:
    limits = BatchLimits(128, 4, None, padded=True, additive=())

    assert limits.widths(np.array([0, 1, 128, 129])).tolist() == [128, 128, 128, 256]


def test_padded_and_real_tokens_are_different_limits() -> None:
    two, long, both = np.array([2]), np.array([100]), np.array([110])

    assert not BatchLimits(128, None, 200, padded=True, additive=()).hold(two, long, both, ())[0]
    assert BatchLimits(128, None, 200, padded=False, additive=()).hold(two, long, both, ())[0]


def test_additive_costs_come_as_frames_then_bytes() -> None:
    budget = BatchBudget(max_frames=10, max_bytes=1_000)

    assert list(budget.additive) == ["frames", "bytes"]
    assert limits_of(budget, Setting(0, 3)).additive == (10, 1_000)
    assert too_large(window([0, 0, 0], [10, 11, 1], [5, 5, 1_001]), limits_of(budget, Setting(0, 3))).tolist() == [
        False,
        True,
        True,
    ]


def test_the_error_of_a_large_sample_carries_its_number_and_shows_the_ways_out() -> None:
    budget = BatchBudget(max_tokens=300)
    error = oversize_error(window([1, 257]), 1, budget, limits_of(budget, Setting(0, 2, multiple=128)))

    assert error.sample == 1
    text = r"257 tokens, and a batch may hold 300 .* choose oversize='truncate' or 'alone' or 'drop'"
    assert re.search(text, str(error))


@pytest.mark.parametrize(
    ("wrong", "way_out"),
    [
        ({}, "Give max_tokens, max_frames, max_bytes, max_images or max_patches"),
        ({"max_tokens": 0}, "Give an integer from 1"),
        ({"max_tokens": 2.5}, "Give an integer from 1"),
        ({"max_frames": True}, "Give an integer from 1"),
        ({"max_bytes": -1}, "Give an integer from 1"),
        ({"max_tokens": 5, "count": "some"}, "Give one of padded, real"),
        ({"max_tokens": 5, "oversize": "skip"}, "Give one of raise, truncate, alone, drop"),
        ({"max_bytes": 5, "oversize": "truncate"}, "Give it, or another policy"),
    ],
)
def test_a_wrong_budget_is_refused_with_the_way_out(wrong: dict[str, Any], way_out: str) -> None:
    with pytest.raises(PlanError, match=way_out):
        BatchBudget(**wrong)


def test_a_chapter_without_any_limit_is_refused() -> None:
    with pytest.raises(PlanError, match=r"Give batch_size, or budget=BatchBudget"):
        limits_of(None, Setting(0, 3))


def test_a_budget_that_no_row_fits_is_refused() -> None:
    with pytest.raises(PlanError, match=r"one row is already 128 wide .* lower pad_to_multiple_of"):
        limits_of(BatchBudget(max_tokens=100), Setting(0, 3, multiple=128))
