import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import spiral_stream as spiral
from spiral_stream import ImageFolder
from spiral_stream.errors import SourceError, SpiralWarning
from spiral_stream.semantic import H264_REF, JPEG_REF, semantic_of
from spiral_stream.sources import VideoFolder
from spiral_stream.sources.references.resolve import resolve
from tests.fixtures.videos import Made, write_video

FILES = {"dog/2.jpg": b"d2", "cat/b/1.JPEG": b"c1!", "cat/a.png": b"c0", "dog/1.jpg": b"d", "cat/notes.txt": b"-"}


def write(root: Path, files: dict[str, bytes] = FILES) -> None:
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)


def test_rows_are_sorted_paths_labels_are_sorted_classes(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "cat" / ".hidden.jpg").write_bytes(b"no")
    with ImageFolder(str(tmp_path)).open() as reader:
        table = reader.fetch(np.arange(4, dtype=np.uint64), reader.schema.names)

        assert table["sample_id"].to_pylist() == ["cat/a.png", "cat/b/1.JPEG", "dog/1.jpg", "dog/2.jpg"]
        assert table["label_id"].to_pylist() == [0, 0, 1, 1]
        assert table["class_name"].to_pylist() == table["storage_shard"].to_pylist() == ["cat", "cat", "dog", "dog"]
        assert table["size_bytes"].to_pylist() == [2, 3, 1, 2]
        assert semantic_of(reader.schema.field("image_ref")) == JPEG_REF
        assert [bytes(v) for v in resolve(table["image_ref"], reader.base)] == [b"c0", b"c1!", b"d", b"d2"]
        assert [(unit.name, unit.rows, unit.size_bytes) for unit in reader.units()] == [("cat", 2, 5), ("dog", 2, 3)]


def test_the_listing_order_of_the_file_system_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path)
    source = ImageFolder(str(tmp_path))
    with source.open() as reader:
        before = list(reader.units()), reader.fetch(np.arange(4, dtype=np.uint64), ["sample_id"])
    original = os.scandir

    class Reversed:
        def __init__(self, path: str) -> None:
            with original(path) as entries:
                self.entries = list(entries)[::-1]

        def __enter__(self) -> list[os.DirEntry[str]]:
            return self.entries

        def __exit__(self, *_: object) -> None:
            pass

        def __iter__(self) -> object:
            return iter(self.entries)

    monkeypatch.setattr(os, "scandir", Reversed)
    with source.open() as reader:
        assert (list(reader.units()), reader.fetch(np.arange(4, dtype=np.uint64), ["sample_id"])) == before


def test_a_file_that_changes_changes_its_class_alone(tmp_path: Path) -> None:
    write(tmp_path)
    source = ImageFolder(str(tmp_path))
    with source.open() as reader:
        before = [unit.content_key for unit in reader.units()]
    (tmp_path / "dog/1.jpg").write_bytes(b"other")
    with source.open() as reader:
        after = [unit.content_key for unit in reader.units()]

    assert [a == b for a, b in zip(before, after, strict=True)] == [True, False]


def test_a_new_class_moves_the_labels_and_so_the_keys_of_those_after_it(tmp_path: Path) -> None:
    write(tmp_path)
    source = ImageFolder(str(tmp_path))
    with source.open() as reader:
        before = {unit.name: unit.content_key for unit in reader.units()}
    write(tmp_path, {"cow/1.jpg": b"m"})
    with source.open() as reader:
        after = {unit.name: unit.content_key for unit in reader.units()}

    assert after["cat"] == before["cat"]
    assert after["dog"] != before["dog"]


def test_an_empty_class_folder_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "owl").mkdir()
    with pytest.raises(SourceError, match=r"class folder 'owl' .* has no image .*Remove the folder"):
        ImageFolder(str(tmp_path)).open()


def test_a_folder_without_class_folders_is_refused(tmp_path: Path) -> None:
    (tmp_path / "1.jpg").write_bytes(b"x")
    with pytest.raises(
        SourceError, match=r"no class folders; images lie in .* register a table that names them, with base="
    ):
        ImageFolder(str(tmp_path)).open()


def test_a_name_that_is_no_text_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "dog/1.jpg").rename(os.fsdecode(os.fsencode(tmp_path) + b"/dog/\xff.jpg"))
    with pytest.raises(SourceError, match=r"is not UTF-8\. Rename or remove it"):
        ImageFolder(str(tmp_path)).open()


def test_a_missing_folder_is_refused_with_what_lies_near(tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    with pytest.raises(SourceError, match="near it: pictures"):
        ImageFolder(str(tmp_path / "picture")).open()


def test_a_folder_of_class_folders_of_videos_is_a_relation_of_clips(tmp_path: Path) -> None:
    for name in ("run/b.mp4", "run/a.MOV", "jump/c.mkv", "jump/.hidden.mp4", "jump/notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"video")
    with VideoFolder(str(tmp_path)).open() as reader:
        table = pa.Table.from_batches(list(reader.scan(reader.schema.names)))
    assert table["clip_ref"].to_pylist() == ["jump/c.mkv", "run/a.MOV", "run/b.mp4"]
    assert table["label_id"].to_pylist() == [0, 1, 1]
    assert semantic_of(table.schema.field("clip_ref")) == H264_REF

    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match=r"class folder 'empty' of .* has no video .*put videos into it"):
        VideoFolder(str(tmp_path)).open()


def test_files_that_are_left_out_are_counted_once_at_registration(tmp_path: Path) -> None:
    for name in (
        "cat/1.jpg",
        "cat/2.GIF",
        "cat/x/3.gif",
        "cat/notes.txt",
        "dog/1.png",
        "dog/2.avif",
        "README",
        "4.jpg",
    ):
        path = tmp_path / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    (tmp_path / "images" / "cat" / ".hidden.gif").write_bytes(b"x")
    catalog = spiral.connect(tmp_path / "catalog")
    with pytest.warns(SpiralWarning) as caught:
        catalog.register("images", ImageFolder(str(tmp_path / "images")))
    catalog.register("images", ImageFolder(str(tmp_path / "images")))
    catalog.refresh("images")

    left = f"register 'images': ImageFolder {tmp_path / 'images'} leaves 6 files out: 2 .gif, 1 without an extension, 1 .avif, "
    left += "1 .jpg, 1 .txt; it reads .jpg .jpeg .png .ppm .bmp .pgm .tif .tiff .webp in class folders. Convert .gif .avif to "
    left += "PNG or WebP to read them."
    assert [str(each.message) for each in caught] == [left]
    assert caught[0].filename == __file__
    assert len(catalog.table("images").to_arrow()) == 2


def test_videos_say_what_they_leave_out_too(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    for name in ("1.mp4", "1.json", "2.json"):
        (tmp_path / "run" / name).write_bytes(b"x")
    with VideoFolder(str(tmp_path)).open() as reader:
        assert "leaves 2 files out: 2 .json; it reads .mp4" in reader.left_out


@pytest.mark.parametrize("several", [False, True])
def test_films_of_a_codec_that_is_refused_are_told_when_a_folder_is_registered(
    tmp_path: Path, *, several: bool
) -> None:
    (tmp_path / "films" / "a").mkdir(parents=True)
    for at, codec in enumerate(["libx264", "mpeg4", "mpeg4", "mjpeg"] if several else ["libx264"]):
        formed = {"pix_fmt": "yuvj420p"} if codec == "mjpeg" else {}
        write_video(tmp_path / "films" / "a" / f"{at}.mov", Made(frames=6, codec=codec, b_frames=0, **formed))
    catalog = spiral.connect(str(tmp_path / "catalog"))
    source = spiral.sources.VideoFolder(str(tmp_path / "films"))
    if not several:
        catalog.register("films", source, identity="sample_id")
        return
    with pytest.warns(
        spiral.SpiralWarning, match=r"of 4 videos 2 are mpeg4, 1 is mjpeg, which will be refused.* Re-encode them"
    ):
        catalog.register("films", source, identity="sample_id")


def test_a_class_folder_called_as_a_home_is_one(tmp_path: Path) -> None:
    write(tmp_path, {"~/a.jpg": b"here", "cat/b.jpg": b"cat"})
    with ImageFolder(str(tmp_path)).open() as reader:
        table = reader.fetch(np.arange(2, dtype=np.uint64), ["sample_id", "image_ref"])

        assert table["sample_id"].to_pylist() == ["cat/b.jpg", "~/a.jpg"]
        assert [bytes(v) for v in resolve(table["image_ref"], reader.base)] == [b"cat", b"here"]
