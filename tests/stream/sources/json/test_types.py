import re
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.sources.json.types import MixedTypesError, faults, merged, settled, shape_of, type_of

SCALARS = st.none() | st.booleans() | st.integers(-5, 5) | st.just(1.5) | st.just("x")
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)


def found(*values: Any) -> pa.DataType:
    kind = pa.null()
    for value in values:
        kind = merged(kind, type_of(value))
    return settled(kind)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, 2.5, None], pa.float64()),
        ([None], pa.utf8()),
        ([True, None], pa.bool_()),
        ([-1, (1 << 63) - 1], pa.int64()),
        ([0, (1 << 64) - 1], pa.uint64()),
        ([1 << 63, 1], pa.uint64()),
        ([[], [1], [2.5]], pa.list_(pa.float64())),
        ([{"a": 1}, {"b": "x"}], pa.struct([("a", pa.int64()), ("b", pa.utf8())])),
        ([[{"a": None}], [{"a": [1]}]], pa.list_(pa.struct([("a", pa.list_(pa.int64()))]))),
        (["2020-01-01", "x"], pa.utf8()),
    ],
)
def test_the_type_of_a_column_holds_all_its_values(values: list[Any], kind: pa.DataType) -> None:
    assert found(*values) == kind


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([{"a": 1}, {"a": "x"}], "column 'a' holds string, and int64 before"),
        ([{"a": {"b": [1, "x"]}}], r"column 'a\.b\[\]' holds string, and int64 before"),
        ([{"a": True}, {"a": 1}], "column 'a' holds int64, and bool before"),
        ([{"a": -1}, {"a": 1 << 63}], "column 'a' holds uint64, and int64 before"),
        (
            [{"a": 1}, {"a": 1 << 64}],
            r"column .a. holds 18446744073709551616, .* declare it as \(.decimal128., 38, 0\)",
        ),
        ([{"a": [-(1 << 63) - 1]}], r"column .a\[\]. holds -9223372036854775809"),
        ([{f"k{i}": 1 for i in range(1001)}], "1,000 different fields"),
        ([{f"k{i}": 1} for i in range(1001)], "1,000 different fields"),
    ],
)
def test_values_that_no_column_holds_are_named(values: list[Any], said: str) -> None:
    with pytest.raises(MixedTypesError, match=said):
        found(*values)


@given(st.lists(VALUES, min_size=1, max_size=4))
def test_no_value_is_at_fault_in_a_column_that_was_made_for_it(values: list[Any]) -> None:
    try:
        kind = found(*values)
    except MixedTypesError:
        return
    assert not [text for value in values for text in faults(value, kind, "c", known_only=True)]
    pa.array(values, kind).validate(full=True)


@given(one=VALUES, other=VALUES)
def test_the_order_of_values_does_not_matter(one: Any, other: Any) -> None:
    try:
        kind = found(one, other)
    except MixedTypesError:
        with pytest.raises(MixedTypesError):
            found(other, one)
        return
    assert _sorted(found(other, one)) == _sorted(kind)


def _sorted(kind: pa.DataType) -> Any:
    if pa.types.is_struct(kind):
        return sorted((field.name, _sorted(field.type)) for field in kind)
    return ["list", _sorted(kind.value_type)] if pa.types.is_list(kind) else str(kind)


@given(one=VALUES, other=VALUES)
def test_values_of_one_shape_have_one_type(one: Any, other: Any) -> None:
    if shape_of(one) == shape_of(other):
        try:
            kind = type_of(one)
        except MixedTypesError:
            with pytest.raises(MixedTypesError):
                type_of(other)
            return
        assert type_of(other) == kind


@pytest.mark.parametrize(
    "edges", [(-1, 0), ((1 << 63) - 1, 1 << 63), ((1 << 64) - 1, 1 << 64), (-(1 << 63), -(1 << 63) - 1)]
)
def test_integers_of_two_types_have_two_shapes(edges: tuple[int, int]) -> None:
    assert shape_of(edges[0]) != shape_of(edges[1])
    assert shape_of([*edges]) == shape_of([*edges, *edges])


@pytest.mark.parametrize(
    ("value", "kind", "said"),
    [
        ("x", pa.int64(), r"column 'c' holds 'x' \(string\), and is int64"),
        (1.0, pa.int64(), r"holds 1\.0 \(double\)"),
        (300, pa.uint8(), "holds 300"),
        (True, pa.float32(), r"holds True \(bool\)"),
        ([1, "x"], pa.list_(pa.int64()), r"column 'c\[\]' holds 'x'"),
        ([1], pa.list_(pa.int64(), 2), "holds 1 items"),
        ({"b": 1}, pa.struct([("a", pa.int64())]), r"field 'c\.b' is in none.*schema="),
        ([], pa.utf8(), r"holds \[\] \(list\)"),
        ({}, pa.list_(pa.utf8()), r"holds {} \(object\)"),
    ],
)
def test_a_value_of_another_type_is_named(value: Any, kind: pa.DataType, said: str) -> None:
    [text] = faults(value, kind, "c", known_only=True)
    assert re.search(said, text)
