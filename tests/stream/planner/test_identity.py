"""Identities other than the registered one: unique, findable, and versioned with all that is read."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import spiral_stream as spiral


@pytest.fixture
def catalog(tmp_path: Path) -> spiral.Catalog:
    opened = spiral.connect(str(tmp_path / "catalog"))
    opened.register("t", spiral.Arrow(pa.table({"sample_id": ["a", "b", "c", "d"], "x": [1, 1, 2, 3]})))
    names = pa.table({"x": [1, 2, 3], "name": ["one", "two", "three"]})
    opened.register("u", spiral.Arrow(names), identity="x")
    return opened


def stream(relation: spiral.Relation, identity: Any) -> spiral.PreparedStream:
    fields = {"x": spiral.Stack("x"), "sample_id": spiral.List("sample_id")}
    sampled = relation.sample(identity=identity, order=spiral.Sequential())
    return sampled.collate(batch_size=2, fields=fields).to_numpy()


def test_an_identity_that_repeats_is_refused(catalog: spiral.Catalog) -> None:
    with stream(catalog.table("t"), "x") as opened, pytest.raises(spiral.errors.PlanError, match=r"\(x=1\).*distinct"):
        len(opened)


def test_a_joined_identity_is_found(catalog: spiral.Catalog) -> None:
    joined = catalog.table("t").join(catalog.table("u"), on="x")
    with stream(joined, ["name", "sample_id"]) as opened:
        assert opened.locate(("two", "c")) == {"epoch": 0, "batch": 1, "step": 1, "rank": 0}
        assert opened.ledger(0) == [("one", "a"), ("one", "b")]


def test_a_computed_identity_is_found(catalog: spiral.Catalog) -> None:
    computed = catalog.table("t").with_columns(twice=spiral.col("x") * 2)
    with stream(computed, ["twice", "sample_id"]) as opened:
        assert opened.locate((6, "d")) == {"epoch": 0, "batch": 1, "step": 1, "rank": 0}
        with pytest.raises(KeyError, match="no row that the plan keeps"):
            opened.locate((6, "a"))


def test_a_query_joined_in_counts_as_data(catalog: spiral.Catalog) -> None:
    counted = catalog.sql("select x, count(*) as n from u group by x")
    plan = catalog.table("t").join(counted, on="x")
    with stream(plan, "sample_id") as opened:
        state = opened.state_dict()
        assert set(state["data"]) == {"t", "u"}

    catalog.register("u", spiral.Arrow(pa.table({"x": [1, 2], "name": ["one", "two"]})), identity="x", replace=True)

    with stream(plan, "sample_id") as changed:
        assert len(changed) == 1
        with pytest.raises(spiral.errors.ResumeError, match="the data changed"):
            changed.load_state_dict(state)


def test_bindings_that_contradict_leave_the_old_ones(catalog: spiral.Catalog) -> None:
    with stream(catalog.table("t"), "sample_id") as opened:
        with pytest.raises(spiral.errors.BindError):
            opened.bind(rank=5, world_size=2)

        assert len(opened) == 2
