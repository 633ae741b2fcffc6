"""Folders that Mosaic's MDSWriter wrote: tests/data/mds, with the values that its StreamingDataset reads (write.py there)."""

import hashlib
import io
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from spiral_stream import List, Sequential, Stack, connect
from spiral_stream.errors import SourceError
from spiral_stream.host_dtypes import numpy_dtype
from spiral_stream.semantic import semantic_of
from spiral_stream.sources import Mds, Refused
from spiral_stream.sources.references.resolve import payload
from spiral_stream.sources.serialize import source_from_json, source_to_json
from spiral_stream.testing import check_source
from tests.fixtures.examples import few
from tests.fixtures.imported_rows import rows_of as rows

DATA = Path(__file__).parents[3] / "data" / "mds"
VALUES: dict[str, list[dict[str, Any]]] = json.loads((DATA / "values.json").read_text())
NUMBERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64")
COMPRESSED = ("zstd", "gz", "bz2", "br")


def images(column: pa.ChunkedArray, base: Path) -> list[Any]:
    """Pixels as [mode, size, hex], as values.json has them."""

    def pixels(data: bytes | list[bytes]) -> Any:
        if isinstance(data, list):
            return [pixels(each) for each in data]
        image = Image.open(io.BytesIO(data))
        return [image.mode, list(image.size), image.tobytes().hex()]

    return [pixels(each) for each in payload(column.combine_chunks(), str(base))]


@pytest.fixture(scope="module")
def raw() -> pa.Table:
    return rows(Mds(DATA / "raw", arrays={"tokens": "int64"}))


def wanted(name: str, folder: str = "raw") -> list[Any]:
    return [each[name] for each in VALUES[folder]]


@pytest.mark.parametrize("name", [*NUMBERS, "int", "text", "tags", "str_int", "str_float", "str_decimal"])
def test_values_are_those_that_mosaic_reads(raw: pa.Table, name: str) -> None:
    assert raw[name].to_pylist() == wanted(name)
    if name in NUMBERS:
        assert raw.schema.field(name).type == pa.from_numpy_dtype(np.dtype(name))


def test_json_objects_are_a_column_per_key(raw: pa.Table) -> None:
    for key in ("width", "score", "who"):
        assert raw[f"meta_json_{key}"].to_pylist() == [each[key] for each in wanted("meta.json")]


@pytest.mark.parametrize("name", ["fixed", "ragged", "any"])
def test_arrays_keep_type_shape_and_bits(raw: pa.Table, name: str) -> None:
    found = raw[name].to_pylist()
    dtype = numpy_dtype(raw.schema.field(name).type.value_type)
    shapes = (
        raw["any_shape"].to_pylist()
        if name == "any"
        else [[2, 3]] * 8
        if name == "fixed"
        else [[len(each)] for each in found]
    )
    assert [
        [dtype.name, shape, np.array(each, dtype).tobytes().hex()] for each, shape in zip(found, shapes, strict=True)
    ] == wanted(name)
    assert name != "fixed" or (
        raw.schema.field(name).type.list_size,
        raw.schema.field(name).metadata[b"spiral:shape"],
    ) == (6, b"2,3")


def test_bytes_are_references_or_arrays_of_a_given_type(raw: pa.Table) -> None:
    assert [np.array(each, np.int64).tobytes().hex() for each in raw["tokens"].to_pylist()] == wanted("tokens")
    assert [each.hex() for each in payload(raw["data"].combine_chunks(), str(DATA / "raw"))] == wanted("data")
    assert semantic_of(raw.schema.field("data")) == "application/bytes-ref"


@pytest.mark.parametrize("name", ["jpg", "png", "pil", "many", "pngs", "jpgs", "pils"])
def test_images_have_the_pixels_that_mosaic_reads(raw: pa.Table, name: str) -> None:
    assert images(raw[name], DATA / "raw") == wanted(name)
    assert semantic_of(raw.schema.field(name)) == "image/jpeg-ref"


@pytest.mark.parametrize("folder", COMPRESSED)
def test_compressed_shards_are_copied(folder: str) -> None:
    found = rows(Mds(DATA / folder))
    assert found.schema.field("png").type == pa.large_binary()
    assert found["text"].to_pylist() == wanted("text", folder)
    assert images(found["png"], DATA) == wanted("png", folder)


def test_folders_of_folders_follow_each_other() -> None:
    found = rows(Mds(DATA / "streams"))
    assert found["int"].to_pylist() == [*wanted("int", "streams/one"), *wanted("int", "streams/two")]
    assert images(found["png"], DATA / "streams") == [*wanted("png", "streams/one"), *wanted("png", "streams/two")]


def test_columns_are_chosen_and_renamed() -> None:
    assert rows(Mds(DATA / "raw", columns=["text", "meta.json"])).column_names == [
        "text",
        "meta_json_width",
        "meta_json_score",
        "meta_json_who",
    ]
    found = rows(Mds(DATA / "raw", columns={"caption": "text", "width": "meta.json.width"}))
    assert found.column_names == ["caption", "width"]
    assert found["width"].to_pylist() == list(range(8))


# ---- folders made here, byte by byte


def shard(
    samples: Sequence[Sequence[bytes]], encodings: dict[str, str], sizes: Sequence[int | None] | None = None
) -> tuple[bytes, dict[str, Any]]:
    """A shard and its entry in the index."""
    sizes = sizes or [None] * len(encodings)
    config = {
        "column_names": list(encodings),
        "column_encodings": list(encodings.values()),
        "column_sizes": list(sizes),
    }
    varying = [at for at, size in enumerate(sizes) if size is None]
    bodies = [np.array([len(each[at]) for at in varying], "<u4").tobytes() + b"".join(each) for each in samples]
    head = json.dumps(config).encode()
    offsets = np.cumsum([4 + 4 * (len(bodies) + 1) + len(head), *map(len, bodies)]).astype("<u4")
    data = np.uint32(len(bodies)).tobytes() + offsets.tobytes() + head + b"".join(bodies)
    entry = {
        **config,
        "compression": None,
        "format": "mds",
        "hashes": [],
        "samples": len(bodies),
        "size_limit": None,
        "version": 2,
        "zip_data": None,
    }
    return data, {**entry, "raw_data": {"basename": "shard.00000.mds", "bytes": len(data), "hashes": {}}}


def test_keys_of_json_that_would_be_one_column_are_told_apart(folder: "Folder") -> None:
    made = folder(*shard([[b'{"a.b": 1, "a_b": 2}']], {"m": "json"}))
    with pytest.raises(SourceError, match=r"m has two keys that are column 'm_a_b'\. Name one"):
        rows(Mds(made))
    assert rows(Mds(made, columns={"one": "m.a.b", "two": "m.a_b"})).to_pydict() == {"one": [1], "two": [2]}
    for first, value in (("m.a.b;m.a_b", 1), ("m.a_b;m.a.b", 2), ("m.c;m.a_b", 2)):
        assert rows(Mds(made, columns={"one": first})).to_pydict() == {"one": [value]}


@pytest.mark.parametrize(
    ("samples", "said"),
    [
        ([b'{"a": 18446744073709551616}'], "18446744073709551616, an integer that no 64 bits hold"),
        (
            [b'{"a": 0.5}', b'{"a": 9007199254740993}'],
            "'m_a' holds 9007199254740993 .*, and is double, which would lose digits",
        ),
    ],
)
def test_integers_of_json_keep_their_digits_or_are_named(folder: "Folder", samples: list[bytes], said: str) -> None:
    with pytest.raises(SourceError, match=said):
        rows(Mds(folder(*shard([[each] for each in samples], {"m": "json"}))))


@pytest.fixture
def folder(tmp_path: Path) -> Callable[..., Path]:
    def make(data: bytes, *entries: dict[str, Any], **index: Any) -> Path:
        (tmp_path / "shard.00000.mds").write_bytes(data)
        (tmp_path / "index.json").write_text(json.dumps({"version": 2, "shards": list(entries), **index}))
        return tmp_path

    return make


Folder = Callable[..., Path]
TEXTS = [[b"one"], [b"two"], [b"three"]]


@few(12, 30)
@given(
    values=st.lists(
        st.tuples(st.text(max_size=9), st.binary(max_size=9), st.integers(-(2**63), 2**63 - 1)), min_size=1, max_size=40
    )
)
def test_texts_bytes_and_numbers_of_any_sizes_come_back(
    tmp_path_factory: pytest.TempPathFactory, values: list[Any]
) -> None:
    path = tmp_path_factory.mktemp("mds")
    encoded = [[text.encode(), data, np.int64(number).tobytes()] for text, data, number in values]
    data, entry = shard(encoded, {"t": "str", "b": "bytes", "n": "int"}, [None, None, 8])
    (path / "shard.00000.mds").write_bytes(data)
    (path / "index.json").write_text(json.dumps({"version": 2, "shards": [entry]}))
    found = rows(Mds(path))
    got = zip(
        found["t"].to_pylist(), payload(found["b"].combine_chunks(), str(path)), found["n"].to_pylist(), strict=True
    )
    assert list(got) == values


def test_pickles_are_refused_and_may_be_left_out(folder: Folder) -> None:
    path = folder(*shard([[b"a", b"x"]], {"p": "pkl", "t": "str"}))
    with pytest.raises(SourceError, match=r"column 'p' is pkl.*never read here.*columns=\[\.\.\.\]"):
        rows(Mds(path))
    assert rows(Mds(path, columns=["t"]))["t"].to_pylist() == ["x"]


LIES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "samples": (lambda e: e.update(samples=4), r"the shard has 3 samples in .* bytes, and the index says 4"),
    "bytes": (lambda e: e["raw_data"].update(bytes=7), r"has [\d,]+ bytes, and the index says 7"),
    "file": (lambda e: e["raw_data"].update(basename="gone.mds"), r"gone\.mds, which is not there"),
    "path": (
        lambda e: e["raw_data"].update(basename="../../etc/passwd"),
        "the name of a file in the folder of the index",
    ),
    "absolute path": (
        lambda e: e["raw_data"].update(basename="/etc/passwd"),
        "the name of a file in the folder of the index",
    ),
    "hash": (lambda e: e["raw_data"].update(hashes={"sha1": "0" * 40}), "its sha1 is .* and the index says '0000"),
    "unknown hash": (lambda e: e["raw_data"].update(hashes={"md9": "0"}), "'md9', an algorithm that is not known"),
    "encoding": (
        lambda e: e.update(column_encodings=["bytes"]),
        r"the shard says columns \['str'\], and the index says \['bytes'\]",
    ),
    "unknown encoding": (lambda e: e.update(column_encodings=["tensor"]), "encoding 'tensor', which is not known"),
    "size": (lambda e: e.update(column_sizes=[3]), "is str, of no fixed bytes, and the index says 3"),
    "columns": (lambda e: e.update(column_names=[]), "a name, an encoding and a size for each column"),
    "format": (lambda e: e.update(format="parquet"), "it would be one of mds, json, csv, tsv, xsv"),
    "version": (lambda e: e.update(version=1), "has version 1; it would be 2"),
    "type": (lambda e: e.update(samples="3"), "has samples '3'"),
    "huge": (lambda e: e["raw_data"].update(bytes=1 << 40), "fewer than 4 GiB"),
}


@pytest.mark.parametrize("lie", LIES)
def test_an_index_that_lies_is_named(folder: Folder, lie: str) -> None:
    change, message = LIES[lie]
    data, entry = shard(TEXTS, {"t": "str"})
    change(entry)
    with pytest.raises(SourceError, match=message):
        rows(Mds(folder(data, entry)))


def test_hashes_of_the_index_are_compared(folder: Folder) -> None:
    data, entry = shard(TEXTS, {"t": "str"})
    entry["raw_data"]["hashes"] = {"sha256": hashlib.sha256(data).hexdigest()}
    assert rows(Mds(folder(data, entry)))["t"].to_pylist() == ["one", "two", "three"]
    with pytest.raises(SourceError, match="sha256"):
        rows(Mds(folder(data[:-1] + b"!", entry)))


@pytest.mark.parametrize("text", ["", "[]", '{"version": 1, "shards": []}', '{"version": 2}', "{" * 9999])
def test_an_index_that_is_none_is_named(folder: Folder, text: str) -> None:
    path = folder(b"")
    (path / "index.json").write_text(text)
    with pytest.raises(SourceError, match=r"index\.json"):
        rows(Mds(path))


def test_a_folder_without_an_index_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"nothing lies below .*Correct the path"):
        Mds(tmp_path).import_units()
    (tmp_path / "a.bin").touch()
    with pytest.raises(SourceError, match=r"there is no index\.json in .*Give the folder that a writer wrote"):
        Mds(tmp_path).import_units()


@few(30, 80)
@given(at=st.integers(0, 400), change=st.integers(1, 255))
def test_whatever_byte_of_a_shard_is_changed_it_is_read_or_refused_by_name(
    tmp_path_factory: pytest.TempPathFactory, at: int, change: int
) -> None:
    path = tmp_path_factory.mktemp("mds")
    values = [[str(k).encode() * k, b"\x04" + bytes([k]) + bytes(4 * k), b'{"a": %d}' % k] for k in range(1, 6)]
    data, entry = shard(values, {"t": "str", "a": "ndarray:int32", "j": "json"})
    changed = bytearray(data)
    changed[at % len(data)] ^= change
    (path / "shard.00000.mds").write_bytes(changed)
    (path / "index.json").write_text(json.dumps({"version": 2, "shards": [entry]}))
    try:
        rows(Mds(path))
    except SourceError as error:
        assert str(path) in str(error)  # noqa: PT017


def test_a_bomb_is_bounded_by_what_the_index_says(tmp_path: Path) -> None:
    data, entry = shard(TEXTS, {"t": "str"})
    packed = pa.Codec("zstd").compress(bytes(1 << 28), asbytes=True)
    (tmp_path / "shard.00000.mds.zstd").write_bytes(packed)
    entry |= {
        "compression": "zstd:3",
        "zip_data": {"basename": "shard.00000.mds.zstd", "bytes": len(packed), "hashes": {}},
    }
    (tmp_path / "index.json").write_text(json.dumps({"version": 2, "shards": [entry]}))
    before = pa.total_allocated_bytes()
    with pytest.raises(SourceError, match=rf"holds more than {len(data)} bytes, and the index says {len(data)}"):
        rows(Mds(tmp_path))
    assert pa.total_allocated_bytes() - before < 1 << 24


@pytest.mark.parametrize("left", [0, 5, 40, -1])
def test_a_compressed_shard_cut_short_is_named(tmp_path: Path, left: int) -> None:
    shutil.copytree(DATA / "zstd", tmp_path, dirs_exist_ok=True)
    file, index = tmp_path / "shard.00000.mds.zstd", json.loads((tmp_path / "index.json").read_text())
    file.write_bytes(file.read_bytes()[:left])
    index["shards"][0]["zip_data"] |= {"bytes": file.stat().st_size, "hashes": {}}
    (tmp_path / "index.json").write_text(json.dumps(index))
    with pytest.raises(SourceError, match=r"shard\.00000\.mds\.zstd (holds|cannot be uncompressed)"):
        rows(Mds(tmp_path))


def test_an_unknown_compression_is_named(tmp_path: Path) -> None:
    shutil.copytree(DATA / "zstd", tmp_path, dirs_exist_ok=True)
    index = (tmp_path / "index.json").read_text().replace('"zstd:7"', '"lz4"')
    (tmp_path / "index.json").write_text(index)
    with pytest.raises(SourceError, match="compressed as 'lz4'; zstd, gz, bz2, br and snappy are read"):
        rows(Mds(tmp_path))


BAD: dict[str, tuple[str, bytes, str]] = {
    "text": ("str", b"\xff", r"sample 1: v is b'\\xff', which is not text"),
    "number": ("str_int", b"x", "which is not a whole number"),
    "number beyond 64 bits": ("str_int", b"9" * 30, "is int64"),
    "JSON": ("json", b"{", "which is not JSON"),
    "array": ("ndarray:int32", b"\x04\x02\0\0\0\0", "is an array whose head says int32"),
    "list of images": ("jpeg_array", b"\x09\0\0\0", "is a list of 9 images in 4 bytes"),
    "pixels": ("pil", b"\1\0\0\0\1\0\0\0\1\0\0\0L", "is an image that cannot be read"),
    "mode": ("pil", b"\1\0\0\0\1\0\0\0\4\0\0\0CMYK1234", "its mode is 'CMYK'"),
}
GOOD = {
    "str": b"a",
    "str_int": b"1",
    "json": b'{"a": 1}',
    "ndarray:int32": b"\x04\x01\0\0\0\0",
    "jpeg_array": bytes(4),
    "pil": b"\1\0\0\0\1\0\0\0\1\0\0\0L1",
}


@pytest.mark.parametrize("case", BAD)
def test_a_sample_that_cannot_be_read_is_named_or_left_out(folder: Folder, case: str) -> None:
    encoding, bad, message = BAD[case]
    source = Mds(folder(*shard([[GOOD[encoding]], [bad], [GOOD[encoding]]], {"v": encoding})))
    with pytest.raises(SourceError, match=message):
        rows(source)
    left: list[str] = []
    assert len(rows(replace(source, on_error="skip"), left)) == 2
    assert len(left) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"columns": ["nope"]}, "'nope' is no column of the folder; it has t"),
        ({"arrays": {"t": "int64"}}, "arrays names column 't', which is str"),
        ({"arrays": {"t": "tensor"}}, "Give one of float16"),
        ({"arrays": ["t"]}, "Give the type of each"),
        ({"on_error": "no"}, 'Give "raise" or "skip"'),
    ],
)
def test_arguments_of_another_form_are_refused(folder: Folder, arguments: dict[str, Any], message: str) -> None:
    path = folder(*shard(TEXTS, {"t": "str"}))
    with pytest.raises(SourceError, match=message):
        rows(Mds(path, **arguments))


def test_a_source_is_written_down_and_opened_again() -> None:
    source = Mds(DATA / "raw", columns={"kind": "text"}, arrays={"tokens": "int64"})
    assert source_from_json(json.loads(json.dumps(source_to_json(source)))) == source


def test_a_catalog_reads_shards_in_place_and_checks_them(tmp_path: Path) -> None:
    shutil.copytree(DATA / "raw", tmp_path / "mds")
    catalog = connect(tmp_path / "catalog")
    catalog.register("mds", Mds(tmp_path / "mds", arrays={"tokens": "int64"}), identity="str_int")
    fields = {"fixed": Stack("fixed"), "many": List("many"), "data": List("data"), "pils": List("pils")}
    sampled = catalog.table("mds").sample(identity="str_int", order=Sequential())
    with sampled.collate(batch_size=8, fields=fields).to_numpy() as stream:
        [batch] = list(stream)
    assert batch["fixed"].shape == (8, 2, 3)
    assert [each.hex() for each in batch["data"]] == wanted("data")
    assert [len(each) for each in batch["many"]] == [len(each) for each in wanted("many")]
    assert catalog.verify("mds").sound
    assert catalog.verify("mds").compared > 2
    (tmp_path / "mds" / "shard.00001.mds").write_bytes(b"")
    found = catalog.verify("mds")
    assert [each.file for each in found.differences] == ["shard.00001.mds"]


def test_the_laws_of_sources_hold(tmp_path: Path) -> None:
    shutil.copytree(DATA / "raw", tmp_path / "mds")

    def change() -> None:
        path = tmp_path / "mds" / "shard.00000.mds"
        index = json.loads((tmp_path / "mds" / "index.json").read_text())
        data = path.read_bytes().replace("ä".encode(), "ö".encode())
        path.write_bytes(data)
        index["shards"][0]["raw_data"]["hashes"] = {"sha1": hashlib.sha1(data).hexdigest()}
        (tmp_path / "mds" / "index.json").write_text(json.dumps(index))

    check_source(
        Mds(tmp_path / "mds", arrays={"tokens": "int64"}, columns=["text", "tokens", "png", "meta.json", "many"]),
        change,
    )
    check_source(Mds(DATA / "streams"))
    check_source(Mds(DATA / "zstd"))


def test_where_one_shard_is_compressed_payload_of_all_is_copied_and_later_ones_must_be_alike(tmp_path: Path) -> None:
    shutil.copytree(DATA / "streams" / "one", tmp_path / "one")
    raw_only = Mds(tmp_path, columns=["png", "int"])
    schema = raw_only.import_schema(raw_only.import_units())
    shutil.copytree(DATA / "zstd", tmp_path / "two")
    found = rows(Mds(tmp_path, columns=["png", "int"]))
    assert found.schema.field("png").type == pa.large_binary()
    assert images(found["png"], tmp_path) == [*wanted("png", "streams/one"), *wanted("png", "zstd")]
    unit = raw_only.import_units()[1]
    with pytest.raises(
        SourceError, match="the shard is compressed, and payload of column 'png' was registered as references"
    ):
        list(raw_only.import_rows(unit, schema, Refused(unit)))


def test_folders_with_other_columns_are_refused(tmp_path: Path) -> None:
    shutil.copytree(DATA / "streams" / "one", tmp_path / "one")
    shutil.copytree(DATA / "raw", tmp_path / "two")
    with pytest.raises(SourceError, match=r"two/shard\.00000\.mds has columns .*relations of their own"):
        rows(Mds(tmp_path))


def test_columns_whose_names_differ_in_a_dot_are_read_under_names_of_their_own(folder: Folder) -> None:
    data, entry = shard([[b"one", b"two", b"three"]], {"a.b": "str", "a_b": "str", "c": "str"})
    path = folder(data, entry)
    with pytest.raises(
        SourceError, match=r"would be called 'a_b'. Name them.*columns=\{\"a_b\": \"a.b\", \"a_b_\": \"a_b\"\}"
    ):
        rows(Mds(path))
    found = rows(Mds(path, columns={"dotted": "a.b", "plain": "a_b"}))
    assert (found["dotted"].to_pylist(), found["plain"].to_pylist()) == (["one"], ["two"])
    assert rows(Mds(path, columns={"plain": "a_b"})).column_names == ["plain"]
    assert rows(Mds(path, columns={"dotted": "a.b", "c": "c"})).to_pylist() == [{"dotted": "one", "c": "three"}]
    with pytest.raises(SourceError, match=r"would be called 'a_b'"):
        rows(Mds(path, columns=["a.b", "a_b"]))


def _moved(folder: Path, place: str) -> Path:
    """A copy of the shards, whose index spells each file with a place before its name."""
    shutil.copytree(DATA / "raw", folder)
    index = json.loads((folder / "index.json").read_text())
    for shard in index["shards"]:
        shard["raw_data"]["basename"] = f"{place}{shard['raw_data']['basename']}"
    (folder / "index.json").write_text(json.dumps(index))
    return folder


def test_shards_behind_a_link_to_a_folder_and_under_another_spelling_are_found(raw: pa.Table, tmp_path: Path) -> None:
    linked = _moved(tmp_path / "linked", "part/")
    (linked / "part").symlink_to(DATA / "raw")

    for folder in (linked, _moved(tmp_path / "spelt", "./")):
        assert rows(Mds(folder, arrays={"tokens": "int64"}))["int64"].equals(raw["int64"])


def test_links_to_nowhere_beside_shards_do_no_harm(raw: pa.Table, tmp_path: Path) -> None:
    shutil.copytree(DATA / "raw", tmp_path / "raw")
    (tmp_path / "raw" / "circle").symlink_to("circle")
    (tmp_path / "raw" / "latest").symlink_to("gone")

    assert rows(Mds(tmp_path / "raw", arrays={"tokens": "int64"}))["int64"].equals(raw["int64"])
