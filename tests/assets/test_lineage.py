"""Lineage: columns of streams and caches lead to those of relations, and assets to the code that defines them."""

import inspect
import sys
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spiral_assets.plans import images
from spiral_assets.project import defs as project_defs
from spiral_assets.yaml_definitions import definitions_from
from tests.assets.conftest import CACHE, STREAMS, TRAIN, Place, data_version

RELATION = dg.AssetKey(TRAIN.split("/"))


def latest(place: Place, key: str) -> dict[str, Any]:
    event = place.instance.get_latest_materialization_event(dg.AssetKey(key.split("/")))
    assert event is not None
    assert event.asset_materialization is not None
    return {name: each.value for name, each in event.asset_materialization.metadata.items()}


def test_fields_of_a_stream_and_columns_of_a_cache_lead_to_the_relation(
    prepared_images: tuple[Place, dg.ExecuteInProcessResult],
) -> None:
    place, _ = prepared_images
    stream, cache = latest(place, STREAMS), latest(place, CACHE)

    deps = stream["dagster/column_lineage"].deps_by_column
    assert dg.TableColumnDep(RELATION, "image_ref") in deps["image"]
    assert dg.TableColumnDep(RELATION, "image_ref") in deps[f"{images.VALIDATION}.image"]  # of the second stream
    assert {column.name for column in stream["dagster/column_schema"].columns} == set(deps)
    assert stream["dagster/row_count"] > 0
    assert cache["dagster/column_lineage"].deps_by_column == {"image_ref": [dg.TableColumnDep(RELATION, "image_ref")]}
    assert cache["dagster/table_name"] == "vision.imagenet_train.image_ref"
    assert cache["dagster/size_bytes"] == cache["live_bytes"] + cache["dead_bytes"] > 0
    assert data_version(place, STREAMS)


MADE = """
def cheap(catalog, below):
    import spiral_stream as spiral

    rows = catalog.table("shop.items").filter(spiral.col("price") < below)
    return spiral.Arrow(rows.project("id", "price").with_columns(double=spiral.col("price") * 2).to_arrow())


def has_rows(catalog):
    import dagster as dg

    return dg.AssetCheckResult(passed=True)


def prices(catalog):
    import spiral_stream as spiral

    sampled = catalog.table("shop.items").sample(order=spiral.Sequential())
    return sampled.collate(batch_size=2, fields={"price": spiral.Stack("price")})


def facts(train):
    return {"batches": len(train)}
"""
SHOP = """
type: spiral_assets.components.Catalog
attributes: {path: catalog, root: .}
---
type: spiral_assets.components.Relation
attributes:
  name: shop.items
  source: {kind: parquet, path: items.parquet}
  identity: id
  statistics: false
  checks: [{name: has_rows, function: "shop_made:has_rows"}]
  translation: {key: "lake/{{ relation.name }}"}
---
type: spiral_assets.components.Relation
attributes:
  name: shop.cheap
  source: {function: "shop_made:cheap", arguments: {below: 3.0}}
  identity: id
  statistics: false
  deps: ["lake/shop.items"]
---
type: spiral_assets.components.TrainingStream
attributes:
  name: prices
  streams: [{name: shop.cheap, plan: "shop_made:prices"}]
  metadata: "shop_made:facts"
---
type: spiral_assets.components.EmbeddingIndex
attributes: {relation: shop.items, column: vector, least_recall: null, deps: ["lake/shop.items"]}
---
type: spiral_assets.components.TrainingJob
attributes: {name: line, command: [python, -m, shop_made]}
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dg.Definitions:
    """A project of its own: a relation under another key, one that a function makes of it, a stream and an index."""
    sys.modules.pop("shop_made", None)  # that of the test before, whose folder is gone
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "shop_made.py").write_text(MADE)
    (tmp_path / "shop.yaml").write_text(SHOP)
    rows = {"id": range(6), "price": [float(row) for row in range(6)], "vector": [[row, 1.0] for row in range(6)]}
    pq.write_table(pa.table(rows), "items.parquet")
    return definitions_from(tmp_path / "shop.yaml")


def test_every_asset_has_lineage_and_size_under_the_keys_of_dagster(
    shop: dg.Definitions, instance: dg.DagsterInstance
) -> None:
    chosen = dg.define_asset_job("chosen", dg.AssetSelection.all() - dg.AssetSelection.groups("training"))
    job = dg.Definitions.merge(shop, dg.Definitions(jobs=[chosen])).resolve_job_def("chosen")
    events = job.execute_in_process(instance=instance).get_asset_materialization_events()
    found = {
        event.materialization.asset_key: {name: each.value for name, each in event.materialization.metadata.items()}
        for event in events
    }
    items = dg.AssetKey(["lake", "shop.items"])
    keys = ("lake/shop.items", "catalog/shop/cheap", "streams/prices", "indexes/shop/items/vector")
    relation, function, stream, index = (found[dg.AssetKey(key.split("/"))] for key in keys)

    assert relation["dagster/size_bytes"] > 0
    assert relation["dagster/uri"].endswith("items.parquet")
    assert function["dagster/column_lineage"].deps_by_column == {
        name: [dg.TableColumnDep(items, name)] for name in ("id", "price")
    }
    assert stream["dagster/column_lineage"].deps_by_column == {"price": [dg.TableColumnDep(items, "price")]}
    assert index["dagster/column_lineage"].deps_by_column == {"vector": [dg.TableColumnDep(items, "vector")]}
    assert index["dagster/size_bytes"] > 0


def test_assets_show_the_functions_of_checks_and_metadata_and_the_program_of_a_training(shop: dg.Definitions) -> None:
    found = {
        spec.key.to_user_string(): [
            each.label for each in spec.metadata["dagster/code_references"].code_references[:-1]
        ]
        for spec in shop.resolve_all_asset_specs()
        if "dagster/code_references" in spec.metadata
    }

    assert found["lake/shop.items"] == ["shop_made:has_rows"]
    assert found["catalog/shop/cheap"] == ["shop_made:cheap"]
    assert found["streams/prices"] == ["shop_made:prices", "shop_made:facts"]
    assert found["models/line"] == ["-m shop_made"]


PARTS = """
type: spiral_assets.components.TrainingStream
attributes:
  name: photos
  streams:
    - {name: a, plan: {function: "spiral_assets.plans.standard:image_batches", arguments: {relation: photos}}}
    - {name: b, plan: {function: "spiral_assets.plans.standard:image_batches", arguments: {relation: photos, part: val}}}
---
type: spiral_assets.components.Catalog
"""


def test_a_function_of_two_plans_is_shown_once(tmp_path: Path) -> None:
    (tmp_path / "shop.yaml").write_text(PARTS)

    function, yaml = references(definitions_from(tmp_path / "shop.yaml"))

    assert (function.label, yaml.line_number) == ("spiral_assets.plans.standard:image_batches", 2)


TWO = """
type: spiral_assets.components.PlanCache
attributes: {name: photos, plan: "spiral_assets.plans.images:cache_plan"}
---
type: spiral_assets.components.Catalog
"""


def references(definitions: dg.Definitions) -> list[Any]:
    (spec,) = definitions.resolve_all_asset_specs()
    found: list[Any] = spec.metadata["dagster/code_references"].code_references
    return found


def test_an_asset_shows_its_plan_and_its_yaml_and_links_to_git_where_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "shop.yaml"
    file.write_text(TWO)
    monkeypatch.delenv("SPIRAL_GIT_URL", raising=False)

    plan, yaml = references(definitions_from(file))

    assert (plan.file_path, plan.line_number) == (images.__file__, inspect.getsourcelines(images.cache_plan)[1])
    assert plan.label == "spiral_assets.plans.images:cache_plan"
    assert (Path(yaml.file_path), yaml.line_number) == (file, 2)
    monkeypatch.setenv("SPIRAL_GIT_URL", "https://github.com/shop/shop")
    monkeypatch.setenv("SPIRAL_GIT_BRANCH", "trunk")
    *_, linked = references(definitions_from(file))
    assert linked.url == "https://github.com/shop/shop/tree/trunk/shop.yaml#L2"
    assert project_defs is not None
