import tarfile
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_assets.corpora.encoding import TICKS, UNEVEN, Form, times
from spiral_assets.corpora.footage import FORMS, SOURCES, SURE, planned
from spiral_assets.corpora.scenes import MOTIONS, SAID, Grounds, Scene, split
from spiral_assets.corpora.videos import LABELS_SCHEMA, SEGMENTS_SCHEMA, DrawnVideos, write_video_relations
from tests.fixtures import relations
from tests.fixtures.demo_yaml import declared

COUNT, SHARDS = 6, 3
SHORT = 0.2
VARIABLE, SOUND, TURNED, CUT = 0, 1, 2, COUNT - 1  # numbers of videos


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> DrawnVideos:
    root = tmp_path_factory.mktemp("videos")
    return write_video_relations(root, COUNT, shards=SHARDS, shorten=SHORT, workers=0, progress=False)


@pytest.fixture(scope="module")
def segments(drawn: DrawnVideos) -> list[dict[str, Any]]:
    return pq.read_table(drawn.segments_path).to_pylist()


@pytest.fixture(scope="module")
def grounds() -> Grounds:
    return Grounds(0)


def shown(path: Path) -> list[Any]:
    """Every frame of a file, as PyAV gives them."""
    with av.open(str(path)) as file:
        return list(file.decode(video=0))


def of_video(segments: list[dict[str, Any]], number: int) -> list[dict[str, Any]]:
    found = [row for row in segments if row["video_id"] == f"vid-{number:04d}"]
    return sorted(found, key=lambda row: row["start_time_ms"])


@given(
    seconds=st.floats(0.2, 20),
    seed=st.integers(0, 99),
    form=st.sampled_from([*FORMS, Form(64, 48, Fraction(30), 12, 0, variable=True)]),
)
def test_frames_are_shown_one_after_the_other_from_time_0_to_the_end(seconds: float, seed: int, form: Form) -> None:
    at = times(form, seconds, np.random.default_rng(seed))

    end = round(seconds * TICKS)
    assert at[0] == 0
    assert (np.diff(at) > 0).all()
    assert end - max(*UNEVEN, TICKS / form.fps) <= at[-1] < end
    if not form.variable:
        assert len(at) == -(-end * form.fps // TICKS)


@pytest.mark.parametrize("motion", range(len(MOTIONS)))
def test_a_scene_is_still_ground_and_objects_that_move_as_its_class_says(grounds: Grounds, motion: int) -> None:
    scene = Scene(np.random.default_rng(5), 96, 128, motion, grounds)
    lumas = np.array([split(scene.picture(at).copy(), 96, 128)[0] for at in (0.0, 0.5, 0.9)], np.int16)
    first, last = (np.abs(lumas[place] - lumas[1]) > 24 for place in (0, 2))

    changed = first | last
    assert 0.005 < changed.mean() < 0.6
    assert scene.caption.startswith("a ")
    ground = lumas[:, ~changed]
    assert (np.abs(ground - ground[1]) <= 24).all()


def test_videos_are_planned_by_number_and_some_sources_and_creators_have_most() -> None:
    videos = [planned(0, number, shorten=1.0, cut=False) for number in range(400)]
    shares = {name: sum(video.source == name for video in videos) / 400 for name in SOURCES}

    assert videos[7] == planned(0, 7, shorten=1.0, cut=False)
    assert shares["upload"] > shares["crawl"] > shares["archive"] > shares["broadcast"] > 0
    creators = [video.creator for video in videos]
    assert creators.count("upload-00") > 3 * creators.count("upload-09")
    assert {video.form.key_distance for video in videos} == {12, 48, 250}
    assert {round(float(video.form.fps), 2) for video in videos} == {12, 24, 29.97, 60}
    assert {video.form.b_frames > 0 for video in videos} == {True, False}
    uploaded = {name: np.mean([v.uploaded_ns for v in videos if v.source == name]) for name in SOURCES}
    assert uploaded["archive"] < uploaded["crawl"] < uploaded["upload"] < uploaded["broadcast"]
    first = [motion for video in videos for motion in video.motions]
    assert np.bincount(first).std() / np.bincount(first).mean() < 0.1


def test_the_tables_have_the_seeds_schemas_and_one_file_a_shard(drawn: DrawnVideos) -> None:
    segments, labels = pq.read_table(drawn.segments_path), pq.read_table(drawn.labels_path)

    assert segments.schema.equals(SEGMENTS_SCHEMA)
    assert SEGMENTS_SCHEMA.equals(relations.TRAINING_SEGMENTS)
    assert labels.schema.equals(LABELS_SCHEMA)
    assert LABELS_SCHEMA.equals(relations.SEGMENT_LABELS)
    for name, table in (("training_segments", segments), ("segment_labels", labels)):
        said = declared("video", f"video.{name}")
        assert set(said["columns"]) == set(said["descriptions"]) == set(table.schema.names)
    pieces = [pq.read_table(path) for path in sorted(Path(drawn.segments_path).iterdir())]
    assert [set(piece["storage_shard"].to_pylist()) for piece in pieces] == [{f"part-{k:04d}"} for k in range(SHARDS)]
    assert (drawn.videos, drawn.segments, drawn.shards) == (COUNT, len(segments), SHARDS)
    assert sorted(segments["sample_id"].to_pylist()) == labels["sample_id"].to_pylist()
    assert len(set(labels["sample_id"].to_pylist())) == len(labels)
    uploads = pa.concat_tables(pieces)["upload_ts"].cast(pa.int64()).to_numpy()
    assert (np.diff(uploads) >= 0).all()


def test_rows_say_of_their_files_what_the_files_hold(drawn: DrawnVideos, segments: list[dict[str, Any]]) -> None:
    for number in range(COUNT - 1):
        rows = of_video(segments, number)
        path = Path(drawn.root) / rows[0]["clip_ref"]["uri"]
        frames = shown(path)
        at_ms = np.array([round(frame.time * 1_000) for frame in frames])
        counts = [
            int(((at_ms >= row["start_time_ms"]) & (at_ms < row["start_time_ms"] + row["duration_ms"])).sum())
            for row in rows
        ]
        assert counts == [row["frame_count"] for row in rows]
        assert sum(counts) == len(frames)
        assert [before["start_time_ms"] + before["duration_ms"] for before, _ in pairwise(rows)] == [
            row["start_time_ms"] for row in rows[1:]
        ]
        assert {(row["clip_ref"]["offset"], row["clip_ref"]["length"]) for row in rows} == {(0, path.stat().st_size)}
        stored = (frames[0].width, frames[0].height)
        assert {(row["width"], row["height"]) for row in rows} == {stored[::-1] if number == TURNED else stored}


def test_one_file_has_uneven_times_one_a_sound_track_and_one_lies_on_its_side(
    drawn: DrawnVideos, segments: list[dict[str, Any]]
) -> None:
    paths = [Path(drawn.root) / of_video(segments, number)[0]["clip_ref"]["uri"] for number in range(COUNT - 1)]
    steps = [len({round(after.time - before.time, 3) for before, after in pairwise(shown(path))}) for path in paths]

    assert [number for number, found in enumerate(steps) if found > 2] == [VARIABLE]
    assert [number for number, path in enumerate(paths) if shown(path)[0].rotation] == [TURNED]
    tracks = []
    for path in paths:
        with av.open(str(path)) as file:
            tracks.append(len(file.streams.audio))
    assert [number for number, found in enumerate(tracks) if found] == [SOUND]


def test_key_frames_and_b_frames_are_where_the_form_says(drawn: DrawnVideos, segments: list[dict[str, Any]]) -> None:
    for number in range(COUNT - 1):
        form = FORMS[number]
        frames = shown(Path(drawn.root) / of_video(segments, number)[0]["clip_ref"]["uri"])
        assert [place for place, frame in enumerate(frames) if frame.key_frame] == list(
            range(0, len(frames), form.key_distance)
        )
        assert any(frame.pict_type == av.video.frame.PictureType.B for frame in frames) == (form.b_frames > 0)


def test_the_last_video_is_clips_of_their_own_inside_a_tar(drawn: DrawnVideos, segments: list[dict[str, Any]]) -> None:
    rows = of_video(segments, CUT)
    (uri,) = {row["clip_ref"]["uri"] for row in rows}

    with tarfile.open(Path(drawn.root) / uri) as tar:
        members = {member.offset_data: (member.size, tar.extractfile(member).read()) for member in tar}  # type: ignore[union-attr]
    assert {row["clip_ref"]["offset"]: row["clip_ref"]["length"] for row in rows} == {
        offset: size for offset, (size, _) in members.items()
    }
    for row in rows:
        path = Path(drawn.root).parent / "clip.mp4"
        path.write_bytes(members[row["clip_ref"]["offset"]][1])
        assert len(shown(path)) == row["frame_count"]


def test_labels_are_right_where_they_are_sure_and_captions_always(drawn: DrawnVideos) -> None:
    rows = pq.read_table(drawn.labels_path).to_pylist()
    said = [next(label for label, words in enumerate(SAID) if row["caption"].endswith(words)) for row in rows]

    assert all(row["label_id"] == label for row, label in zip(rows, said, strict=True) if row["confidence"] >= SURE)
    assert {row["confidence"] < SURE for row in rows} == {True, False}


def test_processes_write_what_one_process_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = write_video_relations(tmp_path / "a", 2, shards=1, shorten=0.1, workers=0, progress=False)
    # memory of the worker: what malloc gives is filled with 0xFE, what it gets back with 1. x264 read either, once
    monkeypatch.setenv("MALLOC_PERTURB_", "1")
    together = write_video_relations(tmp_path / "b", 2, shards=1, shorten=0.1, workers=1, progress=False)

    for one, other in zip(*(sorted(Path(each.root).rglob("*.*")) for each in (alone, together)), strict=True):
        if one.is_file() and one.suffix != ".json":
            assert one.read_bytes() == other.read_bytes(), one


def test_what_is_there_as_asked_is_kept_and_another_recipe_replaces_it(tmp_path: Path) -> None:
    first = write_video_relations(tmp_path, 2, shards=1, shorten=0.1, workers=0, progress=False)
    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}

    assert write_video_relations(tmp_path, 2, shards=1, shorten=0.1, workers=0, progress=False) == first
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == written
    assert write_video_relations(tmp_path, 3, shards=1, shorten=0.1, workers=0, progress=False).videos == 3


def test_numbers_that_make_no_sense_and_folders_of_others_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"2 videos in 6 shards. Give each shard a video or more"):
        write_video_relations(tmp_path, 2, progress=False)
    with pytest.raises(ValueError, match=r"shorten=2; it is above 0 and at most 1"):
        write_video_relations(tmp_path, shorten=2, progress=False)
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match=r"'thesis.tex', which the demo did not write. Name an empty folder"):
        write_video_relations(tmp_path, progress=False)
