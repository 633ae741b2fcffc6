"""The place is (epoch, batch number): every batch once, whatever the world size and merge were on the way."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.cursor import Cursor
from spiral_stream.errors import ResumeError

runs = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 3), st.integers(0, 6)), min_size=1, max_size=6)


def travelled(run: list[tuple[int, int, int]]) -> tuple[Cursor, list[list[range]]]:
    """A cursor after some steps with each (world size, merge), and what every rank got at each step."""
    cursor, got = Cursor(), []
    for world, merge, steps in run:
        cursor = cursor.enter(world, merge)
        for _ in range(steps):
            got.append([cursor.step_to_batches(cursor.step, rank) for rank in range(world)])
            cursor = cursor.advanced(1)
    return cursor, got


@given(runs)
def test_every_batch_up_to_the_place_was_given_once_and_in_order(run: list[tuple[int, int, int]]) -> None:
    cursor, got = travelled(run)

    given_out = [number for step in got for numbers in step for number in numbers]
    assert given_out == list(range(cursor.batch))
    assert cursor.step == len(got) == sum(steps for *_, steps in run)


@given(runs)
def test_steps_and_batches_map_to_each_other_after_any_change_of_world(run: list[tuple[int, int, int]]) -> None:
    cursor, got = travelled(run)

    for step, ranks in enumerate(got):
        for rank, numbers in enumerate(ranks):
            assert cursor.step_to_batches(step, rank) == numbers
            assert {cursor.batch_to_step(number) for number in numbers} == {(step, rank)}


@given(runs)
def test_the_saved_form_is_json_and_comes_back_equal(run: list[tuple[int, int, int]]) -> None:
    cursor, _ = travelled(run)

    assert Cursor.from_json(json.loads(json.dumps(cursor.to_json()))) == cursor


@given(runs, st.integers(1, 4), st.integers(1, 4))
def test_entering_as_before_changes_nothing(run: list[tuple[int, int, int]], world: int, merge: int) -> None:
    cursor, _ = travelled(run)
    entered = cursor.enter(world, merge)

    assert entered.enter(world, merge) is entered
    assert (entered.epoch, entered.batch, entered.step) == (cursor.epoch, cursor.batch, cursor.step)
    assert len(entered.segments) <= len({(s.first_batch) for s in entered.segments})  # one for each place


def test_steps_of_many_are_those_of_one_by_one() -> None:
    cursor = Cursor().enter(3, 2)

    assert cursor.advanced(4) == cursor.advanced(1).advanced(3)
    assert cursor.advanced(4).batch == 24


def test_an_exhausted_epoch_is_the_beginning_of_the_next() -> None:
    assert Cursor(epoch=2).enter(2, 1).advanced(5).next_epoch() == Cursor(3, 0, 0, ())


def test_a_step_before_the_record_is_refused() -> None:
    with pytest.raises(
        ResumeError, match=r"step 0 of epoch 0 lies before the first recorded one. Pass the state of the run"
    ):
        Cursor().step_to_batches(0, 0)


@pytest.mark.parametrize(
    "changes",
    [{"epoch": None}, {"batch": -1}, {"step": "3"}, {"segments": [[0, 0, 0, 1]]}, {"segments": 3}, {"batch": 1.0}],
)
def test_a_damaged_place_is_refused(changes: dict[str, Any]) -> None:
    saved = {**Cursor().enter(2, 1).advanced(3).to_json(), **changes}

    with pytest.raises(ResumeError, match=r"Pass what state_dict\(\) returned"):
        Cursor.from_json(saved)


@pytest.mark.parametrize("missing", ["epoch", "batch", "step", "segments"])
def test_a_place_that_lacks_something_is_refused(missing: str) -> None:
    saved = Cursor().to_json()
    del saved[missing]

    with pytest.raises(ResumeError, match="cannot be read .*" + missing):
        Cursor.from_json(saved)
