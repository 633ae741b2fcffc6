"""Rows with equal values of a shard key form runs; values that are scattered are refused."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.errors import PlanError
from spiral_stream.planner.selection.selected import key_runs


def pieces(values: list[object], cut: int) -> list[tuple[np.ndarray, pa.Table]]:
    rows = np.arange(len(values), dtype=np.uint64)
    kind = pa.array(values).type
    parts = [slice(0, cut), slice(cut, len(values))]
    return [(rows[p], pa.table({"k": pa.array(values[p], kind)})) for p in parts if len(values[p])]


@given(lengths=st.lists(st.integers(1, 5), min_size=1, max_size=8), cut=st.integers(0, 40))
def test_runs_begin_where_values_change_wherever_the_rows_are_cut(lengths: list[int], cut: int) -> None:
    values = [k for k, length in enumerate(lengths) for _ in range(length)]
    found = key_runs(pieces(values, min(cut, len(values))), ["k"])

    starts = np.cumsum([0, *lengths[:-1]])
    assert found.tolist() == [[int(start), k] for k, start in enumerate(starts)]


def test_null_equals_null_and_nan_equals_nan() -> None:
    nan = float("nan")

    assert key_runs(pieces([nan, nan, None, None, 1.0], 1), ["k"]).tolist() == [[0, 0], [2, 1], [4, 2]]


def test_scattered_values_are_refused_with_the_way_out() -> None:
    with pytest.raises(PlanError, match="Store the rows sorted by 'k'"):
        key_runs(pieces([0, 1] * 4_000, 0), ["k"])
