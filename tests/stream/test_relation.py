"""The verbs as a user calls them: spelling, defaults, catalogs and saved streams."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import spiral_stream
from spiral_stream import Arrow, Catalog, KeepPartial, List, PreparedStream, RuntimeParam, Sequential, Stack, col
from spiral_stream.errors import BindError, CatalogError, PlanError
from spiral_stream.plan import nodes
from spiral_stream.plan.tree import need

TABLE = pa.table({"sample_id": [f"s{i}" for i in range(10)], "x": np.arange(10), "g": ["a", "b"] * 5})


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    """The default catalog, with relation ``t``."""
    monkeypatch.setenv("SPIRAL_CATALOG", str(tmp_path / "catalog"))
    opened = spiral_stream.connect()
    opened.register("t", Arrow(TABLE))
    return opened


def stream(catalog: Catalog) -> PreparedStream:
    plan = catalog.table("t").sample(order=Sequential())
    return plan.collate(batch_size=4, last=KeepPartial, fields={"x": Stack("x"), "id": List("sample_id")}).to_numpy()


def test_module_level_names_use_the_default_catalog(catalog: Catalog) -> None:
    catalog.save_stream("s", stream(catalog))

    assert spiral_stream.table("t").to_arrow()["x"].to_pylist() == list(range(10))
    assert spiral_stream.sql("SELECT sum(x) AS s FROM t").to_arrow().to_pydict() == {"s": [45]}
    with spiral_stream.open_stream("s", epoch=2) as opened:
        assert opened.epoch == 2
        assert [len(batch["id"]) for batch in opened] == [4, 4, 2]


def test_without_a_variable_the_catalog_lies_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPIRAL_CATALOG", raising=False)
    monkeypatch.chdir(tmp_path)

    assert spiral_stream.connect().root == tmp_path / "catalog"


def test_a_misspelled_relation_or_stream_is_answered_with_near_names(catalog: Catalog) -> None:
    catalog.register("vision.train", Arrow(TABLE))
    catalog.save_stream("train", stream(catalog))

    with pytest.raises(CatalogError, match=r"did you mean vision.train\?"):
        catalog.table("vision.tran")
    with pytest.raises(CatalogError, match=r"did you mean train\?"):
        catalog.open_stream("trian")


def test_other_spellings_mean_the_same(catalog: Catalog) -> None:
    t = catalog.table("t")
    pairs = [
        (t.where(col("x") > 3), t.filter(col("x") > 3)),
        (t.select("x", "g"), t.project("x", "g")),
        (t.project(y=col("x") + 1), t.project((col("x") + 1).alias("y"))),
        (t.group_by("g").agg(n=("x", "count")), t.group_by("g").aggregate(n=("x", "count"))),
        (t.join(t.project("x", h=col("g")), on="x"), t.join(t.project("x", h=col("g")), left_on=["x"], right_on=["x"])),
        (t.filter(col("x") > 3, col("g") == "a"), t.filter((col("g") == "a") & (col("x") > 3))),
    ]

    for one, other in pairs:
        assert one.fingerprint == other.fingerprint
        assert one.to_arrow().equals(other.to_arrow())


def test_filters_and_projections_without_arguments_change_nothing_or_are_refused(catalog: Catalog) -> None:
    t = catalog.table("t")

    assert t.filter().fingerprint == t.fingerprint
    assert t.union().to_arrow().equals(t.to_arrow())
    with pytest.raises(PlanError, match="no columns"):
        t.project()


def test_columns_may_change_places_in_one_step(catalog: Catalog) -> None:
    t = catalog.table("t").with_columns(y=col("x") * 10)

    found = t.project(x=col("y"), y=col("x")).limit(2).to_arrow()

    assert found.to_pydict() == {"x": [0, 10], "y": [0, 1]}


def test_collecting_keeps_the_order_of_the_last_sort(catalog: Catalog) -> None:
    t = catalog.table("t").sort("x", descending=True)

    assert t.limit(3).to_arrow()["x"].to_pylist() == [9, 8, 7]
    assert t.distinct("g").project("x").to_arrow()["x"].to_pylist() == [9, 8]
    assert t.filter(col("g") == "a").to_arrow()["x"].to_pylist() == [8, 6, 4, 2, 0]


def test_sample_takes_identity_and_ranks_from_what_is_registered(catalog: Catalog) -> None:
    sample = need(stream(catalog).plan, nodes.Sample)

    assert sample.identity == ("sample_id",)
    assert sample.epoch == RuntimeParam("epoch")
    assert sample.assignment.rank == RuntimeParam("data_parallel_rank")
    assert sample.assignment.lanes == 1


def test_a_prefix_may_feed_several_streams(catalog: Catalog) -> None:
    sampled = catalog.table("t").sample(order=Sequential())
    fields = {"id": List("sample_id")}

    with (
        sampled.collate(batch_size=2, fields=fields).to_numpy() as small,
        sampled.collate(batch_size=5, fields=fields).to_numpy() as large,
    ):
        assert (len(small), len(large)) == (5, 2)
        assert next(iter(large))["id"][:2] == next(iter(small))["id"]


def test_a_saved_stream_comes_back_as_the_kind_it_was(catalog: Catalog) -> None:
    sampled = catalog.table("t").sample(order=Sequential()).collate(batch_size=4, fields={"x": Stack("x")})
    for name, made in (("numpy", sampled.to_numpy()), ("torch", sampled.to_torch()), ("jax", sampled.to_jax())):
        catalog.save_stream(name, made)
        with catalog.open_stream(name) as opened:
            assert type(opened) is type(made)
            assert opened.fingerprint == made.fingerprint

    with pytest.raises(BindError, match="data_parallel_rank=3 of data_parallel_world_size=2"):
        catalog.open_stream("numpy", rank=3, world_size=2)


def test_a_saved_stream_follows_its_relation_to_new_data(catalog: Catalog) -> None:
    catalog.save_stream("s", stream(catalog))
    catalog.register("t", Arrow(TABLE.slice(0, 3)), replace=True)

    with catalog.open_stream("s") as opened:
        assert [batch["id"] for batch in opened] == [["s0", "s1", "s2"]]


def test_a_query_may_be_joined_to_what_is_sampled(catalog: Catalog) -> None:
    counts = catalog.sql('SELECT g, count(*) AS n, max(x) AS "most" FROM t GROUP BY g')
    joined = catalog.table("t").join(counts, on="g").filter(col("most") == 9)
    plan = joined.sample(order=Sequential()).collate(batch_size=5, fields={"n": Stack("n"), "id": List("sample_id")})

    with plan.to_numpy() as opened:
        (batch,) = opened

    assert batch["n"].tolist() == [5] * 5
    assert batch["id"] == ["s1", "s3", "s5", "s7", "s9"]


def test_the_kinds_of_aggregates(catalog: Catalog) -> None:
    measures = {name: ("x", name) for name in ("count", "count_distinct", "sum", "min", "max", "avg")}

    found = catalog.table("t").aggregate(**measures).to_arrow()

    assert found.to_pylist() == [{"count": 10, "count_distinct": 10, "sum": 45, "min": 0, "max": 9, "avg": 4.5}]


def test_a_schema_is_known_before_anything_is_read(catalog: Catalog) -> None:
    names = catalog.table("t").with_columns(half=col("x") / 2).schema.names

    assert names == ["sample_id", "x", "g", "storage_shard", "half"]


# ---- legal, and probably not what was meant


@pytest.mark.parametrize("order", [spiral_stream.GlobalShuffle(seed=1), spiral_stream.ShardAwareShuffle(seed=1)])
def test_a_sort_that_a_shuffle_undoes_is_warned_of(catalog: spiral_stream.Catalog, order: Any) -> None:
    relation = catalog.table("t").sort("x")
    with pytest.warns(
        spiral_stream.SpiralWarning,
        match=rf"sort\(x\) has no effect, because {type(order).__name__} decides .* Drop the sort",
    ):
        relation.sample(order=order)
    for looked_at in (relation.limit(2), relation.distinct("x")):
        looked_at.sample(order=order)
        looked_at.sample(order=spiral_stream.Sequential())
