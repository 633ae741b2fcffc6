"""One clip, named in every way that a reference can name it, gives one set of frames."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import spiral_stream as sp
from spiral_stream.semantic import H264_REF
from spiral_stream.testing import frozen, same
from tests.fixtures import labelled_clips
from tests.fixtures.clips import LABELS, SEGMENTS
from tests.fixtures.labelled_clips import TWICE, joined, stream
from tests.fixtures.videos import Made, cut, write_tar, write_video

FIRST, COUNT, FPS = 24, 48, 24  # a range of whole groups of pictures
START_MS, DURATION_MS = FIRST * 1_000 // FPS, COUNT * 1_000 // FPS


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_video(tmp_path_factory.mktemp("video") / "whole.mp4", Made(frames=96, gop=12, audio="aac"))


def frames(folder: Path, source: Any, **field: Any) -> np.ndarray[Any, Any]:
    catalog = sp.connect(str(folder / "catalog"))
    catalog.register("clips", source, identity="sample_id", semantic={"clip_ref": H264_REF})
    plan = catalog.table("clips").sample(identity="sample_id", order=sp.Sequential())
    stack = sp.Stack("clip_ref", decode="h264", **{"sequence_length": 8, "crop": (64, 96), **field})
    with plan.collate(batch_size=1, fields={"x": stack}).to_numpy() as stream:
        return np.asarray(next(iter(stream))["x"]).copy()


def row(reference: Any, kind: pa.DataType, *, timed: bool) -> pa.Table:
    columns = {"sample_id": ["a"], "clip_ref": pa.array([reference], kind)}
    if timed:
        columns |= {"start_time_ms": [START_MS], "duration_ms": [DURATION_MS]}
    return pa.table(columns)


RANGE = pa.struct([("uri", pa.utf8()), ("offset", pa.int64()), ("length", pa.int64())])


def whole_file(video: Path, folder: Path) -> Any:
    return sp.Arrow(row(str(video), pa.utf8(), timed=True))


def pre_cut_clip(video: Path, folder: Path) -> Any:
    return sp.Arrow(row(str(cut(video, folder / "clip.mp4", FIRST, COUNT)), pa.utf8(), timed=False))


def pre_cut_clip_that_says_where_it_was_cut(video: Path, folder: Path) -> Any:
    return sp.Arrow(row(str(cut(video, folder / "clip.mp4", FIRST, COUNT)), pa.utf8(), timed=True))


def inline_bytes(video: Path, folder: Path) -> Any:
    return sp.Arrow(row(video.read_bytes(), pa.large_binary(), timed=True))


def blob_of_lance(video: Path, folder: Path) -> Any:
    table = row(video.read_bytes(), pa.large_binary(), timed=True)
    lance.write_dataset(table, str(folder / "clips.lance"))
    return sp.Lance(str(folder / "clips.lance"))


def range_of_a_tar(video: Path, folder: Path) -> Any:
    other = write_video(folder / "other.mp4", Made(frames=12))
    (_, place) = write_tar(folder / "videos.tar", [other, video])
    reference = {"uri": str(folder / "videos.tar"), "offset": place[0], "length": place[1]}
    return sp.Arrow(row(reference, RANGE, timed=True))


WAYS = (pre_cut_clip, pre_cut_clip_that_says_where_it_was_cut, inline_bytes, blob_of_lance, range_of_a_tar)


@pytest.mark.crossed
@pytest.mark.parametrize("named", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("field", [{}, {"stride": 5}], ids=["uniform", "stride"])
def test_a_clip_is_the_same_however_it_is_named(
    video: Path, tmp_path: Path, named: Callable[[Path, Path], Any], field: dict[str, int]
) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    one = frames(tmp_path / "one", whole_file(video, tmp_path), **field)
    assert np.array_equal(frames(tmp_path / "other", named(video, tmp_path / "other"), **field), one)
    assert one.std() > 10


def test_a_folder_of_class_folders_is_a_relation_of_clips(tmp_path: Path) -> None:
    for name in ("jump", "run"):
        (tmp_path / "videos" / name).mkdir(parents=True)
        write_video(tmp_path / "videos" / name / "a.mp4", Made(frames=12, first=len(name)))
    catalog = sp.connect(str(tmp_path / "catalog"))
    catalog.register("videos", sp.sources.VideoFolder(str(tmp_path / "videos")), identity="sample_id")
    plan = catalog.table("videos").sample(identity="sample_id", order=sp.Sequential())
    fields = {"x": sp.Stack("clip_ref", decode="h264", sequence_length=4, crop=64), "y": sp.Stack("label_id")}
    with plan.collate(batch_size=2, fields=fields).to_numpy() as stream:
        (batch,) = list(stream)
    assert batch["x"].shape == (2, 4, 3, 64, 64)
    assert batch["y"].tolist() == [0, 1]


# ---- labels that stand more than once


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> tuple[sp.Catalog, pa.Table]:
    return labelled_clips.make_catalog(tmp_path_factory.mktemp("labelled"))


def test_labels_that_multiply_rows_are_an_error_with_the_ways_out(labelled: tuple[sp.Catalog, pa.Table]) -> None:
    with pytest.raises(sp.errors.PlanError) as refused, stream(joined(labelled[0]), "sample_id") as made:
        list(made)
    text = str(refused.value)
    assert "join on sample_id: 2 keys have several rows on the right" in text
    assert "'seg-000001' (2 rows), 'seg-000002' (2 rows)" in text
    for way_out in (".distinct('sample_id')", ".group_by('sample_id').aggregate(...)", "identity=[...]"):
        assert way_out in text


def test_distinct_labels_are_a_way_out(labelled: tuple[sp.Catalog, pa.Table]) -> None:
    catalog, segments = labelled
    one_each = catalog.table(LABELS).distinct("sample_id")
    with stream(catalog.table(SEGMENTS).join(one_each, on="sample_id"), "sample_id") as made:
        (batch,) = list(made)
    assert sorted(batch["sample_id"]) == segments["sample_id"].to_pylist()
    assert batch["caption"] == [f"a clip called {name}" for name in batch["sample_id"]]


@pytest.mark.parametrize("started", ["segments", "labels"])
def test_an_identity_of_two_columns_makes_each_pair_a_sample(
    labelled: tuple[sp.Catalog, pa.Table], started: str
) -> None:
    catalog, segments = labelled
    relation = joined(catalog)
    if started == "labels":
        relation = catalog.table(LABELS).join(catalog.table(SEGMENTS), on="sample_id")
    videos = dict(zip(segments["sample_id"].to_pylist(), segments["video_id"].to_pylist(), strict=True))
    with stream(relation.filter(sp.col("duration_ms") > 0), ["sample_id", "label_id"]) as made:
        made.materialize(lambda _: None)
        (batch,) = list(made)
        assert made.locate((batch["sample_id"][3], batch["label_id"][3])) is not None
    pairs = list(zip(batch["sample_id"], batch["label_id"], strict=True))
    assert len(set(pairs)) == len(segments) + len(TWICE)
    assert batch["video_id"] == [videos[name] for name in batch["sample_id"]]
    for at in TWICE:
        one, other = (i for i, name in enumerate(batch["sample_id"]) if name == f"seg-{at:06d}")
        assert np.array_equal(batch["x"][one], batch["x"][other])
        assert batch["caption"][one] != batch["caption"][other]


def test_pairs_are_shuffled_and_kept_as_samples_are(labelled: tuple[sp.Catalog, pa.Table]) -> None:
    catalog, _ = labelled
    order = sp.HashBucketed(seed=3, bucket_count=16, bucket_order=sp.ShuffleBuckets(seed=3))
    kept = joined(catalog).cache(clip_ref=sp.Frames(shorter_side=40))
    with stream(kept, ["sample_id", "label_id"], order) as made:
        before = [frozen(batch) for batch in made]
    with stream(kept, ["sample_id", "label_id"], order) as made:
        done = made.materialize(lambda _: None)
        after = [frozen(batch) for batch in made]
        assert made.metrics()["cache_hit_rate"] == 1
    assert done.rows == 4  # a segment is kept once, whatever it is joined to
    assert all(same(a, b) for a, b in zip(before, after, strict=True))
