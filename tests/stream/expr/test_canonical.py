"""Predicates that differ in spelling have one form; a form comes back from JSON."""

import datetime as dt
import json

import numpy as np
import pyarrow as pa
import pytest

from spiral_stream import Expr, col, lit
from spiral_stream.errors import PlanError
from spiral_stream.expr import canonical, from_json, to_json
from tests.fixtures.expressions import SCHEMA


def test_two_spellings_of_one_filter_have_one_form() -> None:
    a = (col("lang") == "en") & (col("quality_score") >= 0.80)
    b = (col("quality_score") >= np.float32(0.8)) & (lit("en") == col("lang"))

    assert canonical(a, SCHEMA).same_as(canonical(b, SCHEMA))
    assert json.dumps(to_json(canonical(a, SCHEMA))) == (
        '["and", ["==", ["col", "lang"], ["lit", "string", "en"]], '
        '[">=", ["col", "quality_score"], ["lit", "float", "0x1.99999a0000000p-1"]]]'
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (col("width") * col("height") > 9, lit(9) < col("height") * col("width")),
        (col("width") > col("height"), col("height") < col("width")),
        (~~col("ok"), col("ok")),
        (col("ok") & (col("ok") & col("ok")), col("ok")),
        (
            (col("ok") | col("width").is_null()) | (col("size") == 1),
            (col("size") == 1) | (col("width").is_null() | col("ok")),
        ),
        (col("width").is_in([3, 1, 1]), col("width").is_in([1, 3.0, 2.5])),
        (col("width").is_in([3]), col("width") == 3),
        (col("width") >= 2.5, col("width") > 2),
        (col("score") == 0.0, col("score") == -0.0),
        (col("width").between(1, 2), (col("width") <= 2) & (col("width") >= 1)),
    ],
)
def test_spelling_does_not_reach_the_normal_form(one: Expr, other: Expr) -> None:
    assert to_json(canonical(one, SCHEMA)) == to_json(canonical(other, SCHEMA))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (col("score") >= 0.7, col("score") >= float(np.float32(0.7))),
        (col("width") - col("height") > 0, col("height") - col("width") > 0),
        (col("width") > 2, col("height") > 2),
        (col("lang").str.contains("a"), col("lang").str.starts_with("a")),
    ],
)
def test_another_meaning_has_another_form(one: Expr, other: Expr) -> None:
    assert to_json(canonical(one, SCHEMA)) != to_json(canonical(other, SCHEMA))


@pytest.mark.parametrize(
    "expr",
    [
        (col("a") == 1.5) | (col("b") == lit(float("nan"))) | (col("c") == float("inf")),
        col("a").is_in([b"\xff", "ü", 2**70, True, None]),
        lit(np.datetime64("2020-01-01", "ns")) < col("a").cast("float64").alias("x"),
        col("a") > pa.scalar(5, pa.timestamp("us", tz="Europe/Berlin")),
        col("a").cast(pa.large_string()) == dt.date(2020, 1, 1),
    ],
)
def test_json_brings_every_expression_back(expr: Expr) -> None:
    assert from_json(json.loads(json.dumps(to_json(expr)))).same_as(expr)


@pytest.mark.parametrize("data", [["frobnicate", 1], ["col"], ["lit", "nosuchtype", 1], [], ["lit", "double", "x"]])
def test_broken_json_is_refused(data: list[object]) -> None:
    with pytest.raises(PlanError, match="expression"):
        from_json(data)
