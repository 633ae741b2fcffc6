"""A report of a relation shows rows as texts, and what they refer to; what is broken is named, and stops nothing."""

from io import BytesIO
from pathlib import Path

import pyarrow as pa
import pytest
from PIL import Image

import spiral_stream as sp
from spiral_stream.sources.lance.source import LanceReader

JPEG = {"image_ref": "image/jpeg-ref"}


def picture(color: str) -> bytes:
    file = BytesIO()
    Image.new("RGB", (40, 20), color).save(file, "JPEG")
    return file.getvalue()


def report(folder: Path, table: pa.Table, semantic: dict[str, str], **options: int) -> sp.report.Report:
    catalog = sp.connect(str(folder / "catalog"))
    catalog.register("t", sp.Arrow(table, base=folder), semantic=semantic)
    return sp.report.report_relation(catalog, "t", **options)  # type: ignore[arg-type]  # two numbers


def of_images(images: list[bytes]) -> pa.Table:
    names = [f"n{k}" for k in range(len(images))]
    return pa.table({"sample_id": names, "text": ["two\nlines"] * len(images), "image_ref": images})


def test_a_sheet_shows_evenly_spaced_images_and_names_what_is_broken(tmp_path: Path) -> None:
    sheet = report(tmp_path, of_images([picture("red"), b"no image", picture("blue")]), JPEG).sheet

    assert sheet is not None
    assert [tile.title for tile in sheet.tiles] == ["n0", "n1", "n2"]
    assert [fault.split(":")[0] for fault in sheet.faults] == ["n1"]
    red, broken, blue = sheet.tiles
    assert red.strips[0].frames[0][10, 10, 0] > 200
    assert blue.strips[0].frames[0][10, 10, 2] > 200
    assert broken.labels == [("image_ref", "cannot be decoded")]
    assert Image.open(BytesIO(sheet.encoded(".jpg"))).width > 3 * 100


def test_rows_are_texts_and_inline_payload_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    fetch = LanceReader.fetch
    monkeypatch.setattr(LanceReader, "fetch", lambda self, rows, names: asked.extend(names) or fetch(self, rows, names))
    rows = report(tmp_path, of_images([picture("red")] * 7), JPEG, samples=3, pictures=0).samples

    assert [row["sample_id"] for row in rows] == ["n1", "n3", "n5"]
    assert {row["text"] for row in rows} == {"two lines"}
    assert {row["image_ref"] for row in rows} == {"(inline bytes)"}
    assert "image_ref" not in asked


def test_the_images_of_each_list_are_shown(tmp_path: Path) -> None:
    lists = [[picture("red"), picture("blue")], [], [picture("blue")]]
    found = report(tmp_path, pa.table({"sample_id": ["a", "b", "c"], "image_ref": lists}), JPEG)

    assert found.sheet is not None
    assert found.sheet.faults == ("b: the list has no image",)
    assert [len(strip.frames) for tile in found.sheet.tiles for strip in tile.strips] == [2, 1]
    assert {row["image_ref"] for row in found.samples} == {"(inline bytes)"}


def test_a_relation_without_references_has_no_sheet(tmp_path: Path) -> None:
    found = report(tmp_path, pa.table({"sample_id": [1]}), {}, samples=0)

    assert found.sheet is None
    assert found.samples == ()


def test_the_first_frames_of_each_segment_are_a_clip(tmp_path: Path) -> None:
    pytest.importorskip("av")
    from tests.fixtures.videos import write_video

    write_video(tmp_path / "a.mp4")
    (tmp_path / "gone.mp4").write_bytes(b"no video")
    table = pa.table({"sample_id": ["a", "gone"], "clip_ref": ["a.mp4", "gone.mp4"]})
    sheet = report(tmp_path, table, {"clip_ref": "video/h264-ref"}).sheet

    assert sheet is not None
    assert [fault.split(":")[0] for fault in sheet.faults] == ["gone"]
    (clip,) = sheet.tiles[0].strips
    assert clip.moves
    assert len(clip.frames) > 1


def test_the_first_seconds_of_a_recording_are_heard(tmp_path: Path) -> None:
    pytest.importorskip("av")
    from tests.fixtures.sounds import recording

    (tmp_path / "a.flac").write_bytes(recording("flac", 1.5)[0])
    table = pa.table({"sample_id": ["a"], "sound": ["a.flac"]})
    sheet = report(tmp_path, table, {"sound": "audio/ref"}).sheet

    assert sheet is not None
    (heard,) = sheet.tiles[0].sounds
    assert heard.values.shape[1] / heard.rate == pytest.approx(1.5, abs=0.01)
