from bisect import bisect_right
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.batching.lanes import Lanes
from spiral_stream.errors import PlanError

LANES = st.builds(Lanes, st.integers(0, 2_000) | st.integers(2**60, 2**62), st.integers(1, 70))
TOTALS = st.lists(st.integers(0, 8), min_size=1, max_size=6)  # batches of each lane


# ---- positions


@given(lanes=LANES)
def test_lanes_are_consecutive_slices_whose_sizes_differ_by_at_most_one(lanes: Lanes) -> None:
    begins = [lanes.begin(lane) for lane in range(lanes.count + 1)]
    sizes = [after - before for before, after in pairwise(begins)]

    assert (begins[0], begins[-1]) == (0, lanes.total)
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) == lanes.total // lanes.count
    assert lanes.begins().tolist() == begins


@given(lanes=LANES.filter(lambda lanes: lanes.total > 0), data=st.data())
def test_a_position_is_in_the_last_lane_that_begins_at_or_before_it(lanes: Lanes, data: st.DataObject) -> None:
    position = data.draw(st.integers(0, lanes.total - 1))
    begins = [lanes.begin(lane) for lane in range(lanes.count)]

    assert lanes.lane_of(position) == bisect_right(begins, position) - 1


@given(lanes=LANES)
def test_longer_lanes_are_counted_and_listed(lanes: Lanes) -> None:
    sizes = [lanes.begin(lane + 1) - lanes.begin(lane) for lane in range(lanes.count)]
    longer = [lane for lane, size in enumerate(sizes) if size > lanes.total // lanes.count]

    assert [lanes.longer_before(lane) for lane in range(lanes.count + 1)] == [
        sum(each < lane for each in longer) for lane in range(lanes.count + 1)
    ]
    assert [lanes.longer_lane(nth) for nth in range(len(longer))] == longer


@given(lanes=LANES, span=st.integers(1, 300))
def test_chapters_of_a_span_cover_a_lane_and_an_empty_lane_has_one(lanes: Lanes, span: int) -> None:
    for lane in range(lanes.count):
        size, count = lanes.begin(lane + 1) - lanes.begin(lane), lanes.chapter_count(lane, span)
        assert (count - 1) * span < size <= count * span or (size, count) == (0, 1)


# ---- batches


@given(totals=TOTALS)
def test_lanes_take_turns_and_those_that_ended_are_skipped(totals: list[int]) -> None:
    lanes = Lanes(100, len(totals))
    order = [(lane, k) for k in range(max(totals)) for lane in range(len(totals)) if k < totals[lane]]

    assert [lanes.turn(number, totals) for number in range(len(order))] == order
    assert [lanes.number(lane, k, totals) for lane, k in order] == list(range(len(order)))
    assert lanes.turn(len(order), totals) is None


@given(count=st.integers(1, 9), number=st.integers(0, 60))
def test_before_counts_the_batches_of_a_lane_while_none_has_ended(count: int, number: int) -> None:
    lanes = Lanes(100, count)
    order = [each % count for each in range(number)]

    assert [lanes.before(lane, number) for lane in range(count)] == [order.count(lane) for lane in range(count)]


def test_turns_of_many_lanes_take_one_pass_over_them() -> None:
    """A quadratic walk would look at 16 million totals."""

    class Totals(list[int]):
        looked = 0

        def __iter__(self) -> Any:
            for each in super().__iter__():
                type(self).looked += 1
                yield each

    totals = Totals(range(4_000))
    lane, k = Lanes(10**9, 4_000).turn(sum(range(4_000)) - 1, totals) or (0, 0)

    assert (lane, k) == (3_999, 3_998)
    assert Totals.looked <= 2 * 4_000


# ---- bad input


@pytest.mark.parametrize(
    ("total", "count", "way_out"),
    [
        (-1, 1, r"total is -1\. Give an integer of at least 0"),
        (10, 0, r"lanes is 0\. Give an integer of at least 1"),
        (10, 2.0, r"lanes is 2\.0\. Give an integer of at least 1"),
        (True, 2, r"total is True\. Give an integer of at least 0"),
    ],
)
def test_wrong_lanes_are_refused_at_birth(total: Any, count: Any, way_out: str) -> None:
    with pytest.raises(PlanError, match=way_out):
        Lanes(total, count)
