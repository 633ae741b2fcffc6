"""What the code location offers, by name, and what loading it costs."""

import os
import subprocess
import sys
from pathlib import Path

import dagster as dg

import spiral_stream as spiral
from spiral_assets import plans
from spiral_assets.definitions import defs

ASSETS = {
    "caches/imagenet_decoded": "caches",
    "catalog/vision/imagenet_labels": "catalog",
    "catalog/vision/imagenet_train": "catalog",
    "models/images_cnn": "training",
    "stats/vision/imagenet_train/shard_stats": "stats",
    "streams/images": "streams",
}
CHECKS = {
    "caches/imagenet_decoded: cache_is_complete",
    "catalog/vision/imagenet_labels: label_is_unique",
    "catalog/vision/imagenet_train: identity_is_unique",
    "catalog/vision/imagenet_train: references_resolve",
    "catalog/vision/imagenet_train: schema_is_as_declared",
    "models/images_cnn: beats_chance",
    "stats/vision/imagenet_train/shard_stats: labels_are_mixed",
}
# Loading must not touch data nor import what only running needs: a run worker and every step process load it again.
FRUGAL = """
import sys
from pathlib import Path
from spiral_assets.definitions import defs
defs().get_repository_def().get_all_jobs()
print(sorted({"torch", "lancedb", "duckdb", "torchvision"} & set(sys.modules)), sorted(Path(".").iterdir()))
"""


def test_the_location_offers_these_names() -> None:
    location = defs()
    dg.Definitions.validate_loadable(location)
    graph = location.resolve_asset_graph()

    found = {node.key.to_user_string(): node.group_name for node in graph.asset_nodes if node.is_materializable}
    assert found == ASSETS
    checks = {f"{key.asset_key.to_user_string()}: {key.name}" for key in graph.asset_check_keys}
    assert checks == CHECKS
    repository = location.get_repository_def()
    assert {j.name for j in repository.get_all_jobs() if not j.name.startswith("__")} == {"images", "prepare_images"}
    assert [schedule.name for schedule in repository.schedule_defs] == ["nightly"]
    assert repository.sensor_defs == []


def test_every_asset_says_what_it_is_whose_and_of_what_kind() -> None:
    graph = defs().resolve_asset_graph()

    for key in graph.materializable_asset_keys:
        node = graph.get(key)
        assert node.description, key
        assert node.owners, key
        assert node.kinds, key
        assert node.tags, key


def test_failures_that_nothing_may_be_built_on_block_and_others_only_warn() -> None:
    graph = defs().resolve_asset_graph()
    blocking = {key.name for key in graph.asset_check_keys if graph.get_check_spec(key).blocking}

    assert blocking == {name.partition(": ")[2] for name in CHECKS} - {"labels_are_mixed", "beats_chance"}


def test_the_cache_asset_is_as_old_as_its_fingerprint() -> None:
    graph = defs().resolve_asset_graph()
    version = graph.get(dg.AssetKey(["caches", "imagenet_decoded"])).code_version

    assert version == spiral.cache_fingerprint(plans.RELATION, plans.COLUMN, plans.profile())
    assert version != spiral.cache_fingerprint(plans.RELATION, plans.COLUMN, spiral.Raw(shorter_side=7))


def test_loading_reads_no_data_and_imports_no_framework(tmp_path: Path) -> None:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("SPIRAL_", "DAGSTER_HOME"))
    }
    done = subprocess.run(
        [sys.executable, "-c", FRUGAL], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[] []"
