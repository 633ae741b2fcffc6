"""A cache that is built by a job has the same page as one that a step builds, and continues what a killed job left."""

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import dagster as dg
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import spiral_stream as spiral
from spiral_assets.assets import Named, cache_asset
from spiral_assets.resources import CatalogResource, RunsResource
from tests.fixtures.folded_pages import everything

pytestmark = [
    pytest.mark.filterwarnings("ignore:Function `PipesMessageReader.expected_writer_count`"),
    pytest.mark.filterwarnings("ignore:AssetExecutionContext.run_id is deprecated"),
]
ROWS, SHARDS = 1_100, 2
PLAN = Named("spiral_assets.plans.standard:decoded_images", {"relation": "photos", "cached_side": 32})


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    noise = np.random.default_rng(0).integers(0, 255, (30, 45, 3), np.uint8)
    Image.fromarray(noise).save(tmp_path / "one.jpg")
    (tmp_path / "rows").mkdir()
    for shard in range(SHARDS):
        names = [f"{shard}-{row}" for row in range(ROWS)]
        table = pa.table({"sample_id": names, "image_ref": [str(tmp_path / "one.jpg")] * ROWS})
        pq.write_table(table, tmp_path / "rows" / f"part-{shard}.parquet")
    source = spiral.Parquet(str(tmp_path / "rows"), base=str(tmp_path))
    spiral.connect(str(tmp_path / "catalog")).register("photos", source, semantic={"image_ref": "image/jpeg-ref"})
    return tmp_path


def built(shop: Path, instance: dg.DagsterInstance, launcher: Any, name: str = "photos") -> dict[str, Any]:
    asset = cache_asset(name, plan=PLAN, deps=[], description="Decoded photos.", workers=1, launcher=launcher)
    resources = {"catalog": CatalogResource(uri=str(shop / "catalog")), "runs": RunsResource(root=str(shop))}
    result = dg.materialize([asset], instance=instance, resources=resources)
    (made,) = result.get_asset_materialization_events()
    tags = made.materialization.tags or {}
    facts = everything(made.materialization.metadata)
    return {**facts, "data_version": tags["dagster/data_version"]}


def test_a_job_builds_a_cache_and_its_page_is_that_of_a_step(shop: Path, instance: dg.DagsterInstance) -> None:
    first = built(shop, instance, {"kind": "local"})
    second = built(shop, instance, None)

    assert first["rows_built"] == ROWS * SHARDS
    assert second["rows_built"] == 0
    assert first.pop("job").startswith("local: spiral-caches-photos-")
    assert first.keys() == second.keys()
    assert first["data_version"] == second["data_version"]
    run = instance.get_runs()[-1]
    said = [each.user_message for each in instance.all_logs(run.run_id)]
    assert any("2,200/2,200 rows, 2/2 shards" in each for each in said)
    assert built(shop, instance, {"kind": "local"})["rows_built"] == 0  # a job of its own, which finds nothing to do


@pytest.mark.slow
def test_a_job_that_is_killed_while_it_builds_is_retried_and_builds_the_rest(
    shop: Path, instance: dg.DagsterInstance
) -> None:
    finished = list[Path]()

    def kill() -> None:
        until = time.monotonic() + 120
        while not [*(shop / "catalog").glob("prepared/caches/*/ledger/*.json")] and time.monotonic() < until:
            time.sleep(0.02)
        for process in Path("/proc").glob("[0-9]*"):
            try:
                called = (process / "cmdline").read_bytes()
            except OSError:
                continue
            if b"spiral_assets.launching.building" in called and str(shop).encode() in called:
                os.kill(int(process.name), signal.SIGKILL)
        while not [*(shop / "launched").rglob("1/ended.json")] and time.monotonic() < until:
            time.sleep(0.02)
        finished.extend((shop / "catalog").glob("prepared/caches/*/ledger/*.json"))

    asset = cache_asset(
        "photos", plan=PLAN, deps=[], description="Photos.", workers=1, launcher={"kind": "local"},
    ).with_attributes()  # fmt: skip
    job = dg.define_asset_job("build", [asset.key], op_retry_policy=dg.RetryPolicy(max_retries=1))
    resources = {"catalog": CatalogResource(uri=str(shop / "catalog")), "runs": RunsResource(root=str(shop))}
    whole = dg.Definitions(assets=[asset], jobs=[job], resources=resources, executor=dg.in_process_executor)
    killer = threading.Thread(target=kill)
    killer.start()
    result = whole.resolve_job_def("build").execute_in_process(instance=instance)
    killer.join()

    assert result.success
    assert len([*(shop / "launched").rglob("record.json")]) == 2
    (made,) = result.asset_materializations_for_node("caches__photos")
    assert finished
    assert made.metadata["rows_built"].value == (SHARDS - len(finished)) * ROWS


def test_a_plan_without_a_name_cannot_be_launched_and_says_what_can() -> None:
    with pytest.raises(dg.DagsterInvalidDefinitionError, match=r'Give Named\("module:function"\), or SavedPlan'):
        cache_asset(
            "photos",
            plan=lambda catalog: catalog,
            deps=[],
            description="",
            code_version="1",
            launcher={"kind": "local"},
        )
