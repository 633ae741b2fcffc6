"""Folders of files on an object store give what the same folders on disk give; one list says what lies there."""

import io
import urllib.request
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import spiral_stream as sp
from spiral_stream.errors import SpiralWarning
from spiral_stream.storage.objects import Objects
from spiral_stream.storage.open import store_of
from spiral_stream.storage.profiles import options_of
from tests.fixtures.videos import Made, write_video
from tests.stream.sources.test_remote import need_same, put_all, rows_of


def counted(name: str, inner: Any, counts: Counter[str]) -> Any:
    def call(self: Objects, *args: Any) -> Any:
        counts[name] += 1
        return inner(self, *args)

    return call


@contextmanager
def counting() -> Iterator[Counter[str]]:
    counts: Counter[str] = Counter()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("stat", "list", "get_range"):
            patch.setattr(Objects, name, counted(name, getattr(Objects, name), counts))
        yield counts


def put_markers(uri: str, *folders: str) -> None:
    """Put the empty objects that some tools put for folders; obstore takes the slash from a key."""
    place = f"{options_of(uri)['endpoint']}/{uri.removeprefix('s3://')}"
    for folder in folders:
        with urllib.request.urlopen(urllib.request.Request(f"{place}/{folder}", data=b"", method="PUT")):
            pass


def jpeg(number: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(number).integers(0, 255, (24, 32, 3), np.uint8)).save(file, "JPEG")
    return file.getvalue()


def streamed(catalog: sp.Catalog, name: str, **field: Any) -> list[Any]:
    sampled = catalog.table(name).sample(identity="sample_id", order=sp.GlobalShuffle(seed=3), epoch=0)
    fields = {"x": sp.Stack(**field), "label": sp.Stack("label_id"), "id": sp.List("sample_id")}
    with sampled.collate(batch_size=4, fields=fields, last=sp.KeepPartial).to_numpy(prefetch=2) as stream:
        return list(stream)


def test_an_image_folder_on_s3_is_listed_once_and_streams_like_a_local_one(tmp_path: Path, bucket: str) -> None:
    names = [
        "dog/2.jpg",
        "cat/b/1.JPEG",
        "cat/a.jpg",
        "dog/1.jpg",
        "dog-b/x.jpg",
        "cat/.hidden.jpg",
        "top.jpg",
        ".h/a.jpg",
    ]
    for at, name in enumerate([*names, "cat/notes.txt"]):
        (tmp_path / "images" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "images" / name).write_bytes(jpeg(at))
    put_all(tmp_path / "images", f"{bucket}/images")
    put_markers(f"{bucket}/images", "", "cat/", "cat/b/")  # they are no files, and nobody is told of them
    catalog = sp.connect(str(tmp_path / "catalog"))
    said, found = {}, {}
    for name, path in (("local", str(tmp_path / "images")), ("remote", f"{bucket}/images/")):
        with warnings.catch_warnings(record=True) as told, counting() as counts:
            warnings.simplefilter("always", SpiralWarning)
            catalog.register(name, sp.ImageFolder(path, origin=True), identity="sample_id")
        said[name] = [str(each.message).replace(path.rstrip("/"), "").replace(name, "") for each in told]
        assert not counts["stat"] + counts["get_range"]
        assert counts["list"] == (name == "remote")
        field = {"decode": "jpeg", "transforms": [sp.transforms.Resize(16), sp.transforms.CenterCrop(16)]}
        found[name] = rows_of(catalog, name), streamed(catalog, name, column="image_ref", **field)
    assert said["remote"] == said["local"] != []
    assert found["remote"][0] == found["local"][0]
    assert [row["sample_id"] for row in found["local"][0]][:2] == ["cat/a.jpg", "cat/b/1.JPEG"]
    need_same(found["remote"][1], found["local"][1])

    first, again = catalog.verify("remote"), catalog.verify("remote")
    assert first.sound
    assert (again.sound, again.compared, again.bytes) == (True, 5, catalog.verify("local").bytes)
    store, key = store_of(f"{bucket}/images/dog/1.jpg")
    store.put(key, jpeg(99))
    with pytest.raises(sp.errors.SourceError, match=r"dog.* changed|changed since registration"):
        streamed(catalog, "remote", column="image_ref", **field)
    catalog.refresh("remote")
    assert len(streamed(catalog, "remote", column="image_ref", **field)) == 2
    with pytest.raises(sp.errors.SourceError, match="nothing lies below"):
        catalog.register("none", sp.ImageFolder(f"{bucket}/image"))


def test_a_video_folder_on_s3_streams_like_a_local_one(tmp_path: Path, bucket: str, caches: Path) -> None:
    for name in ("jump", "run"):
        (tmp_path / "videos" / name).mkdir(parents=True)
        write_video(tmp_path / "videos" / name / "a.mp4", Made(frames=12, first=len(name), faststart=name == "run"))
    put_all(tmp_path / "videos", f"{bucket}/videos")
    catalog = sp.connect(str(tmp_path / "catalog"))
    found = {}
    for name, path in (("local", str(tmp_path / "videos")), ("remote", f"{bucket}/videos")):
        catalog.register(name, sp.sources.VideoFolder(path), identity="sample_id")
        found[name] = streamed(catalog, name, column="clip_ref", decode="h264", sequence_length=4, crop=48)
    need_same(found["remote"], found["local"])


@pytest.mark.parametrize("pattern", ["**/*.txt", "*/[ab]*.txt", "**"])
def test_text_files_on_s3_import_like_local_ones(pattern: str, tmp_path: Path, bucket: str) -> None:
    for name in ("a/a.txt", "b.txt", "a/deep/b.txt", "a/.h.txt", ".h/c.txt", "c/c.other"):
        (tmp_path / "texts" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "texts" / name).write_text(f"\ufefftext of {name} \u00e4")
    put_all(tmp_path / "texts", f"{bucket}/texts")
    put_markers(f"{bucket}/texts", "", "a/", "a/deep/")
    catalog = sp.connect(str(tmp_path / "catalog"))
    for name, path in (("local", str(tmp_path / "texts")), ("remote", f"{bucket}/texts")):
        with counting() as counts:
            catalog.register(name, sp.sources.TextFiles(path, pattern=pattern), identity=sp.RowIdentity())
    assert counts["list"] == 1
    assert not counts["stat"]
    assert rows_of(catalog, "remote") == rows_of(catalog, "local") != []
    with pytest.raises(sp.errors.SourceError, match=r"matches 'z\*'; there is"):
        catalog.register("none", sp.sources.TextFiles(f"{bucket}/texts", pattern="z*"))
