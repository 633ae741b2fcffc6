"""Your own images: defined once, kept by everything that runs later, and never replaced by the demo's."""

import shutil
from pathlib import Path

import dagster as dg
import pytest
from PIL import Image

import spiral_stream as spiral
from spiral_assets.corpora.images import write_image_relation
from spiral_assets.definitions import defs
from spiral_assets.defs.resources import resources
from spiral_assets.demo import own_images
from spiral_assets.plans import images as plans
from tests.assets.conftest import LABELS, TRAIN, Place, drawn, evaluations, metadata

pytestmark = [
    pytest.mark.filterwarnings("ignore:`parse_obj_as` is deprecated"),
    pytest.mark.filterwarnings("ignore:collate. batch_size is 64:spiral_stream.SpiralWarning"),
]
OWN = "catalog/vision/own_images"
PREPARED = ("catalog/vision/own_labels", "catalog/vision/own_splits", "caches/own_images_decoded", "streams/own_images")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Class folders that no test writes to."""
    root = tmp_path_factory.mktemp("pictures")
    return Path(write_image_relation(root, 60, form="folder", workers=0, progress=False).train_uri)


@pytest.fixture
def folder(place: Place, pictures: Path) -> Path:
    """Class folders of its own, which are defined for the place."""
    found = Path(shutil.copytree(pictures, place.root / "own"))
    place.data.mkdir(exist_ok=True)
    own_images.write_definitions(place.data, found)
    place.definitions = resources()  # the part of the location that has them
    return found


def test_materializing_anything_keeps_your_folder(place: Place, folder: Path) -> None:
    """Once the folder was the run config of one run; every later run registered drawn images in its place."""
    drawn(place)
    place.definitions = defs()
    assert place.run(OWN, TRAIN, LABELS).success
    catalog = spiral.connect(str(place.root / "catalog"))
    version = catalog.entry(own_images.RELATION).data_version

    assert place.run(OWN).success  # as the UI does, without any config
    place.definitions = defs()  # and a new process
    assert place.run(OWN, TRAIN).success

    assert catalog.entry(own_images.RELATION).source == spiral.ImageFolder(str(folder))
    assert catalog.entry(own_images.RELATION).data_version == version
    assert catalog.entry(plans.RELATION).source.KIND == "lance"
    schedules = {each.name: each for each in place.definitions.get_repository_def().schedule_defs}
    asked = schedules["nightly_images"].evaluate_tick(dg.build_schedule_context(instance=place.instance))
    assert [request.run_config for request in asked.run_requests or ()] == [{}]


def test_class_folders_get_labels_a_split_a_cache_and_streams(place: Place, folder: Path) -> None:
    result = place.run(OWN, "stats/vision/own_images/shard_stats", *PREPARED)

    assert result.success
    catalog = spiral.connect(str(place.root / "catalog"))
    names = catalog.table("vision.own_labels").sort("label_id").to_arrow()["class_name"].to_pylist()
    assert names == sorted(path.name for path in folder.iterdir())
    split = dict.fromkeys(("train", "val"), frozenset[str]())
    for name in split:
        rows = plans.images(catalog, name, own_images.RELATION, "vision.own_splits")
        split[name] = frozenset(rows.to_arrow()["sample_id"].to_pylist())
    assert split["train"]
    assert split["val"]
    assert not split["train"] & split["val"]
    assert sum(map(len, split.values())) == metadata(result, OWN)["dagster/row_count"]
    mixed = evaluations(result)["labels_are_mixed"]
    assert not mixed.passed
    assert "label_id: distance of" in (mixed.description or "")
    assert (mixed.description or "").count(". ")  # and what to do about it


def test_images_of_other_formats_are_read_without_being_told(place: Place, folder: Path) -> None:
    for form, path in zip(("PNG", "BMP", "WEBP"), sorted(folder.glob("*/*.jpg")), strict=False):
        Image.open(path).save(path.with_suffix(f".{form.lower()}"), form)
        path.unlink()
    result = place.run(OWN, *PREPARED)

    assert result.success
    assert evaluations(result)["references_resolve"].passed
    catalog = spiral.connect(str(place.root / "catalog"))
    names = own_images.RELATION, "vision.own_splits"
    rows = plans.images(catalog, "train", *names).to_arrow()["sample_id"].to_pylist()
    assert len({Path(name).suffix for name in rows}) > 1
    with (
        plans.training(catalog, *names).to_numpy() as stream,
        stream.eval() as whole,
    ):  # training drops a batch that is not full
        assert sorted(each for batch in whole for each in batch["sample_id"]) == sorted(rows)
    assert (
        metadata(result, "caches/own_images_decoded")["dagster/row_count"] == metadata(result, OWN)["dagster/row_count"]
    )


def test_a_file_that_vanished_fails_the_references_and_says_so(place: Place, folder: Path) -> None:
    place.run(OWN)
    gone = next(folder.glob("*/*.jpg"))
    gone.unlink()

    found = evaluations(place.run(checks=[(OWN, "references_resolve")]))

    assert not found["references_resolve"].passed
    assert gone.parent.name in (found["references_resolve"].description or "")


def test_without_a_folder_there_are_no_definitions(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    assert own_images.own_definitions().assets in (None, [])
    monkeypatch.delenv("SPIRAL_DATA_ROOT")
    assert own_images.own_definitions().assets in (None, [])
