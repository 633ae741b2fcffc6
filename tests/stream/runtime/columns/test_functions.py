"""Functions are called with readable samples, a few at a time, and the others get null."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.errors import DataError
from spiral_stream.runtime.columns.functions import CALL_ROWS, Calling
from spiral_stream.transforms.python import Function


def tripled(values: Any) -> Any:
    if (values.to_numpy() < 0).any():
        raise ValueError
    return values.to_numpy() * 3


FUNCTION = Function(tripled, ("x",), pa.int64())


@given(values=st.lists(st.tuples(st.integers(0, 99), st.booleans()), min_size=1, max_size=20))
def test_readable_samples_get_their_values_and_the_others_null(values: list[tuple[int, bool]]) -> None:
    numbers = [-1 if bad else value for value, bad in values]  # the function would fail on these
    refused = np.array([bad for _, bad in values])
    found = Calling([], processes=False).run(
        0, FUNCTION, pa.table({"x": numbers}), np.zeros(len(values), np.uint64), refused
    )

    assert found.to_pylist() == [None if bad else 3 * value for value, bad in values]
    assert found.type == pa.int64()


def test_the_row_of_an_error_counts_among_all_samples() -> None:
    table = pa.table({"x": [5, 5, 1, -1]})
    with pytest.raises(DataError, match="tripled") as caught:
        Calling([], processes=False).run(
            0, FUNCTION, table, np.zeros(4, np.uint64), np.array([True, False, False, False])
        )

    assert caught.value.row == 3


def offsets(values: Any) -> Any:
    return np.arange(len(values))


@pytest.mark.parametrize("threads", [1, 3])
def test_a_call_sees_the_same_samples_whatever_the_threads(threads: int) -> None:
    function = Function(offsets, ("x",), pa.int64())
    calling = Calling([], processes=False)
    with ThreadPoolExecutor(threads) if threads > 1 else nullcontext() as pool:
        calling.pool = pool
        none = np.zeros(3 * CALL_ROWS + 5, np.bool_)
        found = calling.run(0, function, pa.table({"x": none}), np.zeros(len(none), np.uint64), none)

    assert found.to_pylist() == [row % CALL_ROWS for row in range(len(none))]
