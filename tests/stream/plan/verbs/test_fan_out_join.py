"""A join that multiplies rows is the same rows and columns, seen from its right side."""

import pyarrow as pa
import pytest

import spiral_stream as sp
from spiral_stream.plan.tree import base_scan
from spiral_stream.plan.verbs.fan_out_join import owned_by_right_side


@pytest.fixture
def catalog(tmp_path: object) -> sp.Catalog:
    made = sp.connect(str(tmp_path))
    made.register("clips", sp.Arrow(pa.table({"id": ["a", "b"], "v": [1, 2], "note": ["x", "y"]})), identity="id")
    labels = pa.table({"id": ["a", "a", "b"], "label": [1, 2, 3], "note": ["p", "q", "r"]})
    made.register("labels", sp.Arrow(labels), identity=["id", "label"])
    return made


def test_the_right_relation_owns_the_pairs(catalog: sp.Catalog) -> None:
    node = catalog.table("clips").join(catalog.table("labels"), on="id").filter(sp.col("v") > 0).node

    found = owned_by_right_side(node, ("id", "label"))

    assert found is not None
    assert base_scan(found).relation == "labels"
    assert found.schema().names == node.schema().names
    rows = sp.Relation(found, catalog).to_arrow().sort_by("label")
    assert rows.select(["id", "v", "label", "note", "note_right"]).to_pylist() == [
        {"id": "a", "v": 1, "label": 1, "note": "x", "note_right": "p"},
        {"id": "a", "v": 1, "label": 2, "note": "x", "note_right": "q"},
        {"id": "b", "v": 2, "label": 3, "note": "y", "note_right": "r"},
    ]


def test_a_left_join_or_an_identity_without_right_columns_has_no_other_side(catalog: sp.Catalog) -> None:
    left = catalog.table("clips").join(catalog.table("labels"), on="id", how="left").node
    inner = catalog.table("clips").join(catalog.table("labels"), on="id").node

    assert owned_by_right_side(left, ("id", "label")) is None
    assert owned_by_right_side(inner, ("id",)) is None
