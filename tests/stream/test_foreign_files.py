"""What references may name, met as a user meets it: files outside, FIFOs and devices, changed bytes, bombs."""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import spiral_stream as sp
from spiral_stream.catalog.records import RELATIONS
from spiral_stream.catalog.relation.reader import OpenRelation
from spiral_stream.semantic import H264_REF, JPEG_REF
from spiral_stream.sources import content_key
from spiral_stream.testing import same
from tests.fixtures.bombs import jpeg_claiming, png_claiming, video_claiming
from tests.fixtures.mutations import deadline
from tests.fixtures.streams import FIXED, images, maker
from tests.fixtures.videos import Made, write_video

pytestmark = pytest.mark.usefixtures("no_threads_left")

RANGE = pa.struct([("uri", pa.utf8()), ("offset", pa.int64()), ("length", pa.int64())])
SECRET = b"hunter:$6$secret-of-another-file:19000:0:99999:7:::\n" * 3


@pytest.fixture
def jpegs() -> list[bytes]:
    return images(8)["image_ref"].to_pylist()


@pytest.fixture
def folder(tmp_path: Path, jpegs: list[bytes]) -> Path:
    """Eight JPEGs in the base, and one file outside it."""
    base = tmp_path / "base"
    (base / "inner").mkdir(parents=True)
    for at, data in enumerate(jpegs):
        (base / f"{at}.jpg").write_bytes(data)
    (tmp_path / "outside.jpg").write_bytes(jpegs[0])
    (tmp_path / "secret.txt").write_bytes(SECRET)
    return base


def table_of(uris: list[str], *, ranges: bool = False, length: int = 40) -> pa.Table:
    parts = [{"uri": uri, "offset": 0, "length": length} for uri in uris]
    column = pa.array(parts, RANGE) if ranges else pa.array(uris)
    names = [f"r{at}" for at in range(len(uris))]
    return pa.table({"sample_id": names, "image_ref": column, "label_id": [0] * len(uris)})


def batches(catalog: sp.Catalog, name: str, **options: Any) -> list[Any]:
    with maker(
        catalog, name, order=sp.Sequential(), transforms=FIXED, batch_size=4, last=sp.KeepPartial, **options
    )() as s:
        return [{key: np.array(value) for key, value in batch.items()} for batch in s]


def refused(catalog: sp.Catalog, table: pa.Table, base: Path, **source: Any) -> str:
    """Why the first batch cannot be read, without waiting for it."""
    catalog.register("r", sp.Arrow(table, base=str(base), **source), semantic={"image_ref": JPEG_REF}, replace=True)
    with deadline(), pytest.raises(sp.errors.SourceError) as caught:
        batches(catalog, "r")
    assert not isinstance(caught.value, sp.errors.DataError)
    return str(caught.value)


# ---- confined to the base


def way_around(kind: str, base: Path) -> str:
    outside = base.parent / "outside.jpg"
    if kind == "a path upwards":
        return "../outside.jpg"
    if kind == "a path up from a folder that a link names":
        (base / "away").symlink_to(base.parent, target_is_directory=True)
        return "away/outside.jpg"
    if kind == "a link":
        (base / "link.jpg").symlink_to(outside)
        return "link.jpg"
    return str(outside) if kind == "an absolute path" else f"file://{outside}"


@pytest.mark.crossed
@pytest.mark.parametrize("ranges", [False, True], ids=["files", "ranges"])
@pytest.mark.parametrize(
    "kind", ["a path upwards", "a path up from a folder that a link names", "a link", "an absolute path", "a URI"]
)
def test_references_are_confined_to_a_base_that_was_given(
    empty: sp.Catalog, folder: Path, kind: str, ranges: bool, jpegs: list[bytes]
) -> None:
    uri = way_around(kind, folder)
    table = table_of(["0.jpg", uri], ranges=ranges, length=len(jpegs[0]))
    said = refused(empty, table, folder)
    assert "lies outside" in said
    assert "allow_outside=True" in said
    assert "sample_id='r1'" in said
    empty.register(
        "r", sp.Arrow(table, base=str(folder), allow_outside=True), semantic={"image_ref": JPEG_REF}, replace=True
    )
    ((one, other),) = [batch["image"] for batch in batches(empty, "r")]
    assert np.array_equal(one, other)


def test_absolute_references_below_the_base_and_links_inside_it_are_read(empty: sp.Catalog, folder: Path) -> None:
    (folder / "inner" / "link.jpg").symlink_to(folder / "0.jpg")
    linked = folder.parent / "linked"
    linked.symlink_to(folder, target_is_directory=True)
    uris = [
        str(folder / "0.jpg"),
        "inner/../0.jpg",
        "inner/link.jpg",
        str(linked / "0.jpg"),
        f"file://localhost{folder}/0.jpg",
    ]
    empty.register("r", sp.Arrow(table_of(uris), base=str(linked)), semantic={"image_ref": JPEG_REF})
    found = np.concatenate([batch["image"] for batch in batches(empty, "r")])
    assert all(np.array_equal(each, found[0]) for each in found)


def test_a_source_without_a_base_reads_absolute_references_as_before(
    empty: sp.Catalog, folder: Path, tmp_path: Path
) -> None:
    uris = [str(folder / "0.jpg"), str(folder.parent / "outside.jpg")]
    lance.write_dataset(table_of(uris), str(tmp_path / "rows.lance"))
    pq.write_table(table_of(uris), tmp_path / "rows.parquet")
    sources = (
        sp.Arrow(table_of(uris)),
        sp.Lance(str(tmp_path / "rows.lance")),
        sp.Parquet(str(tmp_path / "rows.parquet")),
    )
    for source in sources:
        empty.register("r", source, semantic={"image_ref": JPEG_REF}, replace=True)
        ((one, other),) = [batch["image"] for batch in batches(empty, "r")]
        assert np.array_equal(one, other)
        confined = type(source)(
            source.table if isinstance(source, sp.Arrow) else next(iter(vars_of(source))), base=str(folder)
        )
        empty.register("c", confined, semantic={"image_ref": JPEG_REF}, replace=True)
        assert empty.entry("c").source.allow_outside is False  # also after it was saved
        with pytest.raises(sp.errors.SourceError, match="lies outside"):
            batches(empty, "c")


def vars_of(source: Any) -> Iterator[str]:
    yield source.uri if isinstance(source, sp.Lance) else source.path


def test_clips_are_confined_too(empty: sp.Catalog, folder: Path) -> None:
    write_video(folder.parent / "out.mp4", Made(frames=12))
    (folder / "in.mp4").symlink_to(folder.parent / "out.mp4")
    table = pa.table({"sample_id": ["a"], "clip_ref": ["in.mp4"]})
    empty.register("clips", sp.Arrow(table, base=str(folder)), semantic={"clip_ref": H264_REF})
    with pytest.raises(sp.errors.SourceError, match=r"in.mp4 \(which is .*/out.mp4\) lies outside"):
        clips(empty, "clips")


def clips(catalog: sp.Catalog, name: str, profile: Any = None, materialize: bool = False, **limits: Any) -> list[Any]:
    field = sp.Stack("clip_ref", decode="h264", sequence_length=4, crop=32, **limits)
    relation = catalog.table(name)
    if profile is not None:
        relation = relation.cache(clip_ref=profile)
    sampled = relation.sample(identity="sample_id", order=sp.Sequential())
    with sampled.collate(batch_size=1, fields={"x": field, "id": sp.List("sample_id")}).to_numpy() as made:
        if materialize:
            made.materialize(lambda _: None)
        return [batch["x"].copy() for batch in made]


def test_blobs_that_lance_itself_reads_from_other_files_are_refused_under_a_base(
    empty: sp.Catalog, tmp_path: Path, jpegs: list[bytes]
) -> None:
    (tmp_path / "other.jpg").write_bytes(jpegs[0])
    blobs = lance.blob_array([f"file://{tmp_path}/other.jpg", jpegs[0]])
    schema = pa.schema([pa.field("sample_id", pa.utf8()), lance.blob_field("image_ref")])
    table = pa.table({"sample_id": ["a", "b"], "image_ref": blobs}, schema=schema)
    uri = str(tmp_path / "blobs.lance")
    lance.write_dataset(table, uri, data_storage_version="2.2", allow_external_blob_outside_bases=True)
    with pytest.raises(
        sp.errors.SourceError, match=r"'image_ref' has blobs in files of their own, such as file.*allow_outside=True"
    ):
        empty.register("r", sp.Lance(uri, base=str(tmp_path)), semantic={"image_ref": JPEG_REF})
    empty.register("r", sp.Lance(uri, base=str(tmp_path), allow_outside=True), semantic={"image_ref": JPEG_REF})


# ---- what is no file, no path, or nowhere


@pytest.mark.crossed
@pytest.mark.parametrize("ranges", [False, True], ids=["files", "ranges"])
@pytest.mark.parametrize("kind", ["a FIFO", "a device", "a socket", "a folder"])
def test_what_is_no_file_is_named_and_never_waited_for(
    empty: sp.Catalog, tmp_path: Path, kind: str, ranges: bool
) -> None:
    path = tmp_path / "it"
    if kind == "a FIFO":
        os.mkfifo(path)
    elif kind == "a device":
        path = Path("/dev/zero")
    elif kind == "a socket":
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(path))
    else:
        path.mkdir()
    assert f"{path}: it is {kind}, not a file" in refused(
        empty, table_of([str(path)], ranges=ranges), tmp_path, allow_outside=True
    )


@pytest.mark.parametrize("kind", ["a FIFO", "a device"])
def test_a_clip_that_is_no_file_is_named(empty: sp.Catalog, tmp_path: Path, kind: str) -> None:
    os.mkfifo(tmp_path / "it.mp4")
    uri = str(tmp_path / "it.mp4") if kind == "a FIFO" else "/dev/zero"
    empty.register(
        "clips", sp.Arrow(pa.table({"sample_id": ["a"], "clip_ref": [uri]})), semantic={"clip_ref": H264_REF}
    )
    with deadline(), pytest.raises(sp.errors.SourceError, match=f"it is {kind}, not a file"):
        clips(empty, "clips")


def test_a_fifo_in_a_class_folder_or_among_parquet_files_is_named(
    empty: sp.Catalog, folder: Path, tmp_path: Path
) -> None:
    os.mkfifo(folder / "inner" / "x.jpg")
    with deadline(), pytest.raises(sp.errors.SourceError, match=r"it is a FIFO, not a file: .*inner/x.jpg"):
        empty.register("f", sp.ImageFolder(str(folder)), semantic={"image_ref": JPEG_REF})
    (tmp_path / "rows").mkdir()
    os.mkfifo(tmp_path / "rows" / "x.parquet")
    with deadline(), pytest.raises(sp.errors.SourceError, match=r"x.parquet: .*it is a FIFO, not a file"):
        empty.register("p", sp.Parquet(str(tmp_path / "rows")))


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        (
            "file://elsewhere/data/a.jpg",
            r"names a file of host elsewhere, and only files of this machine.*file:///path",
        ),
        ("s3://bucket/a.jpg", "s3://bucket/a.jpg lies outside .*allow_outside=True"),
        ("https://host/a.jpg", "https://host/a.jpg lies outside .*allow_outside=True"),
        ("hdfs://host/a.jpg", "lies in a store that is not read here.*Copy it"),
        ("tar://x.tar#k.jpg", r"names a member of a tar, which no URI does here. Give struct<uri, offset, length>"),
        ("weird://x", "begins with weird://, a scheme that is not known here. Give a local path"),
    ],
)
def test_a_reference_that_nothing_reads_says_what_it_is(empty: sp.Catalog, tmp_path: Path, uri: str, says: str) -> None:
    said = refused(empty, table_of([uri]), tmp_path)
    with pytest.raises(AssertionError, match=says):
        raise AssertionError(said)


@pytest.mark.parametrize("scheme", ["hdfs", "tar", "weird"])
def test_a_source_that_nothing_reads_says_so_and_lists_no_files(
    empty: sp.Catalog, tmp_path: Path, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.parquet").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    for make in (sp.Parquet, sp.ImageFolder, sp.sources.VideoFolder):
        with pytest.raises(
            sp.errors.SourceError, match=r"not read here|names a member of a tar|not known here"
        ) as caught:
            empty.register("r", make(f"{scheme}://bucket/mine.parquet"))
        assert "near it" not in str(caught.value)
    with pytest.raises(sp.errors.SourceError, match="host elsewhere"):
        sp.Parquet("file://elsewhere/mine.parquet")


def test_a_nul_in_a_reference_is_a_sample_that_cannot_be_read(empty: sp.Catalog, folder: Path) -> None:
    table = table_of(["0.jpg", "a\0b.jpg", "1.jpg"])
    empty.register("r", sp.Arrow(table, base=str(folder)), semantic={"image_ref": JPEG_REF})
    with pytest.raises(sp.errors.DataError, match=r"sample_id='r1'.*a\\x00b.jpg holds a NUL character"):
        batches(empty, "r")
    field = sp.Stack("image_ref", decode="jpeg", transforms=FIXED)
    sampled = empty.table("r").sample(identity="sample_id", order=sp.Sequential())
    fields = {"x": field, "id": sp.List("sample_id")}
    with sampled.collate(batch_size=3, fields=fields, on_error="skip", error_budget=1).to_numpy() as stream:
        assert [batch["id"] for batch in stream] == [["r0", "r2"]]


def test_values_in_messages_are_cut(empty: sp.Catalog, tmp_path: Path) -> None:
    for uri in ("x" * 5_000, "s3://" + "y" * 5_000, "file://" + "z" * 5_000 + "/a", "tar://" + "z" * 5_000):
        assert len(refused(empty, table_of([uri]), tmp_path)) < 900


# ---- no bytes of other files in messages


def test_messages_show_no_bytes_of_foreign_files(empty: sp.Catalog, folder: Path) -> None:
    texts = [
        SECRET,
        b"P3\n" + SECRET,
        b"\xff\xd8\xff" + SECRET,
        b"\x89PNG\r\n\x1a\n" + SECRET,
        b"GIF89a" + SECRET,
        b"BM" + SECRET,
    ]
    texts += [
        b"II*\0" + SECRET,
        b"\0\0\0\x18ftyp" + SECRET,
        b"G" + SECRET,
        b"\x1a\x45\xdf\xa3" + SECRET,
        b"FLV\x01" + SECRET,
    ]
    for at, text in enumerate(texts):
        (folder / f"s{at}").write_bytes(text)
    uris = [f"s{at}" for at in range(len(texts))]
    empty.register("r", sp.Arrow(table_of(uris), base=str(folder)), semantic={"image_ref": JPEG_REF})
    clip = pa.table({"sample_id": uris, "clip_ref": uris})
    empty.register("clips", sp.Arrow(clip, base=str(folder)), semantic={"clip_ref": H264_REF})
    said = []
    for decode in ("jpeg", "image", "h264"):
        frames = {"sequence_length": 2, "crop": 8} if decode == "h264" else {"transforms": FIXED}
        name, column = ("clips", "clip_ref") if decode == "h264" else ("r", "image_ref")
        field = sp.Stack(column, decode=decode, **frames)
        sampled = empty.table(name).sample(identity="sample_id", order=sp.Sequential())
        fields = {"x": field, "id": sp.List("sample_id")}
        with sampled.collate(
            batch_size=20, fields=fields, on_error="skip", error_budget=99, last=sp.KeepPartial
        ).to_numpy() as s:
            with pytest.raises(sp.errors.DataError) as caught:
                list(s)
            said += [str(caught.value), *s.quarantine()["reason"].to_pylist()]
    assert len(said) == 3 + 3 * len(texts)
    for message in said:
        for piece in ("hunter", "$6$", "secret", b"hunter".hex(), b"hunter".hex(" "), "0x68"):
            assert piece not in message, message


# ---- bytes that change


def changed(kind: str, path: Path, other: bytes) -> None:
    """Exchange what a file holds."""
    facts = path.stat()
    if kind == "written anew":
        path.write_bytes(other)
    elif kind == "edited in place":
        with path.open("r+b") as file:
            file.seek(facts.st_size // 2)
            file.write(bytes([path.read_bytes()[facts.st_size // 2] ^ 1]))
    else:  # another file of the same size and time, as `cp -p` and `mv` leave
        spare = path.with_name("spare")
        spare.write_bytes(other[: facts.st_size].ljust(facts.st_size, b"\0"))
        os.utime(spare, ns=(facts.st_atime_ns, facts.st_mtime_ns))
        spare.replace(path)


@pytest.mark.crossed
@pytest.mark.parametrize("how", ["written anew", "edited in place", "replaced by one of the same size and time"])
@pytest.mark.parametrize("form", ["files", "ranges", "folder"])
def test_a_file_that_changed_since_registration_is_named_and_refresh_is_the_way_out(
    empty: sp.Catalog, folder: Path, jpegs: list[bytes], form: str, how: str
) -> None:
    if form == "folder":
        (folder / "inner" / "0.jpg").write_bytes(jpegs[0])
        (folder / "inner" / "1.jpg").write_bytes(jpegs[1])
        for outside in folder.glob("*.jpg"):  # of a class folder: it would be left out, with a warning
            outside.unlink()
        source: Any = sp.ImageFolder(str(folder))
        path = folder / "inner" / "0.jpg"
    else:
        shortest = min(map(len, jpegs))
        source = sp.Arrow(table_of(["0.jpg", "1.jpg"], ranges=form == "ranges", length=shortest), base=str(folder))
        path = folder / "0.jpg"
    if form == "ranges":  # whole JPEGs, of one length
        for at in (0, 1):
            (folder / f"{at}.jpg").write_bytes(jpegs[2])
        source = sp.Arrow(table_of(["0.jpg", "1.jpg"], ranges=True, length=len(jpegs[2])), base=str(folder))
    empty.register("r", source, semantic={"image_ref": JPEG_REF})
    make = maker(empty, "r", order=sp.Sequential(), transforms=FIXED, batch_size=1)
    with make() as stream:
        next(iter(stream))
        state = stream.state_dict()
        changed(how, path, jpegs[5])
        stream.set_epoch(1)
        with pytest.raises(
            sp.errors.SourceError, match=r'0.jpg changed since registration: .*catalog.refresh\("r"\)'
        ) as caught:
            list(stream)
        assert not isinstance(caught.value, sp.errors.DataError)
    before = empty.entry("r").data_version
    empty.refresh("r")
    if how == "replaced by one of the same size and time":  # the content key is of size and time, as copies keep them
        assert empty.entry("r").data_version == before
        return
    assert empty.entry("r").data_version != before
    with make() as stream:
        with pytest.raises(sp.errors.ResumeError, match="r"):
            stream.load_state_dict(state)
        if how == "written anew" and form != "ranges":
            assert len(list(stream)) == 2


def test_what_is_not_changed_keeps_its_data_version_and_its_caches(empty: sp.Catalog, folder: Path) -> None:
    table = table_of([f"{at}.jpg" for at in range(8)]).append_column("part", pa.array([0] * 4 + [1] * 4))
    empty.register("r", sp.Arrow(table, base=str(folder)), semantic={"image_ref": JPEG_REF}, shard="part")
    first = empty.entry("r")
    assert empty.refresh("r").data_version == first.data_version
    with maker(empty, "r", profile=sp.Raw(20), order=sp.Sequential(), batch_size=4)() as stream:
        assert stream.materialize(lambda _: None).shards == 2
    shutil.copyfile(folder / "0.jpg", folder / "7.jpg")
    again = empty.refresh("r")
    assert [a == b for a, b in zip(first.manifest().content_keys, again.manifest().content_keys, strict=True)] == [
        True,
        False,
    ]
    with maker(empty, "r", profile=sp.Raw(20), order=sp.Sequential(), batch_size=4)() as stream:
        assert stream.materialize(lambda _: None).shards == 1


def test_a_clip_that_changed_is_named_also_while_its_cache_is_built(empty: sp.Catalog, folder: Path) -> None:
    path = write_video(folder / "a.mp4", Made(frames=12))
    table = pa.table({"sample_id": ["a"], "clip_ref": ["a.mp4"]})
    empty.register("clips", sp.Arrow(table, base=str(folder)), semantic={"clip_ref": H264_REF})
    write_video(path, Made(frames=12, first=300))
    for profile in (None, sp.Frames(shorter_side=32)):
        with pytest.raises(sp.errors.SourceError, match=r"a.mp4 changed since registration"):
            clips(empty, "clips", profile, materialize=True)


@pytest.mark.parametrize("kind", ["lance", "parquet", "arrow"])
def test_source_files_edited_in_place_are_named_when_opened_and_while_read(
    own: sp.Catalog, tmp_path: Path, kind: str
) -> None:
    if kind == "arrow":
        own.register("arrow", sp.Arrow(images(64)), semantic={"image_ref": JPEG_REF})
        (path,) = (own.root / Path(own.entry("arrow").source.uri).name / "data").glob("*.lance")
    else:
        source = own.entry(kind).source
        folder = Path(source.uri) / "data" if kind == "lance" else Path(source.path).parent
        path = min(folder.iterdir())
    make = maker(own, kind, batch_size=8, order=sp.Sequential())
    with OpenRelation(own.entry(kind)) as relation:
        changed("edited in place", path, b"")
        with pytest.raises(
            sp.errors.SourceError, match=rf"{path.name[-20:]} changed while it is being read.*catalog.refresh"
        ):
            relation.fetch(np.arange(200, dtype=np.uint64) % relation.manifest.total, ["sample_id", "image_ref"])
    with (
        pytest.raises(sp.errors.SourceError, match=r"changed since registration|is changed since registration"),
        make() as stream,
    ):
        list(stream)
    with pytest.raises(sp.errors.SourceError, match=r"changed since registration|is changed since registration"):
        OpenRelation(own.entry(kind))
    if kind == "arrow":  # the catalog alone writes these rows, so they are damaged
        with pytest.raises(sp.errors.CatalogError, match=r"register\(\"arrow\", ..., replace=True\)"):
            own.refresh(kind)
        own.register("arrow", sp.Arrow(images(64)), semantic={"image_ref": JPEG_REF}, replace=True)
    else:
        own.refresh(kind)
    OpenRelation(own.entry(kind)).close()


def test_a_relation_that_was_registered_before_there_were_pins_is_read_as_before(
    empty: sp.Catalog, folder: Path
) -> None:
    empty.register("r", sp.Arrow(table_of(["0.jpg"]), base=str(folder)), semantic={"image_ref": JPEG_REF})
    entry = empty.entry("r")
    path = empty.root / "manifests" / entry.manifest_name
    with pa.OSFile(str(path)) as file:
        table = pa.ipc.open_file(file).read_all()
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.drop(["pins"]).schema) as writer:
        writer.write_table(table.drop(["pins"]))
    older = path.rename(path.with_name(f"{content_key(path.read_bytes())}.arrow"))
    row = dict(empty.registry.database.rows(RELATIONS)["r"])
    empty.registry.database.put(RELATIONS, {**row, "manifest_name": older.name})
    (folder / "0.jpg").write_bytes((folder / "1.jpg").read_bytes())
    assert len(batches(empty, "r")) == 1
    empty.refresh("r")
    (folder / "0.jpg").write_bytes((folder / "2.jpg").read_bytes())
    with pytest.raises(sp.errors.SourceError, match=r"0.jpg changed since registration"):
        batches(empty, "r")


# ---- verify


def test_verify_records_digests_and_finds_what_no_time_tells(empty: sp.Catalog, folder: Path) -> None:
    empty.register(
        "r", sp.Arrow(table_of(["0.jpg", "1.jpg", "0.jpg"]), base=str(folder)), semantic={"image_ref": JPEG_REF}
    )
    first = empty.verify("r")
    assert (first.sound, first.rows, first.files, first.recorded, first.compared) == (True, 3, 3, 3, 0)
    second = empty.verify("r")
    assert (second.sound, second.recorded, second.compared) == (True, 0, 3)
    assert second.bytes == first.bytes > 1_000
    path, facts = folder / "1.jpg", (folder / "1.jpg").stat()
    changed("edited in place", path, b"")
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))  # as damage on the disk would: nothing else tells
    third = empty.verify("r")
    assert not third.sound
    (difference,) = third.differences
    assert difference.file == "1.jpg"
    assert "whose digest was recorded, and no time tells. Restore the file; or touch it, and take" in difference.found
    empty.refresh("r")
    assert not empty.verify("r").sound  # a refresh looks at sizes and times
    path.touch()
    empty.refresh("r")
    assert empty.verify("r").sound


def test_verify_names_files_that_are_gone_outside_changed_or_no_files(empty: sp.Catalog, folder: Path) -> None:
    os.mkfifo(folder / "fifo.jpg")
    uris = ["0.jpg", "1.jpg", "none.jpg", "../outside.jpg", "fifo.jpg", "s3://b/a.jpg"]
    empty.register("r", sp.Arrow(table_of(uris), base=str(folder)), semantic={"image_ref": JPEG_REF})
    (folder / "1.jpg").write_bytes(b"other")
    found = empty.verify("r")
    assert {each.file for each in found.differences} == set(uris) - {"0.jpg"}
    assert found.different == 5
    assert not found.recorded  # nothing is trusted while something is wrong


@pytest.mark.parametrize("kind", ["lance", "parquet"])
def test_verify_reads_the_source_s_own_files(own: sp.Catalog, kind: str) -> None:
    first = own.verify(kind)
    assert first.sound
    assert first.rows == 240
    assert first.files == {"lance": 4, "parquet": 2}[kind]
    assert own.verify(kind).compared == first.files


# ---- bombs

BOMBS = """
import json, resource, sys, time
import spiral_stream as sp
import numpy as np

catalog = sp.connect(sys.argv[1])
def run(name, column, materialize, profile, **field):
    relation = catalog.table(name)
    if profile is not None:
        relation = relation.cache(**{column: profile})
    plan = relation.sample(identity="sample_id", order=sp.Sequential()).collate(
        batch_size=64, last=sp.KeepPartial, on_error="skip", error_budget=99,
        fields={"x": sp.Stack(column, **field), "id": sp.List("sample_id")})
    with plan.to_numpy() as stream:
        if materialize:
            stream.materialize(lambda _: None)
        ids = [each for batch in stream for each in batch["id"]]
        return ids, stream.quarantine()["reason"].to_pylist()

sizes = {"transforms": [sp.transforms.Resize((16, 16))]}
run("good", "image_ref", True, sp.Raw(16), decode="image", **sizes)
run("good_clip", "clip_ref", False, None, decode="h264", sequence_length=2, crop=16)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
spent = time.process_time()
out = []
for decode in ("jpeg", "image"):
    for profile in (None, sp.Raw(16), sp.profiles.Original()):
        out.append(run("images", "image_ref", profile is not None, profile, decode=decode, **sizes))
for profile in (None, sp.Frames(shorter_side=16)):
    out.append(run("clips", "clip_ref", profile is not None, profile, decode="h264", sequence_length=2, crop=16))
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"mb": (after - before) / 1024, "cpu_s": time.process_time() - spent, "found": out}))
"""


def test_a_bomb_is_a_sample_that_cannot_be_read_and_takes_no_memory(tmp_path: Path, jpegs: list[bytes]) -> None:
    catalog = sp.connect(str(tmp_path / "catalog"))
    files = {
        "good.jpg": jpegs[0],
        "square.jpg": jpeg_claiming(16_384, 16_384),
        "long.jpg": jpeg_claiming(65_500, 65_500),
    }
    files |= {"many.png": png_claiming(10_000, 10_000)}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    with (tmp_path / "huge.jpg").open("wb") as huge:
        huge.truncate(50 << 30)  # a hole: 50 GB that take no room
    names = [*files, "huge.jpg"]
    table = pa.table({"sample_id": names, "image_ref": names})
    catalog.register("images", sp.Arrow(table, base=str(tmp_path)), semantic={"image_ref": JPEG_REF})
    catalog.register("good", sp.Arrow(table.slice(0, 1), base=str(tmp_path)), semantic={"image_ref": JPEG_REF})
    write_video(tmp_path / "good.mp4", Made(frames=6))
    video_claiming(tmp_path / "bomb.mp4", 990, 990)
    clip = pa.table({"sample_id": ["good.mp4", "bomb.mp4"], "clip_ref": ["good.mp4", "bomb.mp4"]})
    catalog.register("clips", sp.Arrow(clip, base=str(tmp_path)), semantic={"clip_ref": H264_REF})
    catalog.register("good_clip", sp.Arrow(clip.slice(0, 1), base=str(tmp_path)), semantic={"clip_ref": H264_REF})
    done = subprocess.run(
        [sys.executable, "-c", BOMBS, str(tmp_path / "catalog")],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["mb"] < 150
    for ids, reasons in told["found"]:
        assert ids in (["good.jpg"], ["good.mp4"])
        assert all(
            "more than the" in each or "claim more than" in each or "PNG signature" in each for each in reasons
        ), reasons


def test_limits_are_raised_and_lowered_by_the_field_and_enter_the_fingerprint_only_then(own: sp.Catalog) -> None:
    def stream(**limits: Any) -> Any:
        field = sp.Stack("image_ref", decode="jpeg", transforms=FIXED, **limits)
        sampled = own.table("lance").sample(identity="sample_id", order=sp.Sequential())
        return sampled.collate(batch_size=8, fields={"x": field}).to_numpy()

    with stream() as usual, stream(max_pixels=1 << 30, max_bytes=1 << 40) as raised:
        assert usual.fingerprint != raised.fingerprint
        assert same(usual.batch(0, epoch=0), raised.batch(0, epoch=0))
    with (
        stream(max_pixels=100) as low,
        pytest.raises(sp.errors.DataError, match=r"claims \d+ x \d+ pixels, more than the 100"),
    ):
        low.batch(0, epoch=0)


def test_limits_of_a_clip_are_told_before_it_is_decoded(empty: sp.Catalog, folder: Path) -> None:
    write_video(folder / "a.mp4", Made(frames=24, gop=24))
    empty.register(
        "clips",
        sp.Arrow(pa.table({"sample_id": ["a"], "clip_ref": [str(folder / "a.mp4")]})),
        semantic={"clip_ref": H264_REF},
    )
    assert len(clips(empty, "clips")) == 1
    for limits, says in (
        ({"max_frames": 3}, "frames are decoded for this sample, more than the 3 .*raise max_frames"),
        ({"max_bytes": 100}, "bytes are read for this sample, more than the 100 .*raise max_bytes"),
        ({"max_pixels": 100}, "claims .* pixels, more than the 100 .*raise max_pixels"),
    ):
        for profile in (None, sp.Frames(shorter_side=32)):
            with pytest.raises(sp.errors.DataError, match=says):
                clips(empty, "clips", profile, profile is not None, **limits)


@pytest.mark.parametrize(
    "field",
    [
        lambda: sp.Stack("a", decode="jpeg", max_pixels=0),
        lambda: sp.Stack("a", decode="jpeg", max_pixels=True),
        lambda: sp.Stack("a", decode="jpeg", max_bytes=1.5),  # type: ignore[arg-type]
        lambda: sp.Stack("a", decode="jpeg", max_frames=5),
        lambda: sp.Stack("a", max_pixels=5),
    ],
)
def test_a_limit_that_says_nothing_is_refused(field: Any) -> None:
    with pytest.raises(sp.errors.PlanError, match=r"Stack\('a'\): max_\w+.*(Give a whole number|limits )"):
        field()
