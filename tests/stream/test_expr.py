import datetime as dt
import json
import pickle

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.dialects import evaluate, evaluate_nullable, passes, to_arrow, to_column, to_lance
from spiral_stream.errors import DataError, PlanError
from spiral_stream.expr import (
    Expr,
    bind,
    bind_predicate,
    canonical,
    col,
    from_json,
    len_,
    lit,
    name_of,
    parse,
    to_json,
    type_of,
)
from tests.fixtures.duckdb_dialect import to_duckdb

SCHEMA = pa.schema(
    [
        ("lang", pa.string()),
        ("split", pa.dictionary(pa.int8(), pa.string())),
        ("quality_score", pa.float32()),
        ("score", pa.float64()),
        ("width", pa.int32()),
        ("height", pa.int64()),
        ("size", pa.uint64()),
        ("tokens", pa.list_(pa.int32())),
        ("seen", pa.timestamp("ms")),
        ("seen_utc", pa.timestamp("us", tz="UTC")),
        ("day", pa.date32()),
        ("ok", pa.bool_()),
        ("half", pa.float16()),
        ("where", pa.struct([("uri", pa.string())])),
    ]
)


def _bound(expr: Expr) -> str:
    return json.dumps(to_json(bind(expr, SCHEMA)))


# ---- building


def test_truth_is_refused_with_a_hint() -> None:
    with pytest.raises(TypeError, match=r"combine conditions with & \| ~"):
        bool(col("a") == 1)
    with pytest.raises(TypeError, match=r"x\.between\(lo, hi\)"):
        _ = 0 < col("a") < 1
    with pytest.raises(TypeError, match=r"write tokens\.len\(\)"):
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


# ---- reading bucket keys


@pytest.mark.parametrize(
    ("text", "expr"),
    [
        ("len(tokens)", len_("tokens")),
        ("frame_count", col("frame_count")),
        (" width * height ", col("width") * col("height")),
        ("(a + 2) // -b % 3", (col("a") + 2) // -col("b") % 3),
        ("a - b / 1.5", col("a") - col("b") / 1.5),
        ("breite_ä * -2", col("breite_ä") * -2),
    ],
)
def test_bucket_keys_are_the_same_trees_as_col(text: str, expr: Expr) -> None:
    assert parse(text).same_as(expr)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("len(tokens", "(?s)never closed.*len.tokens\n     \\^"),
        ("width ** 2", r"(?s)'width \*\* 2' is not allowed here, at character 1\n"),
        ("ä + f(x)", r"(?s)'f\(x\)' is not allowed here, at character 5\n  ä \+ f\(x\)\n      \^"),
        ("len(a, b)", "len takes one argument"),
        ("a.b", "'a.b' is not allowed"),
        ("'text'", "is not allowed"),
        ("True", "is not allowed"),
        ("", "at character 1"),
        ("a\0", "Python|null"),
        ("(" * 150 + ")" * 150, "at most 200 are read"),
        ("(" * 99 + "a b" + ")" * 98, "(?s)at character .*\\^"),
    ],
)
def test_what_cannot_be_read_shows_its_place(text: str, place: str) -> None:
    with pytest.raises(PlanError, match=place):
        parse(text)


# ---- binding


def test_a_literal_takes_the_columns_type() -> None:
    assert (
        _bound(col("quality_score") >= 0.7)
        == '[">=", ["col", "quality_score"], ["lit", "float", "0x1.6666660000000p-1"]]'
    )
    assert _bound(col("score") >= 0.7) == '[">=", ["col", "score"], ["lit", "double", "0x1.6666666666666p-1"]]'
    assert _bound(col("score") >= 1) == '[">=", ["col", "score"], ["lit", "double", "0x1.0000000000000p+0"]]'


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
        (col("score").cast("int64") > 1, "only casts that widen, or give a float"),
        (col("score").cast("float32") > 1, "only casts that widen, or give a float"),
        (lit(1).cast("int64") == col("width"), "takes the type of its column"),
        (col("width").is_in([col("height")]), "List constants"),
    ],
)
def test_what_does_not_fit_names_the_way_out(expr: Expr, way_out: str) -> None:
    with pytest.raises(PlanError, match=way_out):
        bind(expr, SCHEMA)


def test_only_conditions_filter() -> None:
    with pytest.raises(PlanError, match="is int64, not a condition; compare it"):
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


# ---- meaning


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


# ---- one spelling for one meaning


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


def test_names_and_texts_are_quoted() -> None:
    schema = pa.schema([('a "b', pa.string()), ("it's", pa.int64())])
    expr = (col('a "b') == "'; DROP TABLE x --") & (col("it's") == 1)

    assert to_duckdb(expr, schema).startswith("((\"a \"\"b\" = '''; DROP TABLE x --')")
    assert to_lance(expr, schema).startswith("((`a \"b` = arrow_cast('''; DROP TABLE x --', 'Utf8'))")
    assert "DROP" in str(to_arrow(expr, schema))
