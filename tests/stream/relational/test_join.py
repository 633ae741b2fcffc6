import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.errors import PlanError
from spiral_stream.relational.join import join_n_to_1
from tests.fixtures.examples import few

KEYS = {
    pa.int32(): st.none() | st.integers(-3, 12),
    pa.string(): st.none() | st.sampled_from(["", "a", "b'", "é", "zz"]),
    pa.float64(): st.none() | st.sampled_from([0.0, -0.0, 1.5, float("nan"), float("inf")]),
    pa.bool_(): st.none() | st.booleans(),
}


@st.composite
def _sides(draw: st.DrawFn) -> tuple[pa.Table, pa.Table]:
    kinds = draw(st.lists(st.sampled_from(list(KEYS)), min_size=1, max_size=3))
    sides = []
    for letter in "lr":
        rows = draw(st.integers(0, 12))
        columns = {
            f"{letter}{i}": pa.array(draw(st.lists(KEYS[kind], min_size=rows, max_size=rows)), kind)
            for i, kind in enumerate(kinds)
        }
        sides.append(pa.table(columns))
    return sides[0], sides[1]


def _keys(table: pa.Table) -> list[tuple[object, ...] | None]:
    """The key of each row, None where it matches nothing."""
    rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
    return [None if any(v is None or v != v for v in row) else row for row in rows]  # noqa: PLR0124  NaN


@few(100, 300, deadline=None, derandomize=True)
@given(sides=_sides())
def test_each_left_row_gets_the_row_that_a_dict_would_give(sides: tuple[pa.Table, pa.Table]) -> None:
    left, right = sides
    by_key: dict[tuple[object, ...], list[int]] = {}
    for row, key in enumerate(_keys(right)):
        if key is not None:
            by_key.setdefault(key, []).append(row)
    matches = [by_key.get(key, []) if key is not None else [] for key in _keys(left)]

    assert join_n_to_1(left, right, how="semi").tolist() == [rows[0] if rows else -1 for rows in matches]
    if any(len(rows) > 1 for rows in matches):
        with pytest.raises(PlanError, match="several rows on the right"):
            join_n_to_1(left, right, how="left")
    else:
        assert join_n_to_1(left, right).tolist() == [rows[0] if rows else -1 for rows in matches]


def test_a_join_that_multiplies_rows_shows_five_keys_and_the_ways_out() -> None:
    left = pa.table({"sample_id": [f"s{i}" for i in range(9)]})
    right = pa.table({"sample_id": [f"s{i % 7}" for i in range(14)]})

    with pytest.raises(PlanError) as refused:
        join_n_to_1(left, right)

    text = str(refused.value)
    assert "join on sample_id: 7 keys have several rows" in text
    assert "'s0' (2 rows), 's1' (2 rows), 's2' (2 rows), 's3' (2 rows), 's4' (2 rows)." in text
    assert "'s5'" not in text
    assert ".distinct('sample_id')" in text
    assert ".group_by('sample_id').aggregate(...)" in text
    assert "identity=[...]" in text


def test_repeated_right_keys_that_nobody_asks_for_do_no_harm() -> None:
    left = pa.table({"a": [1, 2]})
    right = pa.table({"b": [2, 3, 3]})

    assert join_n_to_1(left, right).tolist() == [-1, 0]


def test_key_types_that_do_not_meet_say_so() -> None:
    with pytest.raises(PlanError, match="'b' is int64 on the right, string on the left"):
        join_n_to_1(pa.table({"a": ["x"]}), pa.table({"b": [1]}))


def test_dictionary_keys_match_plain_ones() -> None:
    left = pa.table({"a": pa.array(["x", "y", None]).dictionary_encode()})

    assert join_n_to_1(left, pa.table({"b": ["y", "x"]})).tolist() == [1, 0, -1]
