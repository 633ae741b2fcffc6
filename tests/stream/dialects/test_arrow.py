"""Arrow passes the rows that Python's own arithmetic does; row groups with NaN are never ruled out by statistics.

Every kind of predicate, against every engine, is in `test_conformance`.
"""

import math
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream import Expr, col, lit
from spiral_stream.dialects import Inexpressible, to_arrow, to_parquet
from spiral_stream.errors import PlanError

SCHEMA = pa.schema([("d", pa.float64()), ("i", pa.int64()), ("by", pa.int64()), ("s", pa.string())])
LONGS = st.integers(-(2**63), 2**63 - 1) | st.integers(-9, 9)


def rows(**columns: list[object]) -> pads.Dataset:
    return pads.dataset(pa.table({name: pa.array(values, SCHEMA.field(name).type) for name, values in columns.items()}))


@given(values=st.lists(LONGS, max_size=6), by=st.integers(1, 2**63 - 1) | st.integers(1, 9))
def test_integers_are_divided_as_python_does_wherever_they_lie(values: list[int], by: int) -> None:
    held = rows(i=values)
    found = held.to_table(
        columns={"q": to_arrow(col("i") // by, held.schema), "r": to_arrow(col("i") % by, held.schema)}
    )

    assert found["q"].to_pylist() == [value // by for value in values]
    assert found["r"].to_pylist() == [value % by for value in values]


FLOATS = [math.nan, -math.nan, 0.0, -0.0, 0.5, math.inf, -math.inf]


@given(values=st.lists(st.sampled_from(FLOATS), max_size=6), other=st.sampled_from([0.0, -0.0, 0.5, math.inf]))
def test_floats_compare_as_python_does_with_nan_and_both_zeros(values: list[float], other: float) -> None:
    held = rows(d=values)
    tests = {
        "==": (col("d") == other, [v == other for v in values]),
        "!=": (col("d") != other, [v != other for v in values]),
        "<": (col("d") < other, [v < other for v in values]),
        ">=": (col("d") >= other, [v >= other for v in values]),
        "in": (col("d").is_in([other, 7.0]), [v == other for v in values]),
    }
    found = held.to_table(columns={name: to_arrow(test, held.schema) for name, (test, _) in tests.items()})

    assert found.to_pydict() == {name: wanted for name, (_, wanted) in tests.items()}


@given(text=st.text("aä\nb%", max_size=4), part=st.text("aäb%", max_size=2))
def test_texts_are_searched_by_their_characters_and_only_ascii_changes_case(text: str, part: str) -> None:
    held = rows(s=[text, None])
    tests = {
        "in": (col("s").str.contains(part), part in text),
        "begins": (col("s").str.starts_with(part), text.startswith(part)),
        "ends": (col("s").str.ends_with(part), text.endswith(part)),
        "upper": (col("s").str.upper() == text.replace("a", "A").replace("b", "B"), True),
        "len": (col("s").len() == len(text), True),
    }
    found = held.to_table(columns={name: to_arrow(test, held.schema) for name, (test, _) in tests.items()})

    assert found.to_pydict() == {name: [wanted, None] for name, (_, wanted) in tests.items()}


@pytest.mark.parametrize(
    "expr",
    [col("i") // col("by"), col("i") % col("by"), col("i") // -2, lit(7) % col("i"), ~(col("i") % col("by") == 1)],
)
def test_division_that_arrow_may_do_otherwise_is_left_to_others(expr: Expr) -> None:
    for lower in (to_arrow, to_parquet):
        with pytest.raises(Inexpressible):
            lower(expr, SCHEMA)


def test_a_predicate_that_does_not_fit_the_columns_is_refused() -> None:
    with pytest.raises(PlanError, match="'wrong' is not a column"):
        to_arrow(col("wrong") > 1, SCHEMA)


@pytest.mark.parametrize(
    "predicate",
    [col("d") != 0.7, ~(col("d") >= 0.7), col("d").is_nan(), ~((col("i") > 1) & (col("d") * 2 > col("i")))],
)
def test_row_group_statistics_never_decide_about_nan(predicate: Expr) -> None:
    with pytest.raises(Inexpressible):
        to_parquet(predicate, SCHEMA)


@pytest.mark.parametrize("predicate", [col("d") >= 0.7, ~col("d").is_null(), ~(col("i") > 1), col("d").is_in([1.0])])
def test_what_nan_cannot_meet_prunes_row_groups(predicate: Expr, tmp_path: Path) -> None:
    table = pa.table({"d": [0.1, 0.2, math.nan, 0.7, 1.0, None], "i": [2, 3, 4, 5, 0, 1]})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=2)
    dataset = pads.dataset(tmp_path / "t.parquet")
    (fragment,) = dataset.get_fragments()
    lowered = to_parquet(predicate, dataset.schema)

    passed = pads.dataset(table).to_table(filter=to_arrow(predicate, table.schema))
    assert dataset.to_table(filter=lowered)["i"].to_pylist() == passed["i"].to_pylist()
    left = fragment.split_by_row_group(lowered)
    assert (len(left) < 3) == ("null" not in str(predicate))


def test_a_cast_to_float_is_not_moved_to_the_bounds_of_statistics(tmp_path: Path) -> None:
    """Arrow fails on bounds past 2**53 where it sees the cast."""
    table = pa.table({"i": [5, 2**63 - 1, -(2**53) - 1, 2**53 + 1]})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=2)
    dataset = pads.dataset(tmp_path / "t.parquet")

    found = dataset.to_table(filter=to_parquet(col("i").cast("float64") > 2.0**53, dataset.schema))
    assert found["i"].to_pylist() == [2**63 - 1]  # the other is rounded to 2**53
