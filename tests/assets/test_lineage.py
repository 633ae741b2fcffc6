"""Lineage: columns of streams and caches lead to those of relations, and assets to the code that defines them."""

import inspect
from pathlib import Path
from typing import Any

import dagster as dg
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
    assert {column.name for column in stream["dagster/column_schema"].columns} == set(deps)
    assert stream["dagster/row_count"] > 0
    assert cache["dagster/column_lineage"].deps_by_column == {"image_ref": [dg.TableColumnDep(RELATION, "image_ref")]}
    assert cache["dagster/table_name"] == "vision.imagenet_train.image_ref"
    assert data_version(place, STREAMS)


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
