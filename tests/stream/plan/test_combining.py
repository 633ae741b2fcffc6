"""Joins, groups and unions are checked at birth, and know the columns that they leave."""

from typing import Any

import pyarrow as pa
import pytest

from spiral_stream.errors import PlanError
from spiral_stream.plan.combining import Aggregate, Join, Union
from spiral_stream.plan.nodes import Scan

LEFT = Scan("left", pa.schema([("id", pa.int64()), ("v", pa.float32()), ("t", pa.string())]), ("id",))
RIGHT = Scan("right", pa.schema([("id", pa.int64()), ("v", pa.float32()), ("w", pa.int32())]), ("id",))


def test_a_join_adds_right_columns_under_names_of_their_own() -> None:
    assert Join(LEFT, RIGHT, ("id",), ("id",)).schema().names == ["id", "v", "t", "v_right", "w"]
    assert Join(LEFT, RIGHT, ("id",), ("id",), "semi").schema() == LEFT.columns
    left = Join(LEFT, RIGHT, ("id",), ("id",), "left").schema()
    assert [left.field(name).nullable for name in ("v_right", "w")] == [True, True]


@pytest.mark.parametrize(
    ("arguments", "way_out"),
    [
        ((("id",), ("id",), "outer"), "one of inner, left, semi, anti"),
        (((), ()), "Give the same number, at least one"),
        ((("t",), ("id",)), "Join on columns of one type"),
        ((("id",), ("id",), "inner", ""), "Give another suffix"),
    ],
)
def test_a_join_that_cannot_be_is_refused(arguments: tuple[Any, ...], way_out: str) -> None:
    with pytest.raises(PlanError, match=way_out):
        Join(LEFT, RIGHT, *arguments)


def test_an_aggregate_has_keys_then_measures_of_their_own_types() -> None:
    measures = (("id", "count", "n"), ("v", "sum", "s"), ("id", "sum", "i"), ("v", "avg", "a"), ("t", "max", "m"))
    found = Aggregate(LEFT, ("t",), measures).schema()

    assert [(field.name, field.type) for field in found] == [
        ("t", pa.string()),
        ("n", pa.int64()),
        ("s", pa.float64()),
        ("i", pa.int64()),
        ("a", pa.float64()),
        ("m", pa.string()),
    ]
    with pytest.raises(PlanError, match=r"it takes numbers\. Use count"):
        Aggregate(LEFT, (), (("t", "sum", "s"),))
    with pytest.raises(PlanError, match="nothing to measure"):
        Aggregate(LEFT, ("t",), ())


def test_a_union_needs_the_same_columns_and_allows_nulls_where_one_part_does() -> None:
    strict = Scan("strict", pa.schema([field.with_nullable(False) for field in LEFT.columns]), ("id",))

    assert [field.nullable for field in Union((strict, LEFT)).schema()] == [True, True, True]
    with pytest.raises(PlanError) as refused:
        Union((LEFT, RIGHT))
    assert str(refused.value) == (
        "union: columns differ: the first alone has t string; the second alone has w int32. Project both alike, and change "
        "types with with_columns and cast"
    )
    wider = Scan("wider", pa.schema([("id", pa.int32()), ("v", pa.float32()), ("t", pa.string())]), ("id",))
    with pytest.raises(PlanError, match=r"columns differ: id int64 against int32\. Project both alike, .* cast$"):
        Union((LEFT, wider))
    turned = Scan("turned", pa.schema(list(LEFT.columns)[::-1]), ("id",))
    with pytest.raises(PlanError, match=r"differ: their order: id, v, t against t, v, id\. Project both alike$"):
        Union((LEFT, turned))
