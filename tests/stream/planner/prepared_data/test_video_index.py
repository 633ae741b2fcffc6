"""The index of a relation's videos is a table of what a full decode of each file finds."""

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import spiral_stream as sp
from spiral_stream import index_videos
from spiral_stream.errors import PlanError
from spiral_stream.results import Progress
from spiral_stream.semantic import H264_REF
from tests.fixtures.videos import Made, reference_frames, write_tar, write_video

MADE = (Made(frames=12, gop=4), Made(frames=9, gop=9, width=64, height=96, rotation=90, fps=30))
RANGE = pa.struct([("uri", pa.utf8()), ("offset", pa.int64()), ("length", pa.int64())])


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    for i, made in enumerate(MADE):
        write_video(folder / f"{i}.mp4", made)
    (folder / "bad.mp4").write_bytes(b"no video")
    return folder


@pytest.fixture
def catalog(files: Path, tmp_path: Path) -> sp.Catalog:
    """Rows of two shards: both files, a third that is none, and a fourth that is missing."""
    shutil.copytree(files, tmp_path / "files")
    uris = ["0.mp4", "bad.mp4", "1.mp4", "gone.mp4", "1.mp4"]
    return registered(tmp_path, pa.table({"id": range(5), "clip": uris, "part": ["a", "a", "b", "b", "b"]}))


def registered(folder: Path, table: pa.Table) -> sp.Catalog:
    made = sp.connect(str(folder / "catalog"))
    source = sp.Arrow(table, base=str(folder / "files"))
    made.register("v", source, identity="id", shard="part", semantic={"clip": H264_REF})
    return made


def test_the_table_tells_what_a_full_decode_finds_and_why_other_rows_cannot_be_used(
    catalog: sp.Catalog, files: Path
) -> None:
    told: list[Progress] = []
    found = index_videos(catalog, "v", "clip", report=told.append).to_pydict()
    sound = {0: 0, 2: 1, 4: 1}

    assert (found["row"], found["uri"]) == (list(range(5)), ["0.mp4", "bad.mp4", "1.mp4", "gone.mp4", "1.mp4"])
    assert [i for i, error in enumerate(found["error"]) if error is None] == sorted(sound)
    assert "Put it into an MP4" in found["error"][1]
    assert "gone.mp4: No such file" in found["error"][3]
    assert told
    for row, at in sound.items():
        times, _ = reference_frames(files / f"{at}.mp4", "luma")
        made, upright = MADE[at], (64, 96)
        assert (found["frames"][row], found["segment_frames"][row]) == (len(times), len(times))
        assert (found["height"][row], found["width"][row]) == upright
        assert (found["rotation"][row], found["key_distance"][row]) == (made.rotation, made.gop)
        assert found["milli_fps"][row] == made.fps * 1_000
        assert found["duration_ms"][row] == pytest.approx(1_000 * made.frames / made.fps, abs=1)
    assert [found["frames"][row] for row in (1, 3)] == [None, None]


def test_some_shards_are_indexed_alone_and_a_file_that_came_when_the_index_is_made_afresh(
    catalog: sp.Catalog, tmp_path: Path
) -> None:
    assert index_videos(catalog, "v", "clip", ["a"])["row"].to_pylist() == [0, 1]
    shutil.copy(tmp_path / "files" / "0.mp4", tmp_path / "files" / "gone.mp4")
    after = index_videos(catalog, "v", "clip", ["b"])
    (tmp_path / "files" / "bad.mp4").unlink()
    kept = index_videos(catalog, "v", "clip", ["a"])
    afresh = index_videos(catalog, "v", "clip", ["a"], afresh=True)

    assert after["frames"].to_pylist() == [9, 12, 9]
    assert "Put it into an MP4" in kept["error"][1].as_py()
    assert "No such file" in afresh["error"][1].as_py()


def test_ranges_are_told_with_their_place(files: Path, tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    places = write_tar(tmp_path / "files" / "a.tar", [files / "0.mp4", files / "1.mp4"])
    values = [{"uri": "a.tar", "offset": offset, "length": length} for offset, length in places]
    table = pa.table({"id": [0, 1], "clip": pa.array(values, RANGE), "part": ["a", "a"]})
    found = index_videos(registered(tmp_path, table), "v", "clip").select(["uri", "offset", "length", "frames"])

    assert found.to_pylist() == [{**value, "frames": made.frames} for value, made in zip(values, MADE, strict=True)]


@pytest.mark.parametrize(
    ("arguments", "way_out"),
    [
        (("part",), r"v\.part is no column of type video/h264-ref. Register the relation with semantic=\{'part':"),
        (("none",), r"v\.none is no column of type"),
        (("clip", "ab"), r"shards='ab'. Give a list of names: \['ab'\]"),
        (("clip", ["a", "c"]), "v has no storage shard 'c'; it has 'a', 'b'"),
    ],
)
def test_what_cannot_be_indexed_is_refused(arguments: tuple[Any, ...], way_out: str, catalog: sp.Catalog) -> None:
    with pytest.raises(PlanError, match=way_out):
        index_videos(catalog, "v", *arguments)
