"""Bucket keys are read as the same trees that `col` builds; what cannot be read shows its place."""

import pytest

from spiral_stream import Expr, col, len_
from spiral_stream.errors import PlanError
from spiral_stream.expr import parse


@pytest.mark.parametrize(
    ("text", "expr"),
    [
        ("len(tokens)", len_("tokens")),
        ("frame_count", col("frame_count")),
        (" width * height ", col("width") * col("height")),
        ("(a + 2) // -b % 3", (col("a") + 2) // -col("b") % 3),
        ("a ** 2 / 4 + (a + b) ** 3", col("a") ** 2 / 4 + (col("a") + col("b")) ** 3),
        ("a ** 2", col("a") * col("a")),
        ("a - b / 1.5", col("a") - col("b") / 1.5),
        ("breite_ä * -2", col("breite_ä") * -2),
        ("`word count` // len(`class`)", col("word count") // len_("class")),
        ("ä + `größe in µm` + b", col("ä") + col("größe in µm") + col("b")),
        ("\u00b5 + 1", col("\u00b5") + 1),
        ("`x` + `1`\n- `a.b`", col("x") + col("1") - col("a.b")),
    ],
)
def test_bucket_keys_are_the_same_trees_as_col(text: str, expr: Expr) -> None:
    assert parse(text).same_as(expr)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("len(tokens", "(?s)never closed.*len.tokens\n     \\^"),
        ("width ** 4", r"(?s)'4' is no power that is read here; give 2 or 3, at character 10\n"),
        ("2 ** width", r"(?s)'width' is no power that is read here; give 2 or 3, at character 6\n"),
        ("ä + f(x)", r"(?s)'f\(x\)' is not allowed here, at character 5\n  ä \+ f\(x\)\n      \^"),
        ("len(a, b)", "len takes one argument"),
        ("a.b", "'a.b' is not allowed"),
        ("'text'", "is not allowed"),
        ("True", "is not allowed"),
        ("", "at character 1"),
        ("a\0", "Python|null"),
        ("(" * 150 + ")" * 150, "at most 200 are read"),
        ("`größe m` ** `b c`", r"(?s)'`b c`' is no power that is read here; give 2 or 3, at character 14\n"),
        ("`größe m` + f(`b`)", r"(?s)'f\(`b`\)' is not allowed here, at character 13\n"),
        ("word count", "Put backticks around a name such as `word count`"),
        ("a`b`", "invalid syntax, at character 2"),
        ("`a``b`", "invalid syntax, at character 1"),
        ("` + 1", "invalid syntax, at character 1"),
        ("(" * 99 + "a b" + ")" * 98, "(?s)at character .*\\^"),
    ],
)
def test_what_cannot_be_read_shows_its_place(text: str, place: str) -> None:
    with pytest.raises(PlanError, match=place):
        parse(text)


@pytest.mark.parametrize("name", ["words", "word count", "class", "größe in µm", "a.b", "1", "True", "len"])
def test_a_name_is_shown_as_it_is_read(name: str) -> None:
    expr = col(name) * 2 - len_(name)

    assert parse(str(expr)).same_as(expr)
