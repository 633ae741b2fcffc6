"""Binding types every operand exactly, or names the way out."""

import datetime as dt

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream import Expr, col, len_, lit
from spiral_stream.dialects import passes
from spiral_stream.errors import PlanError
from spiral_stream.expr import bind, bind_predicate, type_of
from tests.fixtures.expressions import SCHEMA, bound


def test_a_literal_takes_the_columns_type() -> None:
    assert (
        bound(col("quality_score") >= 0.7)
        == '[">=", ["col", "quality_score"], ["lit", "float", "0x1.6666660000000p-1"]]'
    )
    assert bound(col("score") >= 0.7) == '[">=", ["col", "score"], ["lit", "double", "0x1.6666666666666p-1"]]'
    assert bound(col("score") >= 1) == '[">=", ["col", "score"], ["lit", "double", "0x1.0000000000000p+0"]]'


@given(value=st.integers(-40, 40).map(lambda n: n / 4) | st.sampled_from([1e300, -1e300, float("inf"), float("-inf")]))
def test_integers_meet_any_number_exactly(value: float) -> None:
    rows = np.arange(-12, 13, dtype=np.int8)
    for compared, expected in [
        (col("x") < value, rows < value),
        (col("x") <= value, rows <= value),
        (col("x") > value, rows > value),
        (col("x") >= value, rows >= value),
        (col("x") == value, rows == value),
        (col("x") != value, rows != value),
        (value < col("x"), rows > value),
    ]:
        assert passes(compared, {"x": rows}).tolist() == expected.tolist()


def test_integers_past_2_to_53_are_not_rounded() -> None:
    rows = np.array([2**53, 2**53 + 1, 2**63 - 1], dtype=np.int64)

    assert passes(col("x") > float(2**53), {"x": rows}).tolist() == [False, True, True]
    assert passes(col("x") < 2.0**63, {"x": rows}).tolist() == [True, True, True]
    assert passes(col("x") == 2**64, {"x": rows}).tolist() == [False, False, False]


def test_times_meet_finer_times_exactly() -> None:
    rows = pa.array([0, 1, 2, None], pa.timestamp("s"))
    half_past = dt.datetime(1970, 1, 1, 0, 0, 1, 500_000)  # noqa: DTZ001  naive as the column

    assert passes(col("t") >= half_past, {"t": rows}).tolist() == [False, False, True, False]
    assert passes(col("t") == half_past, {"t": rows}).tolist() == [False, False, False, False]
    assert passes(col("t") != half_past, {"t": rows}).tolist() == [True, True, True, False]
    assert passes(col("t") >= dt.date(1970, 1, 1), {"t": rows}).tolist() == [True, True, True, False]


@pytest.mark.parametrize(
    ("expr", "way_out"),
    [
        (col("langg") == "en", r"'langg' is not a column\. Did you mean 'lang'\? There are lang, split"),
        (col("lang") == 3, r"'lang' is string, compared with 3\. Compare it with a text"),
        (col("width") == "3", r"'width' is int32, compared with '3'\. Compare it with a number"),
        (col("width") == True, "compared with True"),  # noqa: E712  an expression
        (col("ok") > True, "by == or !="),
        (col("lang") == None, r"Use \.is_null\(\)"),  # noqa: E711  an expression
        (col("lang").is_in([None]), r"Use \.is_null\(\)"),
        (col("seen") > 5, "Compare it with a datetime"),
        (col("seen_utc") > dt.datetime(2020, 1, 1), "Give a datetime with tzinfo"),  # noqa: DTZ001
        (col("seen") > dt.datetime(2020, 1, 1, tzinfo=dt.UTC), "Give a datetime without tzinfo"),
        (col("half") > 1.0, r"\.cast\('float32'\)"),
        (col("where") == "x", r"only \.is_null\(\)"),
        (col("tokens") == 1, r"only \.is_null\(\)"),
        (lit(1) == 2, "compares two constants"),
        (col("lang") == col("width"), "compares string with int32"),
        (col("size") > col("width"), "Cast one of them"),
        (col("size") + 1 > 0, r"Use \.cast\('float64'\)"),
        (col("width") % 2.5 == 1, "It takes integers"),
        (col("lang") + 1 == 2, "Arithmetic takes integers and floats"),
        (col("day") + 1 > 0, "Arithmetic takes integers and floats"),
        (col("width") + lit(dt.date(2020, 1, 1)) > 0, "Arithmetic takes integers and floats"),
        (col("width") + 2**63 > 0, "does not fit int64"),
        (col("score") > 10**400, "Compare with float"),
        (col("width") & (col("width") > 1), "Put comparisons in parentheses"),
        (col("width").is_nan(), "is_nan takes a floating-point column"),
        (col("width").len() > 1, "len takes a list or a text or a binary value"),
        (col("width").str.lower() == "a", "lower takes a text"),
        (col("lang").str.contains(3), "Give the text to look for"),
        (col("lang") == "\ud800", "Give valid Unicode text"),
        (col("score").cast("int64") > 1, r'catalog\.sql\("select \*, cast\(score as int64\)'),
        (col("score").cast("float32") > 1, r'catalog\.sql\("select \*, cast\(score as float\)'),
        (lit(1).cast("int64") == col("width"), "takes the type of its column"),
        (col("width").is_in([col("height")]), "List constants"),
    ],
)
def test_what_does_not_fit_names_the_way_out(expr: Expr, way_out: str) -> None:
    with pytest.raises(PlanError, match=way_out):
        bind(expr, SCHEMA)


def test_only_conditions_filter() -> None:
    with pytest.raises(PlanError, match=r"is int64, not a condition. Compare it"):
        bind_predicate(col("width") + 1, SCHEMA)
    assert bind_predicate(col("ok"), SCHEMA).same_as(col("ok"))


@pytest.mark.parametrize(
    ("expr", "kind"),
    [
        (col("width") * col("height"), pa.int64()),
        (col("width") / 2, pa.float64()),
        (col("quality_score") * 2, pa.float64()),
        (-col("width"), pa.int64()),
        (len_("tokens"), pa.int64()),
        (col("split"), pa.string()),
        (col("split") == "train", pa.bool_()),
        (col("lang").str.lower().alias("l"), pa.string()),
        (col("half").cast("float32"), pa.float32()),
        (lit(2), pa.int64()),
    ],
)
def test_every_value_has_a_type(expr: Expr, kind: pa.DataType) -> None:
    assert type_of(expr, SCHEMA) == kind
