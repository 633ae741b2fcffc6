from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import simplejpeg
from hypothesis import given
from hypothesis import strategies as st

from spiral_assets.corpora.drawing import CLASSES, Painter
from spiral_assets.corpora.images import LABELS_SCHEMA, TRAIN_SCHEMA, label_of, write_image_relation


@given(start=st.integers(0, 10_000).map(lambda n: n * 10))
def test_ten_images_in_a_row_show_ten_classes(start: int) -> None:
    assert sorted(label_of(number) for number in range(start, start + 10)) == list(range(10))


def test_a_painter_draws_an_image_by_its_number_whatever_it_drew_before() -> None:
    first, second = Painter(3), Painter(3)
    second.draw(0, 0)

    np.testing.assert_array_equal(first.draw(7, 2), second.draw(7, 2))
    assert first.draw(7, 2).shape != first.draw(8, 2).shape or (first.draw(7, 2) != first.draw(8, 2)).any()


def test_images_cost_what_photographs_cost() -> None:
    painter = Painter(0)
    images = [painter.draw(number, number % 10) for number in range(40)]
    sizes = [len(simplejpeg.encode_jpeg(image, 90, "RGB", "420")) for image in images]

    assert 60_000 < np.mean(sizes) < 130_000
    assert {image.shape[0] > image.shape[1] for image in images} == {True, False}
    assert all(400 <= max(image.shape) <= 600 for image in images)


def test_the_mean_colour_does_not_tell_the_class() -> None:
    painter = Painter(0)
    means = np.array([[painter.draw(10 * n + k, k).mean((0, 1)) for k in range(10)] for n in range(16)])
    centres = means[:10].mean(0)  # [10, 3]
    nearest = np.linalg.norm(means[10:, :, None] - centres, axis=-1).argmin(-1)

    assert (nearest == np.arange(10)).mean() < 0.25


@pytest.mark.parametrize("form", ["lance", "parquet"])
def test_tables_have_the_seed_schema_and_one_unit_of_storage_a_shard(tmp_path: Path, form: str) -> None:
    drawn = write_image_relation(tmp_path / "r", 23, shards=3, form=form, workers=0, progress=False)

    if form == "lance":
        dataset = lance.dataset(drawn.train_uri)
        table, labels = dataset.to_table(), lance.dataset(drawn.labels_uri).to_table()
        pieces = [fragment.to_table(columns=["storage_shard"]) for fragment in dataset.get_fragments()]
    else:
        files = sorted(Path(drawn.train_uri).parent.glob("*.parquet"))
        pieces = [pq.read_table(file) for file in files]
        table, labels = pa.concat_tables(pieces), pq.read_table(drawn.labels_uri)
    assert table.schema == TRAIN_SCHEMA
    assert labels.schema == LABELS_SCHEMA
    assert labels["class_name"].to_pylist() == list(CLASSES)
    assert [set(piece["storage_shard"].to_pylist()) for piece in pieces] == [{f"part-000{k}"} for k in range(3)]
    assert (drawn.count, drawn.train_count, drawn.shards) == (23, 21, 3)
    for row in table.to_pylist():
        assert simplejpeg.decode_jpeg(row["image_ref"]).shape == (row["height"], row["width"], 3)
    assert table["sample_id"].unique().to_pylist() == table["sample_id"].to_pylist()


def test_folders_hold_the_same_bytes_as_the_table(tmp_path: Path) -> None:
    table = lance.dataset(write_image_relation(tmp_path / "t", 20, shards=2, workers=0, progress=False).train_uri)
    drawn = write_image_relation(tmp_path / "f", 20, shards=2, form="folder", workers=0, progress=False)

    files = {path.stem: path for path in (tmp_path / "f").glob("*/*/*.jpg")}
    assert len(files) == 20
    assert drawn.train_uri == str(tmp_path / "f" / "train")
    for row in table.to_table().to_pylist():
        path = files[row["sample_id"]]
        assert path.parent.name == CLASSES[row["label_id"]]
        assert path.parent.parent.name == row["split"]
        assert path.read_bytes() == row["image_ref"]


def test_processes_draw_what_one_process_draws(tmp_path: Path) -> None:
    alone = write_image_relation(tmp_path / "a", 70, shards=2, workers=0, progress=False)
    together = write_image_relation(tmp_path / "b", 70, shards=2, workers=2, progress=False)

    assert lance.dataset(alone.train_uri).to_table() == lance.dataset(together.train_uri).to_table()


def test_what_is_there_as_asked_is_kept_and_another_recipe_replaces_it(tmp_path: Path) -> None:
    root = tmp_path / "r"
    first = write_image_relation(root, 10, shards=1, workers=0, progress=False)
    version = lance.dataset(first.train_uri).version

    assert write_image_relation(root, 10, shards=1, workers=0, progress=False) == first
    assert lance.dataset(first.train_uri).version == version
    second = write_image_relation(root, 12, shards=1, workers=0, progress=False)
    assert lance.dataset(second.train_uri).count_rows() == 12


def test_an_interrupted_drawing_starts_again(tmp_path: Path) -> None:
    (tmp_path / "imagenet_train.lance" / "data").mkdir(parents=True)
    (tmp_path / "imagenet_train.lance" / "data" / "half.lance").write_bytes(b"half")

    drawn = write_image_relation(tmp_path, 10, shards=1, workers=0, progress=False)

    assert lance.dataset(drawn.train_uri).count_rows() == 10


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")

    with pytest.raises(ValueError, match=r"'thesis.tex', which the demo did not write. Name an empty folder"):
        write_image_relation(tmp_path, 10, workers=0, progress=False)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_numbers_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"3 images in 8 shards. Give each shard an image or more"):
        write_image_relation(tmp_path, 3, workers=0, progress=False)
    with pytest.raises(ValueError, match="form 'tar' is unknown; it is one of lance, parquet, folder"):
        write_image_relation(tmp_path, form="tar", workers=0, progress=False)  # type: ignore[arg-type]
