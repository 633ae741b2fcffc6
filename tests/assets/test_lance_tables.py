"""The catalog's Lance tables opened with LanceDB in an asset, and the index of vectors that grows with its data."""

from pathlib import Path
from typing import Any

import dagster as dg
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import spiral_stream as spiral
from spiral_assets.assets import Named, recall_check, vector_index_asset, vector_index_assets
from spiral_assets.resources import CatalogResource, LanceDBResource, standard_resources
from spiral_assets.yaml_definitions import definitions_from
from tests.fixtures.folded_pages import everything

pytest.importorskip("lancedb")
pytestmark = pytest.mark.filterwarnings("ignore:`parse_obj_as` is deprecated")
INDEX = dg.AssetKey(["indexes", "shop", "photos", "embedding"])


def vectors(rows: int) -> pa.Table:
    numbers = np.random.default_rng(7).normal(size=(200, 6)).astype(np.float32)[:rows]
    column = pa.FixedSizeListArray.from_arrays(pa.array(numbers.ravel()), 6)
    return pa.table({"sample_id": range(rows), "embedding": column})


def registered(folder: Path, rows: int) -> spiral.Catalog:
    catalog = spiral.connect(str(folder / "catalog"))
    catalog.register("shop.photos", spiral.Arrow(vectors(rows)), replace=True)
    return catalog


def tables(folder: Path, *, writable: bool = False) -> LanceDBResource:
    return LanceDBResource(uri=str(folder / "catalog"), writable=writable)


def built(folder: Path, instance: dg.DagsterInstance, definitions: dg.Definitions) -> dg.ExecuteInProcessResult:
    resources = {"catalog": CatalogResource(uri=str(folder / "catalog"))}
    made = [*(definitions.assets or ()), *(definitions.asset_checks or ())]
    return dg.materialize(made, instance=instance, resources=resources)


def metadata(done: dg.ExecuteInProcessResult) -> dict[str, Any]:
    (event,) = done.get_asset_materialization_events()
    return everything(event.materialization.metadata)


def test_an_index_grows_with_its_data_and_says_its_recall(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    asset = vector_index_assets("shop.photos", metric="l2")
    catalog = registered(tmp_path, 120)
    first = built(tmp_path, instance, asset)
    registered(tmp_path, 150)
    second = built(tmp_path, instance, asset)
    version = instance.get_latest_materialization_event(INDEX).asset_materialization.tags["dagster/data_version"]
    third = built(tmp_path, instance, asset)

    assert [metadata(each)["written"] for each in (first, second, third)] == [120, 30, 0]
    assert [metadata(each)["dagster/row_count"] for each in (first, second)] == [120, 150]
    assert metadata(second)["recall_at_10"] == 1.0
    assert (
        instance.get_latest_materialization_event(INDEX).asset_materialization.tags["dagster/data_version"] == version
    )
    (check,) = second.get_asset_check_evaluations()
    assert (check.check_name, check.passed) == ("recall_at_10", True)
    assert "100.0% of the 10 nearest rows of drawn ones" in str(check.description)
    catalog = spiral.connect(str(tmp_path / "catalog"))
    assert len(catalog.table("shop.photos").nearest(3, count=4)) == 4


def test_a_recall_below_the_limit_warns(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    registered(tmp_path, 30)
    monkeypatch.setattr(spiral.results.VectorIndex, "recall", lambda *_, **__: 0.85)

    (check,) = built(tmp_path, instance, vector_index_assets("shop.photos")).get_asset_check_evaluations()
    done = built(tmp_path, instance, vector_index_assets("shop.photos", least_recall=None))

    assert (check.passed, check.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert "finds 85.0%" in str(check.description)
    assert done.get_asset_check_evaluations() == []


def test_an_index_that_nobody_has_made_has_no_recall(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    asset = vector_index_asset("shop.photos")
    check = recall_check(asset, 0.9)
    job = dg.define_asset_job("check", dg.AssetSelection.checks(check))
    resources = standard_resources(str(tmp_path / "catalog"), str(tmp_path))
    defs = dg.Definitions([asset], asset_checks=[check], jobs=[job], resources=resources)

    (found,) = defs.resolve_job_def("check").execute_in_process(instance=instance).get_asset_check_evaluations()

    assert (found.passed, found.description) == (False, "no recall yet; materialize the index")


def embedded(catalog: spiral.Catalog, size: int = 2) -> spiral.Relation:
    def embed(sample_id: int) -> list[float]:
        return [float(np.cos(sample_id)), float(np.sin(sample_id))][:size]

    samples = catalog.table("shop.photos").sample(order=spiral.Sequential())
    return samples.map(embed, columns=["sample_id"], name="angle", returns=pa.list_(pa.float32(), size), batched=False)


def test_the_values_of_a_plans_function_are_indexed(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    registered(tmp_path, 40)
    asset = vector_index_assets("shop.photos", "angle", plan=Named(f"{__name__}:embedded", {"size": 2}))

    found = metadata(built(tmp_path, instance, asset))

    assert (found["written"], found["dimensions"]) == (40, 2)
    table = tables(tmp_path).vectors("shop.photos", "angle")
    assert sorted(table.to_arrow()["sample_id"].to_pylist()) == list(range(40))


def test_yaml_makes_the_index_and_gives_assets_of_ones_own_the_tables(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    registered(tmp_path, 60)
    (tmp_path / "shop.yaml").write_text(
        "type: spiral_assets.components.EmbeddingIndex\nattributes: {relation: shop.photos, metric: l2}\n---\n"
        f"type: spiral_assets.components.Catalog\nattributes: {{path: {tmp_path}/catalog, root: {tmp_path}, lancedb: read}}\n"
    )

    @dg.asset(deps=[INDEX])
    def duplicates(lancedb: LanceDBResource) -> dg.MaterializeResult[None]:
        rows = lancedb.vectors("shop.photos")
        first = rows.to_arrow()["__vector__"][0].as_py()
        near = rows.search(first, vector_column_name="__vector__").limit(2).to_list()
        return dg.MaterializeResult(metadata={"near": len(near), "tables": lancedb.tables()})

    defs = dg.Definitions.merge(definitions_from(tmp_path / "shop.yaml"), dg.Definitions([duplicates]))
    job = defs.resolve_implicit_global_asset_job_def()
    done = job.execute_in_process(instance=instance)

    (event,) = done.asset_materializations_for_node("duplicates")
    assert event.metadata["near"].value == 2
    assert event.metadata["tables"].value == ["shop.photos"]


def test_a_relation_is_opened_as_it_is_registered(tmp_path: Path) -> None:
    """Also after the Lance dataset went on."""
    import lance

    uri = str(tmp_path / "photos.lance")
    lance.write_dataset(vectors(10), uri)
    spiral.connect(str(tmp_path / "catalog")).register("shop.photos", spiral.Lance(uri))
    lance.write_dataset(vectors(4), uri, mode="append")

    table = tables(tmp_path).relation("shop.photos")

    assert (table.count_rows(), len(table.to_pandas()), table.search([0.0] * 6).limit(3).to_arrow().num_rows) == (
        10,
        10,
        3,
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table.add(vectors(1)),
        lambda table: table.delete("sample_id = 1"),
        lambda table: table.update(values={"sample_id": 3}),
        lambda table: table.merge_insert("sample_id"),
        lambda table: table.optimize(),
        lambda table: table.restore(),
        lambda table: table.create_index("embedding"),
        lambda table: table.tags,
        lambda table: table.to_lance(),
    ],
)
def test_a_table_is_opened_to_read(tmp_path: Path, change: Any) -> None:
    registered(tmp_path, 20)
    table = tables(tmp_path).relation("shop.photos")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}

    with pytest.raises(dg.Failure, match="may change the table, which is opened to read"):
        change(table)

    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()} == before
    assert table.count_rows() == 20


def test_what_a_table_has_is_known_to_read_or_refused(tmp_path: Path) -> None:
    """A name that is allowed is one of LanceDB's, and none of them writes."""
    from lancedb.table import LanceTable

    from spiral_assets.tables.lance_tables import READS

    public = {name for name in dir(LanceTable) if not name.startswith("_")}
    assert public >= READS
    writes = (
        "add",
        "alter",
        "compact",
        "create",
        "delete",
        "drop",
        "merge",
        "migrate",
        "optimize",
        "refresh",
        "replace",
    )
    writes += (
        "restore",
        "set",
        "tags",
        "unset",
        "update",
        "cleanup",
        "flush",
        "close",
        "branches",
        "checkpoint",
        "to_lance",
    )
    assert not [name for name in READS if name.startswith(writes)]


def test_one_may_write_if_one_says_so(tmp_path: Path) -> None:
    registered(tmp_path, 20)

    tables(tmp_path, writable=True).relation("shop.photos").add(vectors(1))

    assert tables(tmp_path).relation("shop.photos").count_rows() == 20
    assert standard_resources("a", "b", lancedb="write")["lancedb"].writable
    assert standard_resources("a", "b", "lake", "read").keys() == {"lake", "lake_lancedb", "lake_runs", "pipes"}


def test_a_run_is_opened_with_what_it_has_recorded(tmp_path: Path) -> None:
    catalog = registered(tmp_path, 24)
    fields = {"sample_id": spiral.List("sample_id")}
    plan = catalog.table("shop.photos").sample(order=spiral.Sequential()).collate(batch_size=8, fields=fields)
    with plan.to_numpy() as stream, catalog.run("first", stream) as run:
        for batch in stream:
            run.log(batch=batch, loss=np.arange(8, dtype=np.float32))

    rows = tables(tmp_path).run("first")

    assert rows.count_rows("loss > 5") == 6
    assert "runs.first" in tables(tmp_path).tables()


def test_what_lies_elsewhere_says_how_to_read_it(tmp_path: Path) -> None:
    pq.write_table(vectors(3), tmp_path / "photos.parquet")
    catalog = spiral.connect(str(tmp_path / "catalog"))
    catalog.register("shop.photos", spiral.Parquet(str(tmp_path / "photos.parquet")))

    with pytest.raises(dg.Failure, match=r"is parquet, and no Lance dataset.* Read it as catalog.table"):
        tables(tmp_path).relation("shop.photos")
    with pytest.raises(spiral.errors.PlanError, match="has no index"):
        tables(tmp_path).vectors("shop.photos")


def test_a_metric_that_there_is_not_is_refused() -> None:
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="Give one of cosine, l2, dot"):
        vector_index_asset("shop.photos", metric="angle")
