import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

import spiral_stream as sp
from spiral_stream.errors import SourceError
from spiral_stream.semantic import semantic_of
from spiral_stream.sources import Jsonl
from spiral_stream.sources.references.resolve import payload
from spiral_stream.sources.serialize import source_to_json
from spiral_stream.storage.open import store_of
from tests.fixtures.imported_rows import rows_of as read


def tar(path: Path, files: dict[str, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as writer:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            writer.addfile(info, io.BytesIO(data))
    return path


def lines(path: Path, *rows: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("scheme", ["tar://", ""])
def test_one_reference_per_row_names_the_members_bytes(tmp_path: Path, scheme: str) -> None:
    for k in range(2):
        tar(tmp_path / "shards" / f"{k}.tar", {f"{k}-{n}.jpg": bytes([k, n]) for n in range(5)})
    rows = [{"image": f"{scheme}{k}.tar#{k}-{n}.jpg", "n": n} for n in range(5) for k in (1, 0)]
    lines(tmp_path / "meta" / "a.jsonl", *rows, {"n": 9})
    source = Jsonl(tmp_path / "meta", references={"image": str(tmp_path / "shards")})
    found = read(source)
    assert payload(found["image"].combine_chunks(), source.base) == [
        bytes([k, n]) for n in range(5) for k in (1, 0)
    ] + [None]
    assert found["n"].to_pylist()[-1] == 9
    assert semantic_of(found.schema.field("image")) == "image/jpeg-ref"


def test_a_list_of_references_per_row(tmp_path: Path) -> None:
    tar(tmp_path / "x" / "a.tar", {"./d/1.png": b"one", "./d/2.png": b"two"})
    lines(
        tmp_path / "a.jsonl",
        {"pages": ["tar://x/a.tar#d/2.png", "tar://x/a.tar#./d/1.png"]},
        {"pages": []},
        {"pages": None},
    )
    source = Jsonl(tmp_path / "a.jsonl", references=["pages"])
    found = read(source)["pages"].combine_chunks()
    assert payload(found, source.base) == [[b"two", b"one"], [], None]
    assert found.to_pylist()[0][0]["uri"] == "x/a.tar"  # relative, so that the folder can be moved


BAD = {
    "no member": ("tar://a.tar", "names no member of a tar"),
    "no such member": ("tar://a.tar#2.jpg", r"is not in .*a\.tar"),
    "no such tar": ("tar://b.tar#1.jpg", r"lies in .*b\.tar: No such file"),
    "compressed": ("tar://c.tar.gz#1.jpg", r"c\.tar\.gz, which is compressed"),
    "twice": ("tar://a.tar#t.jpg", "there twice"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_reference_that_leads_nowhere_is_named_or_left_out(tmp_path: Path, case: str) -> None:
    text, message = BAD[case]
    with tarfile.open(tmp_path / "a.tar", "w") as writer:
        for name in ("1.jpg", "t.jpg", "t.jpg"):
            writer.addfile(tarfile.TarInfo(name), io.BytesIO())
    lines(tmp_path / "a.jsonl", {"image": "tar://a.tar#1.jpg"}, {"image": text})
    with pytest.raises(SourceError, match=message):
        read(Jsonl(tmp_path / "a.jsonl", references=["image"]))
    left: list[str] = []
    assert len(read(Jsonl(tmp_path / "a.jsonl", references=["image"], on_error="skip"), left)) == 1
    assert len(left) == 1


def test_a_tar_that_is_written_again_is_noticed_and_its_rows_are_read_anew(tmp_path: Path) -> None:
    path = tar(tmp_path / "a.tar", {"1.jpg": b"one"})
    lines(tmp_path / "a.jsonl", {"image": "tar://a.tar#1.jpg"})
    source = Jsonl(tmp_path / "a.jsonl", references=["image"])
    before, [unit] = read(source), source.import_units()
    tar(path, {"0.jpg": b"zero", "1.jpg": b"ONE"})
    os.utime(path, ns=(1, 1))
    with pytest.raises(SourceError, match="its reference says"):
        payload(before["image"].combine_chunks(), source.base)
    assert source.import_units()[0].content_key != unit.content_key
    assert payload(read(source)["image"].combine_chunks(), source.base) == [b"ONE"]


def test_columns_that_hold_no_references_are_refused(tmp_path: Path) -> None:
    lines(tmp_path / "a.jsonl", {"n": 1})
    for name, message in (("n", "column 'n' is int64"), ("image", "column 'image' is missing")):
        with pytest.raises(SourceError, match=message):
            read(Jsonl(tmp_path / "a.jsonl", references=[name]))
    with pytest.raises(SourceError, match="Give the folder that the tars of each column are named from"):
        Jsonl(tmp_path / "a.jsonl", references="image")


def test_references_are_written_down(tmp_path: Path) -> None:
    source = Jsonl(tmp_path / "a.jsonl", references={"kind": "data"})
    saved = json.loads(json.dumps(source_to_json(source)))
    assert (
        Jsonl(**{"allow_outside": True, **{name: value for name, value in saved.items() if name != "kind"}}) == source
    )


def put(uri: str, data: bytes) -> None:
    store, key = store_of(uri)
    store.put(key, data)


def images(catalog: sp.Catalog, name: str) -> list[bytes]:
    fields = {"image": sp.List("image")}
    sampled = catalog.table(name).sample(identity="id", order=sp.Sequential(), epoch=0)
    with sampled.collate(batch_size=4, fields=fields).to_numpy() as stream:
        return [bytes(each) for batch in stream for each in batch["image"]]


def test_tars_on_a_store_are_named_by_lines_there_and_here(
    tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPIRAL_NODE_CACHE", "off")  # a node would have what was registered
    put(f"{bucket}/tars/a.tar", tar(tmp_path / "a.tar", {f"{n}.jpg": bytes([n]) * 9 for n in range(4)}).read_bytes())
    there = [f"tar://tars/a.tar#{n}.jpg" for n in range(3)] + [f"tar://{bucket}/tars/a.tar#3.jpg"]
    rows = {name: [{"id": n, "image": text} for n, text in enumerate(there)] for name in ("here", "there", "near")}
    rows["near"] = [{"id": n, "image": f"tar://a.tar#{n}.jpg"} for n in range(4)]
    for name, folder in (("here", "x"), ("there", "lines"), ("near", "tars")):
        put(f"{bucket}/{folder}/{name}.jsonl", lines(tmp_path / f"{name}.jsonl", *rows[name]).read_bytes())
    catalog = sp.connect(tmp_path / "catalog")
    catalog.register("here", Jsonl(tmp_path / "here.jsonl", references={"image": bucket}), identity="id")
    catalog.register("there", Jsonl(f"{bucket}/lines", references={"image": bucket}), identity="id")
    near = Jsonl(f"{bucket}/tars/near.jsonl", references=["image"])
    catalog.register("near", near, identity="id")
    for name in rows:
        assert images(catalog, name) == [bytes([n]) * 9 for n in range(4)]
    assert read(near)["image"].to_pylist()[0]["uri"] == "a.tar"  # relative, so that the prefix can be copied
    again = {f"{n}.jpg": bytes([n + 1]) * 9 for n in range(4)}
    put(f"{bucket}/tars/a.tar", tar(tmp_path / "a.tar", again).read_bytes())
    with pytest.raises(SourceError, match=r"tars/a\.tar .*changed since registration"):
        images(catalog, "there")
    catalog.refresh("there")
    assert images(catalog, "there") == list(again.values())


FAR = {
    "no such tar": ("tar://b.tar#1.jpg", r"lies in s3://.*/b\.tar: there is no such object"),
    "compressed": ("tar://c.tgz#1.jpg", r"lies in s3://.*/c\.tgz, which is compressed"),
    "a local path": ("tar:///data/a.tar#1.jpg", "names a file of this machine, and references= gives s3://"),
    "out of the bucket": ("tar://../../a.tar#1.jpg", "leads out of s3://"),
}


@pytest.mark.parametrize("case", FAR)
def test_a_reference_to_no_tar_of_a_store_is_named(tmp_path: Path, bucket: str, case: str) -> None:
    text, message = FAR[case]
    with pytest.raises(SourceError, match=message):
        read(Jsonl(lines(tmp_path / "a.jsonl", {"image": text}), references={"image": f"{bucket}/tars"}))


def test_tars_on_a_web_server_and_a_store_that_references_do_not_give_are_refused(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", {"image": "tar://s3://b/a.tar#1.jpg"})
    with pytest.raises(SourceError, match=r"a web server does not say which there are\. Put them on an object store"):
        read(Jsonl(path, references={"image": "https://example.org/tars"}))
    with pytest.raises(SourceError, match=r"names a tar on a store, and references= gives .*Correct one"):
        read(Jsonl(path, references=["image"]))
