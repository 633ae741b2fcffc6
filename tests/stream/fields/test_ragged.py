"""Sequences as addresses: choosing and joining them moves no token."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.fields import _tokens
from spiral_stream.fields.ragged import Ragged
from spiral_stream.runtime.columns.samples import as_lists

LISTS = st.lists(st.lists(st.integers(0, 2**16 - 1), max_size=5), max_size=8)


def ragged(lists: list[list[int]], dtype: str = "uint16") -> Ragged:
    offsets = np.cumsum([0, *map(len, lists)]).astype(np.int64)
    return Ragged.of_flat(np.array([each for some in lists for each in some], dtype), offsets)


@given(lists=LISTS)
def test_arrow_lists_and_flat_arrays_are_the_same_sequences(lists: list[list[int]]) -> None:
    column = pa.array(lists, pa.list_(pa.uint16()))

    assert as_lists(ragged(lists)).to_pylist() == as_lists(Ragged.of_arrow(column)).to_pylist() == lists
    part = column.slice(min(1, len(column)))
    assert as_lists(Ragged.of_arrow(part)).to_pylist() == lists[1:]


@given(lists=LISTS.filter(bool), data=st.data())
def test_sequences_are_taken_in_any_order_and_repeatedly(lists: list[list[int]], data: st.DataObject) -> None:
    places = data.draw(st.lists(st.integers(0, len(lists) - 1), max_size=10))
    found = ragged(lists).take(np.array(places, dtype=np.int64))

    assert as_lists(found).to_pylist() == [lists[place] for place in places]


@given(first=LISTS, second=LISTS)
def test_parts_of_any_item_size_are_joined(first: list[list[int]], second: list[list[int]]) -> None:
    found = Ragged.concat([ragged(first), ragged(second, "uint32")])

    assert as_lists(found).to_pylist() == first + second
    assert len(found) == len(first) + len(second)


@given(lists=st.lists(st.lists(st.integers(0, 99), max_size=20), max_size=9), data=st.data())
def test_a_run_is_what_taking_its_places_gives(lists: list[list[int]], data: st.DataObject) -> None:
    ragged = Ragged.of_arrow(pa.array(lists, pa.list_(pa.int32()))).near()
    first = data.draw(st.integers(0, len(lists)))
    last = data.draw(st.integers(first, len(lists)))

    run = ragged.run(first, last)
    assert run.arrow().to_pylist() == ragged.take(np.arange(first, last)).arrow().to_pylist() == lists[first:last]
    assert run.is_near
    assert not ragged.take(np.arange(first, last)).is_near


def test_few_items_are_brought_near_and_many_are_not() -> None:
    ragged = Ragged.of_flat(np.arange(3_000, dtype=np.int32), np.array([0, 1_000, 1_000, 3_000]))
    assert ragged.near().is_near
    assert ragged.near().arrow() == ragged.arrow()
    assert ragged.near(ragged.nbytes).is_near
    assert ragged.near(ragged.nbytes - 1) is ragged
    with pytest.raises(ValueError, match="the arrays differ in length"):
        _tokens.touch(ragged.addresses, ragged.lengths[:2], ragged.item_bytes, 1)


def test_a_null_list_is_empty_and_a_null_item_is_0() -> None:
    assert Ragged.of_arrow(pa.array([[1], None, [2, 3]], pa.list_(pa.int32()))).lengths.tolist() == [1, 0, 2]
    assert as_lists(Ragged.of_arrow(pa.array([[1, None]], pa.list_(pa.int32())))).to_pylist() == [[1, 0]]
