"""`make demo`, small: a real job, a real SIGKILL, and a proof that is checked here once more."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import spiral_stream as spiral
from spiral_assets.corpora.images import write_image_relation
from spiral_assets.demo import own_images
from spiral_assets.plans import images as plans
from spiral_assets.plans import text as text_plans
from spiral_assets.plans import video as video_plans

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[2]
COUNT = 600  # eight batches an epoch, sixty images to validate on
EPOCHS = 8
CHARACTERS = 400_000
STEPS = 40
VIDEOS = 20
VIDEO_STEPS = 72


def demo(place: Path, *arguments: str) -> str:
    """Run the demo in a process of its own, as `make demo` does; its output."""
    home = place / "home"
    home.mkdir()
    shutil.copy(ROOT / "dagster_home" / "dagster.yaml", home)
    environment = {
        **os.environ,
        "SPIRAL_DATA_ROOT": str(place / "data"),
        "DAGSTER_HOME": str(home),
        "COLUMNS": "160",
    }
    done = subprocess.run(
        [sys.executable, "-m", "spiral_assets.demo", *arguments],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3_000:] + done.stderr[-3_000:]
    return done.stdout


def check(place: Path, output: str, stream: str, steps: int, checks: str) -> dict[str, Any]:
    """Two processes, one killed past the middle; every batch of the second is the one that the plan has at that place."""
    (folder,) = (place / "data" / "checkpoints").glob("*/*")
    lines: list[dict[str, Any]] = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
    pids = list(dict.fromkeys(line["pid"] for line in lines))
    assert len(pids) == 2
    killed, resumed = ([line for line in lines if line["pid"] == pid] for pid in pids)
    assert steps // 2 < killed[-1]["step"] < steps
    assert f"SIGKILL to process {pids[0]}" in output
    assert 0 < resumed[0]["step"] <= killed[-1]["step"] + 1
    assert [line["step"] for line in resumed] == list(range(resumed[0]["step"], steps))
    with spiral.connect(str(place / "data" / "catalog")).open_stream(stream, device="cpu", epoch=0) as opened:
        for line in resumed:
            planned = [
                list(each) if isinstance(each, tuple) else [each]
                for each in opened.ledger(line["batch"], line["epoch"])
            ]
            assert line["ids"] == planned
    for said in ("EXPLAIN DATA", "MATERIALIZE", "same identities, in order", "same tensors"):
        assert said in output
    (passed,) = re.findall(r"\d+ of \d+ passed[^│]*", output)
    assert passed.startswith(checks)
    result: dict[str, Any] = json.loads((folder / "result.json").read_text())
    assert result["beats_chance"]
    assert result["steps"] == steps
    return result


def check_images(place: Path, output: str, checks: str, stream: str = plans.TRAIN, batches: int = 8) -> None:
    result = check(place, output, stream, EPOCHS * batches, checks)
    assert result["accuracy"] > 2 * result["chance"]


@pytest.mark.slow  # tests/assets/test_training.py kills a training by default
def test_the_demo_survives_a_kill_and_proves_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPIRAL_CACHE", str(tmp_path / "data" / "caches"))
    output = demo(tmp_path, "--only", "images", "--epochs", str(EPOCHS), "--count", str(COUNT))

    check_images(tmp_path, output, "8 of 8 passed")


@pytest.mark.slow
def test_the_demo_does_the_same_on_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPIRAL_CACHE", str(tmp_path / "data" / "caches"))
    output = demo(tmp_path, "--only", "text", "--characters", str(CHARACTERS), "--steps", str(STEPS))

    check(tmp_path, output, text_plans.TRAIN, STEPS, "10 of 11 passed; explains_without_a_warning warns")
    for stream in text_plans.PROPORTIONS:
        assert stream in output.partition("EXPLAIN DATA")[2]


@pytest.mark.slow
def test_the_demo_does_the_same_on_video(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPIRAL_CACHE", str(tmp_path / "data" / "caches"))
    output = demo(tmp_path, "--only", "video", "--videos", str(VIDEOS), "--video-steps", str(VIDEO_STEPS))

    result = check(tmp_path, output, video_plans.TRAIN, VIDEO_STEPS, "12 of 13 passed; no_source_has_most warns")
    assert result["accuracy"] > 2 * result["chance"]
    assert f"{VIDEOS - 1 + 5} files, 1 of them on their side, 0 refused" in output


@pytest.mark.slow
def test_the_demo_does_the_same_on_class_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPIRAL_CACHE", str(tmp_path / "data" / "caches"))
    own = write_image_relation(tmp_path / "own", COUNT, form="folder", progress=False).train_uri

    # a class folder is a storage shard, so every shard has one label
    output = demo(tmp_path, "--only", "images", "--epochs", str(EPOCHS), "--images", own)
    # the folder has the 540 images to train on, of which every tenth is held out again
    check_images(tmp_path, output, "7 of 8 passed; labels_are_mixed warns", own_images.TRAIN, 7)
    catalog = spiral.connect(str(tmp_path / "data" / "catalog"))
    assert catalog.tables() == ["vision.own_images", "vision.own_labels", "vision.own_splits"]
    assert catalog.entry(own_images.RELATION).source == spiral.ImageFolder(own)
