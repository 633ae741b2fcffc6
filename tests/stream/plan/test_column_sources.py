"""What fields of batches are computed from: stored columns of relations, and functions on the way."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spiral_stream as spiral

COLUMNS = ("x", "y", "z")


def doubled(x: Any) -> Any:
    return x


LINE = doubled.__code__.co_firstlineno


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> spiral.Catalog:
    found = spiral.connect(str(tmp_path_factory.mktemp("catalog")))
    numbers = {name: [float(row) for row in range(12)] for name in COLUMNS}
    found.register(
        "left", spiral.Arrow(pa.table({"id": range(12), "k": [row % 3 for row in range(12)], **numbers})), identity="id"
    )
    found.register(
        "right", spiral.Arrow(pa.table({"k": range(3), "x": [1.0, 2.0, 3.0], "w": [1.0, 2.0, 3.0]})), identity="k"
    )
    found.register("more", spiral.Arrow(pa.table({"id": range(20, 32), "k": [0] * 12, **numbers})), identity="id")
    return found


def sources(relation: Any, fields: Mapping[str, str], identity: str | None = None) -> dict[str, Any]:
    sampled = relation.sample(order=spiral.Sequential(), **({} if identity is None else {"identity": identity}))
    plan = sampled.collate(batch_size=2, fields={name: spiral.Stack(column) for name, column in fields.items()})
    with plan.to_numpy() as stream:
        found: dict[str, Any] = stream.column_sources()
    return found


def test_joins_unions_and_computed_columns_lead_to_what_is_stored(catalog: spiral.Catalog) -> None:
    left, right = catalog.table("left"), catalog.table("right")
    joined = left.join(right, on="k").with_columns(both=spiral.col("x_right") * spiral.col("y"), z=spiral.col("w"))

    found = sources(joined.filter(spiral.col("x") >= 0), {"a": "both", "b": "z", "c": "x"})

    assert {name: each.columns for name, each in found.items()} == {
        "a": (("left", "y"), ("right", "x")),
        "b": (("right", "w"),),
        "c": (("left", "x"),),
    }
    union = left.union(catalog.table("more"))
    assert sources(union, {"a": "x"})["a"].columns == (("left", "x"), ("more", "x"))


def test_maps_name_their_function_with_file_and_line(catalog: spiral.Catalog) -> None:
    sampled = catalog.table("left").sample(order=spiral.Sequential())
    mapped = sampled.map(doubled, name="d", columns=["x"], returns=pa.float64())
    plan = mapped.collate(batch_size=2, fields={"d": spiral.Stack("d"), "y": spiral.Stack("y")})
    with plan.to_numpy() as stream:
        found = stream.column_sources()

    assert found["d"].columns == (("left", "x"),)
    ((name, file, line),) = found["d"].functions
    assert (name.rpartition(".")[2], Path(file), line) == ("doubled", Path(__file__), LINE)
    assert found["y"].functions == ()


def test_sql_leads_to_the_columns_of_a_name_or_to_all_that_the_text_names(catalog: spiral.Catalog) -> None:
    rows = catalog.sql('select l.id, l.x + r.w as total, y from "left" l join "right" r on l.k = r.k')

    found = sources(rows, {"total": "total", "y": "y"}, identity="id")

    assert found["y"].columns == (("left", "y"),)
    assert {("left", "x"), ("right", "w")} <= set(found["total"].columns)


@given(data=st.data())
def test_computed_columns_have_the_sources_of_what_they_read(data: st.DataObject, catalog: spiral.Catalog) -> None:
    """Whatever is computed of what, several times over."""
    relation, expected = catalog.table("left"), {name: {name} for name in COLUMNS}
    for step in range(data.draw(st.integers(0, 4), label="steps")):
        reads = data.draw(st.lists(st.sampled_from(sorted(expected)), min_size=1, max_size=2), label="reads")
        name = data.draw(st.sampled_from([*COLUMNS, f"new_{step}"]), label="makes")
        expr = spiral.col(reads[0])
        for other in reads[1:]:
            expr = expr + spiral.col(other)
        relation = relation.with_columns(**{name: expr * 2.0})
        expected[name] = set().union(*(expected[each] for each in reads))

    found = sources(relation, {name: name for name in expected})

    assert {name: {column for _, column in each.columns} for name, each in found.items()} == expected
