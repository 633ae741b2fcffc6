"""Rows as texts, and tiles of images: one that cannot be decoded is named, and stops nothing."""

from io import BytesIO
from pathlib import Path

import pyarrow as pa
import pytest
from PIL import Image

import spiral_stream as sp
from spiral_stream.catalog.opened import OpenRelation
from spiral_stream.report.samples import SIDE, contact_sheet, sample_rows
from spiral_stream.sources.lance import LanceReader

JPEG = {"image_ref": "image/jpeg-ref"}


def picture(color: str) -> bytes:
    file = BytesIO()
    Image.new("RGB", (40, 20), color).save(file, "JPEG")
    return file.getvalue()


def opened(folder: Path, images: list[bytes]) -> OpenRelation:
    catalog = sp.connect(str(folder / "catalog"))
    names = [f"n{k}" for k in range(len(images))]
    table = pa.table({"sample_id": names, "text": ["two\nlines"] * len(images), "image_ref": images})
    return OpenRelation(catalog.register("t", sp.Arrow(table), semantic=JPEG))


def test_a_sheet_shows_evenly_spaced_images_and_names_what_is_broken(tmp_path: Path) -> None:
    with opened(tmp_path, [picture("red"), b"no image", picture("blue")]) as relation:
        sheet = contact_sheet(relation, 12)

    assert sheet is not None
    assert sheet.samples == ("n0", "n1", "n2")
    assert [fault.split(":")[0] for fault in sheet.faults] == ["n1"]
    tiles = Image.open(BytesIO(sheet.jpeg))
    assert tiles.size == (sheet.width, sheet.height)
    middle = [tiles.getpixel((4 + (SIDE + 4) * k + SIDE // 2, 4 + SIDE // 2)) for k in range(3)]
    reds = [pixel[0] - pixel[2] for pixel in middle]  # type: ignore[index]
    assert reds[0] > 200
    assert abs(reds[1]) < 10
    assert reds[2] < -200


def test_rows_are_texts_and_inline_payload_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    fetch = LanceReader.fetch
    monkeypatch.setattr(LanceReader, "fetch", lambda self, rows, names: asked.extend(names) or fetch(self, rows, names))
    with opened(tmp_path, [picture("red")] * 7) as relation:
        rows = sample_rows(relation, 3)

    assert [row["sample_id"] for row in rows] == ["n1", "n3", "n5"]
    assert {row["text"] for row in rows} == {"two lines"}
    assert {row["image_ref"] for row in rows} == {"(inline bytes)"}
    assert "image_ref" not in asked


def test_the_first_image_of_each_list_is_shown(tmp_path: Path) -> None:
    catalog = sp.connect(str(tmp_path))
    lists = [[picture("red"), picture("blue")], [], [picture("blue")]]
    table = pa.table({"sample_id": ["a", "b", "c"], "image_ref": lists})
    with OpenRelation(catalog.register("t", sp.Arrow(table), semantic=JPEG)) as relation:
        sheet, rows = contact_sheet(relation, 3), sample_rows(relation, 3)
    assert sheet is not None
    assert sheet.faults == ("b: the list has no image",)
    assert {row["image_ref"] for row in rows} == {"(inline bytes)"}


def test_a_relation_without_references_has_no_sheet(tmp_path: Path) -> None:
    catalog = sp.connect(str(tmp_path / "catalog"))
    with OpenRelation(catalog.register("t", sp.Arrow(pa.table({"sample_id": [1]})))) as relation:
        assert contact_sheet(relation, 3) is None
        assert sample_rows(relation, 0) == []


def test_the_first_frame_of_each_segment_is_shown(tmp_path: Path) -> None:
    pytest.importorskip("av")
    from tests.fixtures.videos import write_video

    write_video(tmp_path / "a.mp4")
    catalog = sp.connect(str(tmp_path / "catalog"))
    table = pa.table({"sample_id": ["a", "gone"], "clip_ref": [str(tmp_path / "a.mp4"), str(tmp_path / "gone.mp4")]})
    (tmp_path / "gone.mp4").write_bytes(b"no video")
    with OpenRelation(catalog.register("t", sp.Arrow(table), semantic={"clip_ref": "video/h264-ref"})) as relation:
        sheet = contact_sheet(relation, 4)

    assert sheet is not None
    assert len(sheet.samples) == 2
    assert [fault.split(":")[0] for fault in sheet.faults] == ["gone"]
