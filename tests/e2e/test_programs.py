"""The example programs run unchanged, on relations with the schemas that they name."""

import runpy
from pathlib import Path
from typing import Any

import lance
import pytest
import torch

import spiral_stream as spiral
from spiral_assets.corpora.images import write_image_relation
from spiral_stream.testing import frozen, same
from tests.fixtures import relations

PROGRAM = Path(__file__).parent / "programs" / "image.py"
pytestmark = pytest.mark.e2e


def register(root: Path, count: int) -> None:
    """A few small images, or many as large as photographs, of which each takes 4 CPU ms to draw."""
    if count < 1_000:
        train, labels = str(root / "train.lance"), str(root / "labels.lance")
        lance.write_dataset(relations.imagenet_train(count), train, max_rows_per_file=count // 4)
        lance.write_dataset(relations.imagenet_labels(), labels)
    else:
        drawn = write_image_relation(root / "images", count, progress=False)
        train, labels = drawn.train_uri, str(drawn.labels_uri)
    catalog = spiral.connect(str(root / "catalog"))
    catalog.register("vision.imagenet_train", spiral.Lance(train), semantic={"image_ref": "image/jpeg-ref"})
    catalog.register("vision.imagenet_labels", spiral.Lance(labels), identity="label_id")


def program(monkeypatch: pytest.MonkeyPatch, root: Path) -> Any:
    monkeypatch.setenv("SPIRAL_CATALOG", str(root / "catalog"))
    return runpy.run_path(str(PROGRAM))["train"]


def check(batch: dict[str, Any]) -> None:
    assert list(batch) == ["image", "label", "sample_id"]
    assert batch["image"].shape == (256, 3, 224, 224)
    assert batch["image"].dtype == torch.float16
    assert batch["label"].shape == (256,)
    assert batch["label"].dtype == torch.int64
    assert len(set(batch["sample_id"])) == 256


def test_the_image_program_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register(tmp_path, 600)
    train = program(monkeypatch, tmp_path)

    with pytest.raises(spiral.errors.BindError, match=r'bind\(device="cpu"\)'):
        next(iter(train))
    train.bind(device="cpu", epoch=0, data_parallel_rank=0, data_parallel_world_size=1)
    batches = list(train)

    assert len(batches) == 2  # 540 rows have split "train"
    for batch in batches:
        check(batch)


@pytest.mark.slow
@pytest.mark.timeout(1_200)
def test_the_image_program_runs_on_ten_thousand_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register(tmp_path, 10_000)
    train = program(monkeypatch, tmp_path)
    train.bind(device="cpu", epoch=0, data_parallel_rank=0, data_parallel_world_size=1)
    held: list[dict[str, Any]] = []

    for batch in train:
        check(batch)
        if len(held) < 8:
            held.append(frozen(batch))

    assert len(train) == 35
    for rank in range(4):
        with program(monkeypatch, tmp_path) as one:
            one.bind(device="cpu", epoch=0, data_parallel_rank=rank, data_parallel_world_size=4)
            for step, batch in zip(range(2), one, strict=False):
                assert same(held[4 * step + rank], frozen(batch))
