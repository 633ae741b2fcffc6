"""The record of a rebase comes back from JSON as it was, or is refused; runs that have one are in `stream/test_rebase`."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.errors import ResumeError
from spiral_stream.planner.state.rebase import Rebase
from spiral_stream.sampling.mixing.remainder import LeftOver
from spiral_stream.sampling.order import LARGEST


@st.composite
def left_overs(draw: st.DrawFn) -> LeftOver:
    """Ranges that ascend with or without gaps, and the uses after them."""
    steps = draw(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), max_size=4))
    ranges, at = [], 0
    for gap, count in steps:
        ranges.append((at + gap, count))
        at += gap + count
    return LeftOver(tuple(ranges), at + draw(st.integers(0, 9)))


REBASES = st.builds(
    Rebase,
    st.integers(0, LARGEST),
    st.lists(st.tuples(st.text(max_size=3), left_overs()), max_size=3, unique_by=lambda each: each[0]).map(tuple),
)


@given(REBASES)
def test_a_record_survives_json(rebase: Rebase) -> None:
    found = Rebase.from_json(json.loads(json.dumps(rebase.to_json())))

    assert found == rebase
    assert {name: rebase.left_over(name) for name, _ in rebase.left_overs} == dict(rebase.left_overs)
    assert rebase.left_over("of no plan") is None
    assert Rebase.from_json(None) is None


@given(rebase=REBASES.filter(lambda each: each.left_overs), data=st.data())
def test_ranges_that_overlap_or_hold_nothing_are_refused(rebase: Rebase, data: st.DataObject) -> None:
    held = rebase.to_json()
    one = held["streams"][data.draw(st.sampled_from(sorted(held["streams"])))]
    end = one["left"][-1][0] + one["left"][-1][1] if one["left"] else 0
    overlap = st.tuples(st.integers(0, max(0, end - 1)), st.integers(1, 9))
    if end and data.draw(st.booleans()):
        one["left"].append(list(data.draw(overlap)))
        one["then"] += 99
    elif end:
        one["then"] = data.draw(st.integers(0, end - 1))
    else:
        one["left"], one["then"] = [[0, 0]], 5
    with pytest.raises(ResumeError, match=r"its ranges do not ascend.*Pass what state_dict\(\) returned, unchanged"):
        Rebase.from_json(held)


def held(epoch: Any = 1, left: Any = ((0, 2),), then: Any = 5) -> dict[str, Any]:
    return {"epoch": epoch, "streams": {"a": {"left": left, "then": then}}}


@pytest.mark.parametrize(
    "broken",
    [
        *(held(epoch=wrong) for wrong in (-1, True, 1.0, "1", None, LARGEST + 1)),
        *(held(then=wrong) for wrong in (-1, True, 5.0, LARGEST + 1)),
        *(held(left=wrong) for wrong in ([3], [[1]], [[0, -1]], [[0, True]], [[0, 1, 2]], "ab", 7)),
        *({"epoch": 1, "streams": wrong} for wrong in ([], {"a": None}, {"a": {"left": []}})),
        {"epoch": 1},
    ],
    ids=str,
)
def test_a_record_that_is_none_is_refused_with_the_way_out(broken: dict[str, Any]) -> None:
    assert Rebase.from_json(held()) == Rebase(1, (("a", LeftOver(((0, 2),), 5)),))
    with pytest.raises(ResumeError, match=r"the state's rebase cannot be read .*Pass what state_dict\(\) returned"):
        Rebase.from_json(broken)
