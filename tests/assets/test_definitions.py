"""What the code location offers, by name, and what loading it costs."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import dagster as dg
import pytest

import spiral_stream as spiral
from spiral_assets.cache_rebuilds import clip_code_version, image_code_version, token_code_version
from spiral_assets.definitions import defs
from spiral_assets.plans import images as plans
from spiral_assets.plans import text, video

ASSETS = {
    "caches/code_tokens": "caches",
    "caches/fineweb_tokens": "caches",
    "caches/imagenet_decoded": "caches",
    "caches/video_clips": "caches",
    "caches/video_index": "caches",
    "caches/wikipedia_tokens": "caches",
    "catalog/text/code_documents": "catalog",
    "catalog/text/fineweb_documents": "catalog",
    "catalog/text/wikipedia_documents": "catalog",
    "catalog/video/index": "catalog",
    "catalog/video/segment_labels": "catalog",
    "catalog/video/training_segments": "catalog",
    "catalog/vision/imagenet_labels": "catalog",
    "catalog/vision/imagenet_train": "catalog",
    "models/images_cnn": "training",
    "models/text_lm": "training",
    "models/video_cnn": "training",
    "stats/text/token_lengths": "stats",
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
    "stats/video/training_segments/shard_stats: no_creator_has_most",
    "stats/vision/imagenet_train/shard_stats: labels_are_mixed",
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
    "catalog/video/segment_labels: one_label_a_segment",
    "catalog/video/segment_labels: schema_is_as_declared",
    "catalog/video/training_segments: identity_is_unique",
    "catalog/video/training_segments: schema_is_as_declared",
    "catalog/vision/imagenet_labels: label_is_unique",
    "catalog/vision/imagenet_train: identity_is_unique",
    "catalog/vision/imagenet_train: references_resolve",
    "catalog/vision/imagenet_train: schema_is_as_declared",
}
JOBS = {"images", "prepare_images", "text", "prepare_text", "video", "prepare_video", "index_video"}
# Loading must not touch data nor import what only running needs: a run worker and every step process load it again.
FRUGAL = """
import sys
from pathlib import Path
from spiral_assets.definitions import defs
defs().get_repository_def().get_all_jobs()
heavy = {"av", "duckdb", "lance", "lancedb", "tokenizers", "torch", "torchvision", "transformers"}
print(sorted(heavy & set(sys.modules)), sorted(Path(".").iterdir()))
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
    assert {j.name for j in repository.get_all_jobs() if not j.name.startswith("__")} == JOBS
    assert [schedule.name for schedule in repository.schedule_defs] == [
        "nightly_images",
        "nightly_text",
        "nightly_video",
    ]
    assert [sensor.name for sensor in repository.sensor_defs] == ["changed_video_shards"]


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
    blocking = {
        f"{key.asset_key.to_user_string()}: {key.name}"
        for key in graph.asset_check_keys
        if graph.get_check_spec(key).blocking
    }

    assert blocking == CHECKS - WARNINGS


def test_a_job_runs_one_task_and_prepares_without_training() -> None:
    location = defs()
    for domain in ("images", "text", "video"):
        every = {key.to_user_string() for key in location.resolve_job_def(domain).asset_layer.executable_asset_keys}
        prepared = {
            key.to_user_string()
            for key in location.resolve_job_def(f"prepare_{domain}").asset_layer.executable_asset_keys
        }
        assert every - prepared == {name for name in every if name.startswith("models/")}
        assert len(every - prepared) == 1


def test_a_token_cache_is_as_old_as_the_code_that_tokenizes(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = defs().resolve_asset_graph()
    versions = {name: graph.get(dg.AssetKey(["caches", f"{name}_tokens"])).code_version for name in text.RELATIONS}

    assert versions == {name: token_code_version(name) for name in text.RELATIONS}
    assert len(set(versions.values())) == 3
    monkeypatch.setattr(text, "TOKENIZER", "another")
    assert token_code_version("code") != versions["code"]


def test_the_clip_cache_is_as_old_as_the_frames_that_the_plan_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    version = defs().resolve_asset_graph().get(dg.AssetKey(["caches", "video_clips"])).code_version

    assert version == clip_code_version()
    monkeypatch.setattr(video, "FRAMES", video.FRAMES + 1)
    assert clip_code_version() != version


@pytest.mark.parametrize(
    ("version", "code"),
    [
        ("spiral_stream.cache.fingerprint.CLIPS_VERSION", clip_code_version),
        ("spiral_stream.cache.fingerprint.TOKENS_VERSION", lambda: token_code_version("code")),
        ("spiral_stream.decoders.image.JpegDecoder.VERSION", image_code_version),
    ],
)
def test_a_new_version_of_the_librarys_code_makes_a_cache_stale(
    version: str, code: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = code()

    monkeypatch.setattr(version, 99)

    assert code() != before


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
