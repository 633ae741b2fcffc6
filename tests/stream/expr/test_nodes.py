"""Building expressions: what Python operators make, and what they refuse."""

import datetime as dt
import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spiral_stream import col, len_, lit
from spiral_stream.errors import PlanError
from spiral_stream.expr import canonical, name_of, to_json
from tests.fixtures.expressions import SCHEMA


def test_truth_is_refused_with_a_hint() -> None:
    with pytest.raises(TypeError, match=r"Combine conditions with & \| ~"):
        bool(col("a") == 1)
    with pytest.raises(TypeError, match=r"x\.between\(lo, hi\)"):
        _ = 0 < col("a") < 1
    with pytest.raises(TypeError, match=r"Write tokens\.len\(\)"):
        len(col("tokens"))
    with pytest.raises(TypeError):
        {col("a")}


def test_one_text_is_no_list_of_values() -> None:
    with pytest.raises(PlanError, match=r"is_in\(\['train'\]\)"):
        col("split").is_in("train")


def test_a_constant_is_a_plain_value() -> None:
    with pytest.raises(PlanError, match=r"Use is_in\(\[\.\.\.\]\)"):
        _ = col("a") == [1, 2]
    with pytest.raises(PlanError, match="named by a text"):
        col("")


@pytest.mark.parametrize(
    ("value", "same"),
    [
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (pa.scalar("a"), "a"),
        (np.datetime64("2020-01-01T00:00:00", "us"), dt.datetime(2020, 1, 1)),  # noqa: DTZ001  naive on purpose
    ],
)
def test_numpy_and_arrow_scalars_are_constants(value: object, same: object) -> None:
    assert lit(value).same_as(lit(same))
    assert not lit(value).same_as(lit("another"))


def test_a_numpy_scalar_on_the_left_builds_an_expression() -> None:
    assert str(np.float32(0.5) <= col("a")) == "a >= 0.5"


def test_same_as_compares_the_spelling() -> None:
    assert (col("a") > 1).same_as(col("a") > 1)
    assert not (col("a") > 1).same_as(col("a") > 1.0)
    assert not (col("a") > 1).same_as(col("b") > 1)
    assert not (col("a") > 1).same_as(col("a") >= 1)
    assert not col("a").same_as(1)


def test_long_chains_stay_flat() -> None:
    chain = col("lang") == "en"
    for n in range(3_000):
        chain = chain & (col("width") != n)

    assert len(to_json(canonical(chain, SCHEMA))) == 3_002


def test_columns_are_those_it_is_computed_from() -> None:
    expr = (col("a") + len_("b") > 1) | col("c").is_in([1]).alias("x")

    assert expr.columns() == {"a", "b", "c"}
    assert name_of(expr) is None
    assert [name_of(e) for e in (col("a"), (col("a") + 1).alias("y"))] == ["a", "y"]


def test_expressions_travel_between_processes() -> None:
    expr = (col("a") == 1) & ~col("b").str.contains("x")

    assert pickle.loads(pickle.dumps(expr)).same_as(expr)


@pytest.mark.parametrize("times", [0, 1, 4, 2.0, "2"])
def test_other_powers_than_squares_and_cubes_are_refused(times: Any) -> None:
    with pytest.raises(PlanError, match=r"2 and 3 are the powers of an expression. Multiply it out, or use a column"):
        col("a") ** times
