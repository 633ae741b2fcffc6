"""The video program runs unchanged over real H.264 files."""

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.fixtures.clips import MADE, Clips, expected, shown, video_catalog

PROGRAM = Path(__file__).parent / "programs" / "video.py"
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Clips:
    return video_catalog(tmp_path_factory.mktemp("video"), files=15, each=3)


def program(monkeypatch: pytest.MonkeyPatch, clips: Clips, **bindings: int) -> Any:
    monkeypatch.setenv("SPIRAL_CATALOG", str(clips.catalog.root))
    train = runpy.run_path(str(PROGRAM))["train"]
    return train.bind(device="cpu", **{"epoch": 0, "data_parallel_rank": 0, "data_parallel_world_size": 1, **bindings})


def test_the_video_program_runs(clips: Clips, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {row["sample_id"]: row for row in clips.segments.to_pylist()}
    labels = {row["sample_id"]: row for row in clips.labels.to_pylist()}
    kept = [name for name, row in labels.items() if row["confidence"] > 0.7]
    seen: list[str] = []
    with program(monkeypatch, clips) as train:
        for batch in train:
            assert list(batch) == ["frames", "label", "caption", "video_id", "sample_id"]
            frames, names = batch["frames"], batch["sample_id"]
            assert frames.dtype == torch.float16
            assert tuple(frames.shape) == (len(names), 16, 3, 224, 224)
            assert 1 <= len(names) <= 32
            assert len(names) * 16 <= 32 * 16
            assert frames.numel() * 2 <= 8_000_000_000
            assert batch["label"].tolist() == [labels[name]["label_id"] for name in names]
            assert batch["caption"] == [f"a clip called {name}" for name in names]
            assert batch["video_id"] == [rows[name]["video_id"] for name in names]
            for at in range(0, len(names), 5):
                row, number = rows[names[at]], int(rows[names[at]]["video_id"][4:])
                path, made = clips.paths[number], MADE[number % len(MADE)]
                wanted = shown(path, row["start_time_ms"], row["duration_ms"], 16)
                true = expected(path, made.rotation, wanted, resize=256, crop=224)
                apart = np.abs(frames[at].float().numpy() - true)
                assert apart.mean() < 1.5 / 255, (names[at], apart.mean() * 255)
            seen += names
    assert sorted(seen) == sorted(kept)


def test_two_ranks_share_the_epoch_and_another_epoch_has_another_order(
    clips: Clips, monkeypatch: pytest.MonkeyPatch
) -> None:
    def names(**bindings: int) -> list[str]:
        with program(monkeypatch, clips, **bindings) as train:
            return [name for number in range(train.count()) for name in train.ledger(number)]

    with program(monkeypatch, clips) as train:
        batches = train.count()
    ranks = []
    for rank in range(2):
        with program(monkeypatch, clips, data_parallel_rank=rank, data_parallel_world_size=2) as train:
            ranks.append([batch["sample_id"] for batch in train])
    whole = names()

    assert batches == len(ranks[0]) + len(ranks[1])
    assert [name for batch in (ranks[0][0], ranks[1][0]) for name in batch] == whole
    assert names(epoch=1) != whole
    assert sorted(names(epoch=1)) == sorted(whole)
