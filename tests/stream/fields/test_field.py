"""Columns of numbers and of equal lists become arrays without Python objects."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.fields.field import fixed_numpy


@given(rows=st.integers(1, 6), size=st.integers(1, 4), first=st.integers(0, 2))
def test_equal_lists_are_rows_also_of_a_slice(rows: int, size: int, first: int) -> None:
    values = np.arange((rows + first) * size, dtype=np.float32).reshape(-1, size)
    column = pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), size).slice(first)

    found = fixed_numpy(column)
    assert found.dtype == np.float32
    assert found.tolist() == values[first:].tolist()


@pytest.mark.parametrize(
    ("values", "kind", "dtype"),
    [([1, 2], pa.int32(), "int32"), ([True, False], pa.bool_(), "bool"), ([0.5, 1.5], pa.float16(), "float16")],
)
def test_numbers_keep_their_type(values: list[Any], kind: pa.DataType, dtype: str) -> None:
    column = pa.array(np.array(values, dtype), kind)

    assert fixed_numpy(column).dtype == dtype
    assert fixed_numpy(column).tolist() == values
