"""The reference semantics of expressions: NaN, nulls, floored and wrapped arithmetic, ASCII letters."""

import datetime as dt

import numpy as np
import pyarrow as pa
import pytest

from spiral_stream import Expr, col, len_, lit
from spiral_stream.dialects import evaluate, evaluate_nullable, passes, to_column
from spiral_stream.errors import DataError, PlanError
from spiral_stream.expr import bind
from tests.fixtures.expressions import SCHEMA


def test_nan_fails_comparisons_but_not_their_negation() -> None:
    rows = {"d": np.array([0.7, np.nan, 0.6])}

    assert passes(col("d") >= 0.7, rows).tolist() == [True, False, False]
    assert passes(col("d") < 0.7, rows).tolist() == [False, False, True]
    assert passes(~(col("d") >= 0.7), rows).tolist() == [False, True, True]
    assert passes(col("d") != 0.7, rows).tolist() == [False, True, True]
    assert passes(col("d") == lit(np.nan), rows).tolist() == [False, False, False]
    assert passes(col("d").is_in([np.nan, 0.6]), rows).tolist() == [False, False, True]


def test_the_stored_boundary_of_float32_passes() -> None:
    rows = {"f": np.array([0.7, np.nextafter(np.float32(0.7), np.float32(0))], dtype=np.float32)}

    assert passes(col("f") >= 0.7, rows).tolist() == [True, False]


def test_missing_values_pass_neither_a_condition_nor_its_negation() -> None:
    rows = {"b": pa.array([True, False, None]), "x": pa.array([1, None, None])}

    assert passes(col("x") == 1, rows).tolist() == [True, False, False]
    assert passes(~(col("x") == 1), rows).tolist() == [False, False, False]
    assert passes(col("b") | (col("x") == 1), rows).tolist() == [True, False, False]
    assert passes(~(col("b") & (col("x") == 1)), rows).tolist() == [False, True, False]
    assert passes(col("x").is_null(), rows).tolist() == [False, True, True]


def test_arithmetic_is_floored_true_and_wraps() -> None:
    rows = {"x": np.array([-7, 7, 2**63 - 1], dtype=np.int64), "zero": np.zeros(3, np.int64)}

    assert evaluate(col("x") // 2, rows).tolist() == [-4, 3, 2**62 - 1]
    assert evaluate(col("x") % 3, rows).tolist() == [2, 1, 1]
    assert evaluate(col("x") / 2, rows).tolist() == [-3.5, 3.5, 2.0**62]
    assert evaluate(col("x") + 1, rows).tolist() == [-6, 8, -(2**63)]
    assert evaluate(col("x") / col("zero"), rows).tolist() == [-np.inf, np.inf, np.inf]
    assert evaluate_nullable(col("x") // col("zero"), rows)[1].tolist() == [False, False, False]


def test_a_missing_value_is_no_length() -> None:
    with pytest.raises(DataError, match=r"len\(tokens\) is null in row 1 of 2\. .*~col\('tokens'\)\.is_null\(\)"):
        evaluate(len_("tokens"), {"tokens": pa.array([[1], None])})


@pytest.mark.parametrize(
    ("expr", "values", "kind"),
    [
        (col("x") + 1, [2, None, 4], pa.int64()),
        (col("x") == 1, [True, None, False], pa.bool_()),
        (col("s").str.upper(), ["A", None, ""], pa.string()),
        (col("s").len(), [1, None, 0], pa.int64()),
        (col("t"), [dt.datetime(1970, 1, 1), None, dt.datetime(1970, 1, 1, 0, 0, 5)], pa.timestamp("s")),  # noqa: DTZ001
        (col("d"), [dt.date(1970, 1, 2), None, None], pa.date32()),
        (col("b"), [b"", None, b"x"], pa.binary()),
        (lit("c"), ["c", "c", "c"], pa.string()),
        (lit(0.5), [0.5, 0.5, 0.5], pa.float64()),
    ],
)
def test_a_computed_column_keeps_type_and_gaps(expr: Expr, values: list[object], kind: pa.DataType) -> None:
    columns = {
        "x": pa.array([1, None, 3], pa.int32()),
        "s": pa.array(["a", None, ""]),
        "t": pa.array([0, None, 5], pa.timestamp("s")),
        "d": pa.array([1, None, None], pa.date32()),
        "b": pa.array([b"", None, b"x"]),
    }

    assert to_column(expr, columns, 3).equals(pa.array(values, kind))
    assert to_column(expr, {name: column[:0] for name, column in columns.items()}, 0).type == kind


def test_none_alone_has_no_type() -> None:
    with pytest.raises(PlanError, match="a constant with a value"):
        bind(lit(None), SCHEMA)


def test_letters_are_ascii() -> None:
    rows = {"s": np.array(["ÄA", "ß"])}

    assert evaluate(col("s").str.lower(), rows).tolist() == ["Äa", "ß"]
    assert evaluate(col("s").len(), rows).tolist() == [2, 1]
