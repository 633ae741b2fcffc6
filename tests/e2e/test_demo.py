"""`make demo`, small: a real job, a real SIGKILL, and a proof that is checked here once more."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import spiral_stream as spiral
from spiral_assets.demo.images import write_image_relation
from spiral_assets.plans import images as plans

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[2]
COUNT = 600  # eight batches an epoch, sixty images to validate on
EPOCHS = 12


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
        [sys.executable, "-m", "spiral_assets.demo", "--epochs", str(EPOCHS), *arguments],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3_000:] + done.stderr[-3_000:]
    return done.stdout


def check(place: Path, output: str, checks: str) -> None:
    """Two processes, one killed in mid-epoch; every batch of the second is the one that the plan has at that place."""
    (folder,) = (place / "data" / "checkpoints").iterdir()
    lines: list[dict[str, Any]] = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
    pids = list(dict.fromkeys(line["pid"] for line in lines))
    assert len(pids) == 2
    killed, resumed = ([line for line in lines if line["pid"] == pid] for pid in pids)
    assert killed[-1]["epoch"] == 1
    assert f"SIGKILL to process {pids[0]}" in output
    start = resumed[0]["epoch"] * resumed[0]["steps"] + resumed[0]["batch"]
    end = killed[-1]["epoch"] * killed[-1]["steps"] + killed[-1]["batch"]
    assert 0 < start <= end + 1
    places = [line["epoch"] * line["steps"] + line["batch"] for line in resumed]
    assert places == list(range(start, EPOCHS * resumed[0]["steps"]))
    with spiral.connect(str(place / "data" / "catalog")).open_stream(plans.TRAIN, device="cpu", epoch=0) as stream:
        for line in resumed:
            assert line["ids"] == stream.ledger(line["batch"], line["epoch"])
    result = json.loads((folder / "result.json").read_text())
    assert result["beats_chance"]
    assert result["accuracy"] > 2 * result["chance"]
    for said in ("EXPLAIN DATA", "MATERIALIZE", "same identities, in order", "accuracy", checks):
        assert said in output


def test_the_demo_survives_a_kill_and_proves_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPIRAL_CACHE", str(tmp_path / "data" / "caches"))

    check(tmp_path, demo(tmp_path, "--count", str(COUNT)), "7 of 7 passed")


@pytest.mark.slow
def test_the_demo_does_the_same_on_class_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPIRAL_CACHE", str(tmp_path / "data" / "caches"))
    own = write_image_relation(tmp_path / "own", COUNT, form="folder", progress=False).train_uri

    # a class folder is a storage shard, so every shard has one label
    check(tmp_path, demo(tmp_path, "--images", own), "6 of 7 passed; labels_are_mixed warns")
