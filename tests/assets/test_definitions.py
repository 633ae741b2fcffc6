"""What the code location offers, by name, and what loading it costs."""

import os
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import dagster as dg

from tests.assets.conftest import loaded

ROOT = Path(__file__).parents[2]
ASSETS = {
    "caches/code_tokens": "caches",
    "caches/fineweb_tokens": "caches",
    "caches/imagenet_decoded": "caches",
    "caches/video_clips": "caches",
    "caches/video_index": "indexes",
    "caches/wikipedia_tokens": "caches",
    "catalog/text/code_documents": "catalog",
    "catalog/text/fineweb_documents": "catalog",
    "catalog/text/wikipedia_documents": "catalog",
    "catalog/video/index": "indexes",
    "catalog/video/segment_labels": "catalog",
    "catalog/video/training_segments": "catalog",
    "catalog/vision/imagenet_labels": "catalog",
    "catalog/vision/imagenet_train": "catalog",
    "models/images_cnn": "training",
    "models/text_lm": "training",
    "models/video_cnn": "training",
    "stats/text/code_documents/shard_stats": "stats",
    "stats/text/fineweb_documents/shard_stats": "stats",
    "stats/text/token_lengths": "stats",
    "stats/text/wikipedia_documents/shard_stats": "stats",
    "stats/video/training_segments/clip_stats": "stats",
    "stats/video/training_segments/shard_stats": "stats",
    "stats/vision/imagenet_train/shard_stats": "stats",
    "streams/images": "streams",
    "streams/text_pretraining": "streams",
    "streams/video": "streams",
    "tokenizers/llama_tokenizer": "tokenizers",
}
WARNINGS = {
    "models/images_cnn: beats_chance",
    "catalog/video/segment_labels: every_segment_is_labelled",
    "models/text_lm: beats_chance",
    "models/video_cnn: beats_chance",
    "stats/video/training_segments/clip_stats: few_clips_are_short",
    "stats/video/training_segments/shard_stats: no_creator_id_has_most",
    "stats/video/training_segments/shard_stats: no_source_has_most",
    "stats/vision/imagenet_train/shard_stats: labels_are_mixed",
    "streams/images: explains_without_a_warning",
    "streams/text_pretraining: explains_without_a_warning",
    "streams/video: explains_without_a_warning",
}
CHECKS = WARNINGS | {
    "caches/code_tokens: cache_is_complete",
    "caches/fineweb_tokens: cache_is_complete",
    "caches/imagenet_decoded: cache_is_complete",
    "caches/video_clips: cache_is_complete",
    "caches/wikipedia_tokens: cache_is_complete",
    "catalog/text/code_documents: identity_is_unique",
    "catalog/text/code_documents: schema_is_as_declared",
    "catalog/text/fineweb_documents: identity_is_unique",
    "catalog/text/fineweb_documents: schema_is_as_declared",
    "catalog/text/wikipedia_documents: identity_is_unique",
    "catalog/text/wikipedia_documents: schema_is_as_declared",
    "catalog/video/index: files_are_usable",
    "catalog/video/index: segments_lie_in_their_files",
    "catalog/video/segment_labels: identity_is_unique",
    "catalog/video/segment_labels: schema_is_as_declared",
    "catalog/video/training_segments: identity_is_unique",
    "catalog/video/training_segments: schema_is_as_declared",
    "catalog/vision/imagenet_labels: identity_is_unique",
    "catalog/vision/imagenet_train: identity_is_unique",
    "catalog/vision/imagenet_train: references_resolve",
    "catalog/vision/imagenet_train: schema_is_as_declared",
}
JOBS = {"images", "prepare_images", "text", "prepare_text", "video", "prepare_video", "remove_dead_caches"}
# Loading must not touch data nor import what only running needs: a run worker and every step process load it again.
FRUGAL = """
import sys
from pathlib import Path
import spiral_assets.demo.__main__  # as each process does that draws for it
assert "dagster" not in sys.modules
from spiral_assets.definitions import defs
defs().get_repository_def().get_all_jobs()
heavy = {"av", "duckdb", "lance", "numpy", "PIL", "pyarrow", "spiral_stream", "tokenizers", "torch", "transformers"}
print(sorted(heavy & set(sys.modules)), sorted(Path(".").iterdir()))
"""


def test_the_location_offers_these_names() -> None:
    location = loaded()
    dg.Definitions.validate_loadable(location)
    graph = location.resolve_asset_graph()

    found = {node.key.to_user_string(): node.group_name for node in graph.asset_nodes if node.is_materializable}
    assert found == ASSETS
    checks = {f"{key.asset_key.to_user_string()}: {key.name}" for key in graph.asset_check_keys}
    assert checks == CHECKS
    repository = location.get_repository_def()
    assert {j.name for j in repository.get_all_jobs() if not j.name.startswith("__")} == JOBS
    schedules = {schedule.name: schedule.job_name for schedule in repository.schedule_defs}
    assert schedules == {
        "nightly_images": "prepare_images",
        "nightly_text": "prepare_text",
        "nightly_video": "prepare_video",
        "weekly_removal": "remove_dead_caches",
    }
    assert [sensor.name for sensor in repository.sensor_defs] == ["rebuild_what_changed"]


def test_every_asset_says_what_it_is_whose_and_of_what_kind() -> None:
    graph = loaded().resolve_asset_graph()

    for key in graph.materializable_asset_keys:
        node = graph.get(key)
        assert node.description, key
        assert node.owners, key
        assert node.kinds, key
        assert node.tags, key


def test_failures_that_nothing_may_be_built_on_block_and_others_only_warn() -> None:
    graph = loaded().resolve_asset_graph()
    blocking = {
        f"{key.asset_key.to_user_string()}: {key.name}"
        for key in graph.asset_check_keys
        if graph.get_check_spec(key).blocking
    }

    assert blocking == CHECKS - WARNINGS


def test_a_job_runs_one_task_and_prepares_without_training() -> None:
    location = loaded()
    for domain in ("images", "text", "video"):
        every = {key.to_user_string() for key in location.resolve_job_def(domain).asset_layer.executable_asset_keys}
        prepared = {
            key.to_user_string()
            for key in location.resolve_job_def(f"prepare_{domain}").asset_layer.executable_asset_keys
        }
        assert every - prepared == {name for name in every if name.startswith("models/")}
        assert len(every - prepared) == 1


def test_no_group_of_the_lineage_leads_back_to_itself() -> None:
    graph = loaded().resolve_asset_graph()
    groups: dict[str, set[str]] = {}
    for key in graph.materializable_asset_keys:
        node = graph.get(key)
        upstream = {graph.get(parent).group_name for parent in node.parent_keys}
        groups.setdefault(str(node.group_name), set()).update(str(group) for group in upstream - {node.group_name})

    # a tokenizer is trained on relations, and lengths are counted in caches, so statistics lie on both sides of caches
    order = TopologicalSorter({group: above - {"stats"} for group, above in groups.items()})
    assert set(order.static_order()) == set(groups)


def test_a_cache_has_a_pool_of_its_own_whoever_starts_it() -> None:
    graph = loaded().resolve_asset_graph()
    caches = [key for key in graph.materializable_asset_keys if key.path[0] == "caches"]

    assert {graph.get(key).pools == {f"build_{key.path[1]}"} for key in caches} == {True}


def test_nothing_that_decides_a_relation_is_run_config() -> None:
    location = loaded()
    for name in JOBS:
        job = location.resolve_job_def(name)
        told = {node.name for node in job.nodes if getattr(node.definition.config_field.config_type, "fields", None)}
        assert {op.partition("__")[0] for op in told} <= {"models"}, name


def test_loading_reads_no_data_and_imports_no_framework(tmp_path: Path) -> None:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("SPIRAL_", "DAGSTER_HOME"))
    }
    environment["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(
        [sys.executable, "-c", FRUGAL], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[] []"
