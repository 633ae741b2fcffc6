"""Columns of surviving rows come from where the plan says, in the order asked, with null where a left join misses."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream import Expr, col, lit
from spiral_stream.expr import Col, bind
from spiral_stream.planner.selection.fetched_columns import (
    Columns,
    FetchedColumns,
    Right,
    in_memory,
    leaf_of,
    right_leaf,
    substitute,
)

BASE = pa.table({"a": [1, 2, None, 4], "0:b": ["w", "x", "y", "z"], "f": [0.5, -0.0, None, float("nan")]})
RIGHT = pa.table({"b": ["p", "q", "r"], "a": [10, 20, 30]})
INDEX = np.array([2, -1, 0], dtype=np.int64)  # beside the surviving rows 3, 0, 1 of the base
KEPT = np.array([3, 0, 1], dtype=np.uint64)


def columns(env: dict[str, Expr], kinds: dict[str, pa.DataType]) -> Columns:
    rights = [Right(in_memory(RIGHT), INDEX.__getitem__)]
    return Columns(FetchedColumns(in_memory(BASE)), KEPT.__getitem__, rights, env, pa.schema(list(kinds.items())))


ENV: dict[str, Expr] = {
    "own": Col("a"),
    "odd": Col("0:b"),
    "beside": Col(right_leaf(0, "b")),
    "sum": bind(col("a") + 1, BASE.schema),
    "both": col("a") * Col(right_leaf(0, "a")),
    "always": lit(7),
}
KINDS = {
    "own": pa.int64(),
    "odd": pa.utf8(),
    "beside": pa.utf8(),
    "sum": pa.int64(),
    "both": pa.int64(),
    "always": pa.int64(),
}
VALUES: list[dict[str, Any]] = [
    {"own": 4, "odd": "z", "beside": "r", "sum": 5, "both": 120, "always": 7},
    {"own": 1, "odd": "w", "beside": None, "sum": 2, "both": None, "always": 7},
    {"own": 2, "odd": "x", "beside": "p", "sum": 3, "both": 20, "always": 7},
]


@given(st.lists(st.integers(0, 2), max_size=6), st.lists(st.sampled_from(sorted(ENV)), min_size=1, unique=True))
def test_rows_and_names_come_in_the_order_asked(rows: list[int], names: list[str]) -> None:
    found = columns(ENV, KINDS).fetch(np.array(rows, dtype=np.uint64), names)

    assert found.column_names == names
    assert found.to_pylist() == [{name: VALUES[row][name] for name in names} for row in rows]


def test_where_every_row_misses_the_right_side_is_null_and_not_asked() -> None:
    class Never:
        schema = RIGHT.schema

        def fetch(self, *_: object) -> pa.Table:
            raise AssertionError

    misses = np.full(3, -1, dtype=np.int64)
    reader = Columns(
        FetchedColumns(in_memory(BASE)),
        KEPT.__getitem__,
        [Right(Never(), misses.__getitem__)],
        {"beside": ENV["beside"]},
        pa.schema([("beside", pa.utf8())]),
    )

    assert reader.fetch(np.arange(3, dtype=np.uint64), ["beside"]).column(0).null_count == 3


@given(st.integers(0, 99), st.text(min_size=1).filter(lambda name: "\0" not in name))
def test_a_leaf_tells_whose_it_is_whatever_the_name(k: int, name: str) -> None:
    assert leaf_of(right_leaf(k, name)) == (k, name)
    assert leaf_of(name) == (None, name)


@pytest.mark.parametrize(
    ("expr", "stands_for", "becomes"),
    [
        (col("x") + 1, Col("a"), "a + 1"),
        (col("x") > 3, col("a") * 2, "(a * 2) > 3"),
        (col("x") > 3, lit(5), "True"),
        (col("x").is_in([1, 2]), lit(5), "False"),
        ((col("x") + 1) * 2, lit(5), "12"),
        (col("x").cast("float64"), lit(5), "5.0"),
        ((col("x") > 3) & (col("y") == 2), lit(5), "True & (y == 2)"),
    ],
)
def test_columns_are_replaced_by_what_they_stand_for_and_constants_computed(
    expr: Expr, stands_for: Expr, becomes: str
) -> None:
    schema = pa.schema([("x", pa.int64()), ("y", pa.int64()), ("a", pa.int64())])
    env = {"x": bind(stands_for, schema), "y": Col("y")}

    assert str(substitute(bind(expr, schema), env)) == becomes
