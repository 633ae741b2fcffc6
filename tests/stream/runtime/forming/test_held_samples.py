from itertools import count
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.runtime.columns.samples import Samples
from spiral_stream.runtime.forming.held_samples import HeldSamples
from spiral_stream.sampling.epoch import StreamRows

COLUMN = ("tokens", 0)


def samples(first: int, size: int) -> Samples:
    """Samples whose column holds their numbers; rows repeat from 10 on."""
    numbers = np.arange(first, first + size)
    places = StreamRows(
        (numbers % 2).astype(np.int32), (numbers % 10).astype(np.uint64), np.zeros(size, dtype=np.uint64)
    )
    made = Samples.at(places)
    made.columns[COLUMN] = pa.array(numbers)
    return made


def held(sizes: list[int]) -> HeldSamples:
    """Windows of these sizes; positions are twice the numbers."""
    out = HeldSamples()
    for size in sizes:
        out.add(samples(out.count, size), (2 * np.arange(out.count, out.count + size)).astype(np.uint64))
    return out


SIZES = st.lists(st.integers(1, 9), min_size=1, max_size=100)


@given(sizes=SIZES, data=st.data())
def test_samples_come_in_the_order_asked_for(sizes: list[int], data: st.DataObject) -> None:
    one = held(sizes)
    numbers = data.draw(st.lists(st.integers(0, sum(sizes) - 1), min_size=1, max_size=30))

    assert one.take(np.array(numbers)).columns[COLUMN].to_pylist() == numbers


@given(sizes=SIZES, data=st.data())
def test_a_window_is_forgotten_with_its_last_sample_and_not_before(sizes: list[int], data: st.DataObject) -> None:
    one, pending = held(sizes), set(range(sum(sizes)))
    windows = [set(range(end - size, end)) for size, end in zip(sizes, np.cumsum(sizes).tolist(), strict=True)]
    order = data.draw(st.permutations(sorted(pending)))
    while order:
        batch, order = order[:7], order[7:]
        one.release(np.array(batch))
        pending -= set(batch)
        assert one.holds_columns() == sum(bool(window & pending) for window in windows)


@given(sizes=SIZES)
def test_windows_of_unfinished_samples_stay(sizes: list[int]) -> None:
    """As where samples are laid end to end: each batch begins three samples, and does not finish the last of them."""
    one, total = held(sizes), sum(sizes)
    windows = np.repeat(np.arange(len(sizes)), sizes)
    for first in range(0, total, 3):
        begun = np.arange(first, min(first + 3, total))
        one.release(begun, unfinished=begun[-1:])
        assert one.holds_columns() == len(sizes) - windows[begun[-1]]


def test_a_repeated_sample_is_held_until_it_is_delivered_again() -> None:
    one = held([4, 4])
    one.repeat(np.array([1, 1]))
    one.release(np.arange(4))
    assert one.holds_columns() == 2
    one.release(np.array([1, 1]))
    assert one.holds_columns() == 1


def test_rows_and_positions_are_found_after_columns_are_forgotten() -> None:
    one = held([8, 7])
    one.release(np.arange(15))

    assert one.holds_columns() == 0
    assert one.numbers_of(0, 4).tolist() == [4, 14]
    assert one.numbers_of(1, 4).tolist() == []
    wanted = np.isin(np.arange(15), [3, 9])
    assert one.positions_of(wanted).tolist() == [6, 18]


def test_a_batch_costs_no_more_after_many_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """One sample that waits for long must not make every batch walk over all windows since."""
    one, looked = held([2] * 500), count()
    inner = HeldSamples.forget

    def forget(self: HeldSamples, window: int) -> Any:
        next(looked)
        return inner(self, window)

    monkeypatch.setattr(HeldSamples, "forget", forget)
    for first in range(1, 999, 2):  # all but the first sample and the last
        one.release(np.array([first, first + 1]))

    assert next(looked) <= 3 * 500
