"""A user's function sees columns, and its failures name the sample."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.errors import DataError, PlanError
from spiral_stream.transforms.python import Function

NUMBERS = st.lists(st.integers(-100, 100), min_size=1, max_size=12)


def keys(count: int) -> Any:
    return np.arange(count, dtype=np.uint64) + np.uint64(7)


def doubled(x: Any) -> Any:
    return x.to_numpy() * 2


def double(x: int) -> int:
    if x < 0:
        raise ValueError(x)
    return 2 * x


def batch_of_positive(x: Any) -> Any:
    if (x.to_numpy() < 0).any():
        raise ValueError
    return x


@given(values=NUMBERS.map(lambda some: [abs(each) for each in some]))
def test_batched_and_single_functions_give_the_same(values: list[int]) -> None:
    table = pa.table({"x": values})
    found = [
        Function(f, ("x",), pa.int64(), batched=batched).run(table, keys(len(values)))
        for f, batched in ((doubled, True), (double, False))
    ]

    assert found[0].to_pylist() == found[1].to_pylist() == [2 * each for each in values]


@given(values=NUMBERS)
@pytest.mark.parametrize(("function", "batched"), [(double, False), (batch_of_positive, True)])
def test_a_failure_carries_the_first_sample_that_fails(function: Any, batched: bool, values: list[int]) -> None:
    bad = [row for row, value in enumerate(values) if value < 0]
    run = Function(function, ("x",), pa.int64(), batched=batched).run
    if not bad:
        assert len(run(pa.table({"x": values}), keys(len(values)))) == len(values)
        return
    with pytest.raises(DataError, match=r"failed.*ValueError") as caught:
        run(pa.table({"x": values}), keys(len(values)))
    assert caught.value.row == bad[0]


def test_a_value_of_another_type_carries_its_sample() -> None:
    function = Function(lambda x: "no number" if x == 2 else x, ("x",), pa.int64(), batched=False)
    with pytest.raises(DataError, match=r"that is no int64 .*State another returns=") as caught:
        function.run(pa.table({"x": [0, 1, 2]}), keys(3))
    assert caught.value.row == 2


def test_as_many_values_as_samples_are_returned() -> None:
    function = Function(lambda x: x.slice(1), ("x",), pa.int64())
    with pytest.raises(
        DataError, match=r"returned 2 values for 3 samples, of which this is the first. Return one for each, in order"
    ):
        function.run(pa.table({"x": [0, 1, 2]}), keys(3))


def test_what_a_sample_draws_depends_on_its_key_alone() -> None:
    function = Function(lambda x, rng: x + rng.random(), ("x",), pa.float64(), batched=False, random=True)
    table, whole = pa.table({"x": [0.0, 0.0, 0.0]}), keys(3)
    together = function.run(table, whole).to_pylist()

    assert len(set(together)) == 3
    assert [function.run(table.slice(i, 1), whole[i : i + 1])[0].as_py() for i in range(3)] == together


@pytest.mark.parametrize(
    ("given_arguments", "way_out"),
    [
        ((3, ("x",), pa.int64()), "is no function. Give a transform"),
        ((double, (), pa.int64()), "Name the columns that the function takes"),
        ((double, ("x",), "int64"), "Give the Arrow type of what it returns"),
    ],
)
def test_what_is_no_function_over_columns_is_refused(given_arguments: Any, way_out: str) -> None:
    with pytest.raises(PlanError, match=way_out):
        Function(*given_arguments)


def test_rows_can_be_chosen_of_a_slice_that_a_function_returns() -> None:
    kind = pa.list_(pa.list_(pa.list_(pa.int64(), 1), 2))
    values = [[[[row], [-row]]] * 2 for row in range(9)]
    function = Function(lambda _: pa.array(values, kind).slice(4), ("x",), kind)

    found = function.run(pa.table({"x": range(5)}), np.zeros(5, np.uint64))
    assert found.take(pa.array([3, 0])).to_pylist() == [values[7], values[4]]
    assert found.flatten().take(pa.array([6, 1])).to_pylist() == [values[7][0], values[4][1]]
