import io
import json
import re
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import webdataset as wds
from hypothesis import example, given
from hypothesis import strategies as st
from webdataset.tariterators import group_by_keys, tar_file_expander

from spiral_stream import List, Sequential, Stack, col, connect
from spiral_stream.errors import SourceError, SpiralWarning
from spiral_stream.semantic import semantic_of
from spiral_stream.sources import WebDataset
from spiral_stream.sources.references.resolve import resolve
from spiral_stream.sources.serialize import source_from_json, source_to_json
from spiral_stream.testing import check_source
from spiral_stream.transforms import Resize
from tests.fixtures.examples import few
from tests.fixtures.imported_rows import rows_of as rows

Sample = dict[str, Any]


def samples(count: int, seed: int = 0) -> list[Sample]:
    rng = np.random.default_rng(seed)
    return [
        {
            "__key__": f"dir/k{seed}-{k:03d}",
            "jpg": rng.bytes(300 + k),
            "seg.png": rng.bytes(20),
            "txt": f"ein Bild {k}, äöü",
            "cls": k % 7,
            "json": {
                "width": k,
                "score": k / 3,
                "tags": ["a"] * (k % 3),
                "when": "2026-01-01",
                "who": {"name": str(k)},
            },
            "npy": np.arange(k),
        }
        for k in range(count)
    ]


def written(path: Path, some: Sequence[Sample]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with wds.TarWriter(str(path)) as writer:
        for each in some:
            writer.write(each)
    return path


def members(path: Path, files: Sequence[tuple[str, bytes]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, data in files:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def read_back(*paths: Path) -> list[Sample]:
    """What the webdataset library reads: bytes by field."""
    found: list[Sample] = []
    for path in paths:
        with path.open("rb") as file:
            found += group_by_keys(tar_file_expander([{"url": str(path), "stream": file}]))
    return found


def test_keys_bytes_and_order_are_those_that_the_webdataset_library_reads(tmp_path: Path) -> None:
    paths = [written(tmp_path / f"s-{k:03d}.tar", samples(9, k)) for k in range(3)]
    source = WebDataset(tmp_path / "s-{000..002}.tar")
    found, expected = rows(source), read_back(*paths)

    assert found["__key__"].to_pylist() == [each["__key__"] for each in expected]
    for column, field in (("jpg", "jpg"), ("seg_png", "seg.png"), ("npy", "npy")):
        assert resolve(found[column], source.base) == [each[field] for each in expected]
    assert found["txt"].to_pylist() == [each["txt"].decode() for each in expected]
    assert found["cls"].to_pylist() == [int(each["cls"]) for each in expected]
    documents = [json.loads(each["json"]) for each in expected]
    for key in ("width", "score", "tags", "when", "who"):
        assert found[f"json_{key}"].to_pylist() == [each[key] for each in documents]


def test_columns_have_the_types_of_their_extensions(tmp_path: Path) -> None:
    written(tmp_path / "a.tar", samples(3))
    schema = rows(WebDataset(tmp_path / "a.tar")).schema
    kinds = {field.name: str(field.type) for field in schema if semantic_of(field) is None}

    assert {field.name: semantic_of(field) for field in schema if semantic_of(field)} == {
        "jpg": "image/jpeg-ref",
        "seg_png": "image/jpeg-ref",
        "npy": "application/bytes-ref",
    }
    assert kinds["cls"] == kinds["json_width"] == "int64"
    assert (
        kinds["txt"] == kinds["__key__"] == kinds["json_when"] == "string"
    )  # a text that looks like a date stays text
    assert kinds["json_score"] == "double"


@pytest.mark.parametrize("ending", ["tar.gz", "tgz"])
def test_payload_of_compressed_tars_is_copied(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a.{ending}"
    with wds.TarWriter(str(path), compress=True) as writer:
        for each in samples(9):
            writer.write(each)
    source = WebDataset(path)
    found, expected = rows(source), read_back(path)

    assert found.schema.field("jpg").type == pa.large_binary()
    assert found["jpg"].to_pylist() == [each["jpg"] for each in expected]
    assert found["txt"].to_pylist() == [each["txt"].decode() for each in expected]


def test_the_key_ends_at_the_first_dot_or_at_the_last(tmp_path: Path) -> None:
    path = members(tmp_path / "a.tar", [("x/1.seg.png", b"s"), ("x/1.jpg", b"j"), ("x/2.seg.png", b"t")])
    assert rows(WebDataset(path))["__key__"].to_pylist() == ["x/1", "x/2"]
    last = rows(WebDataset(path, key="last"))
    assert last["__key__"].to_pylist() == ["x/1.seg", "x/1", "x/2.seg"]
    assert last.column_names == ["__key__", "png", "jpg"]
    assert last["jpg"].is_valid().to_pylist() == [False, True, False]


def test_what_the_library_passes_over_is_passed_over(tmp_path: Path) -> None:
    files = [("README", b"r"), ("__meta__/x.json", b"{}"), ("1.JPG", b"j"), (".hidden.jpg", b"h"), ("__note__", b"n")]
    path = members(tmp_path / "a.tar", files)
    found = rows(WebDataset(path))
    assert found["__key__"].to_pylist() == [each["__key__"] for each in read_back(path)] == ["1"]
    assert found.column_names == ["__key__", "jpg"]


def test_columns_are_chosen_and_renamed_and_one_of_several_fields_is_taken(tmp_path: Path) -> None:
    files = [
        ("1.jpg", b"a"),
        ("1.cls", b"4"),
        ("1.json", b'{"w": 3, "h": 4}'),
        ("2.png", b"b"),
        ("2.cls", b"5"),
        ("3.png", b"c"),
        ("3.jpg", b"d"),
    ]
    path = members(tmp_path / "a.tar", files)
    source = WebDataset(path, columns={"image": "jpg;png", "label": "cls", "w": "json.w"})
    found = rows(source)
    assert set(found.column_names) == {"__key__", "image", "label", "w"}
    assert [bytes(each) for each in resolve(found["image"], source.base)] == [b"a", b"b", b"d"]
    assert found["w"].to_pylist() == [3, None, None]
    assert found["label"].to_pylist() == [4, 5, None]
    assert rows(WebDataset(path, columns=["cls", "json.h"])).column_names == ["__key__", "cls", "json_h"]
    assert set(rows(WebDataset(path, columns=["json"])).column_names) == {"__key__", "json_w", "json_h"}


def test_sidecar_tars_are_joined_by_shard_and_key_in_any_order(tmp_path: Path) -> None:
    some = samples(8)
    depth = [{"__key__": each["__key__"], "png": bytes([k]), "json": {"near": k}} for k, each in enumerate(some)]
    written(tmp_path / "images" / "s.tar", some)
    for order in (depth, depth[::-1]):
        written(tmp_path / "depth" / "s.tar", [*order, {"__key__": "other", "png": b"o"}])
        source = WebDataset(tmp_path / "images" / "*.tar", sidecars={"depth": ("/images/", "/depth/")})
        found = rows(source)
        assert source.base == str(tmp_path)
        assert found["depth_json_near"].to_pylist() == list(range(8))
        assert [bytes(each) for each in resolve(found["depth_png"], source.base)] == [bytes([k]) for k in range(8)]
        assert resolve(found["jpg"], source.base) == [each["jpg"] for each in some]


def test_a_member_without_its_sidecar_is_named_or_left_out(tmp_path: Path) -> None:
    written(tmp_path / "images" / "s.tar", samples(3))
    written(
        tmp_path / "depth" / "s.tar",
        [{"__key__": each["__key__"], "png": b"d"} for each in samples(3) if not each["__key__"].endswith("1")],
    )
    source = WebDataset(tmp_path / "images", sidecars={"depth": ("/images/", "/depth/")})
    with pytest.raises(
        SourceError, match=r"key 'dir/k0-001'.*no such key in the sidecar .*depth/s\.tar.*on_error=\"skip\""
    ):
        rows(source)
    left: list[str] = []
    assert rows(replace(source, on_error="skip"), left)["__key__"].to_pylist() == ["dir/k0-000", "dir/k0-002"]
    assert len(left) == 1


def test_a_missing_sidecar_tar_is_named_with_where_it_would_be(tmp_path: Path) -> None:
    written(tmp_path / "images" / "s.tar", samples(1))
    with pytest.raises(SourceError, match=r"sidecar 'depth' of .*images/s\.tar would be .*depth/s\.tar.*No such file"):
        WebDataset(tmp_path / "images", sidecars={"depth": ("/images/", "/depth/")}).import_units()
    with pytest.raises(SourceError, match=r"'/masks/' is not in .*images/s\.tar"):
        WebDataset(tmp_path / "images", sidecars={"depth": ("/masks/", "/depth/")}).import_units()


BAD: dict[str, tuple[list[tuple[str, bytes]], str]] = {
    "a key that comes back": (
        [("1.jpg", b"a"), ("2.jpg", b"b"), ("1.cls", b"1")],
        r"key '1' \(byte 3,072\).*was there before",
    ),
    "two members of one name": (
        [("1.jpg", b"a"), ("1.jpg", b"b")],
        r"key '1' .*two members 'jpg', the second at byte 2,048",
    ),
    "two names of one column": ([("1.a.b", b"a"), ("1.a_b", b"b")], "two members or keys are column 'a_b'"),
    "a class that is a word": (
        [("1.cls", b"1"), ("2.cls", b"dog")],
        r"key '2'.*'2\.cls' is b'dog', which is no whole number",
    ),
    "a class beyond 64 bits": ([("1.cls", b"1"), ("2.cls", b"9" * 30)], "does not fit int64"),
    "JSON that is none": (
        [("1.json", b"{}"), ("1.jpg", b"j"), ("2.json", b"{nope")],
        r"'2\.json' is no JSON .*line 1, column 2",
    ),
    "text that is none": ([("1.txt", b"a"), ("2.txt", b"\xff")], r"'2\.txt' is not UTF-8"),
    "a name that is none": ([("1.jpg", b"a"), ("2\udcff.jpg", b"b")], "is not UTF-8"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_row_that_cannot_be_read_is_named_or_left_out(tmp_path: Path, case: str) -> None:
    files, message = BAD[case]
    path = members(tmp_path / "a.tar", [("0.ok", b"ok"), *files, ("9.ok", b"ok")])
    with pytest.raises(SourceError, match=message):
        rows(WebDataset(path))
    left: list[str] = []
    found = rows(WebDataset(path, on_error="skip"), left)
    assert len(left) == 1
    assert found["__key__"].to_pylist()[0] == "0"
    assert found["__key__"].to_pylist()[-1] == "9"


def test_links_are_refused_by_name_unless_nobody_asks_for_them(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name, kind in (("1.cls", tarfile.REGTYPE), ("1.jpg", tarfile.LNKTYPE)):
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.size = kind, "0.jpg", int(kind == tarfile.REGTYPE)
            tar.addfile(info, io.BytesIO(b"7"))
    with pytest.raises(SourceError, match=r"member '1\.jpg' is a hard link to '0\.jpg'"):
        rows(WebDataset(tmp_path / "a.tar", columns=["cls", "jpg"]))
    assert rows(WebDataset(tmp_path / "a.tar", columns=["cls"]))["cls"].to_pylist() == [7]


def test_json_of_another_type_than_the_first_rows_is_named_or_left_out(tmp_path: Path) -> None:
    def docs(value: Any) -> list[tuple[str, bytes]]:
        numbered = [(f"{k:04d}.json", json.dumps({"n": k, "o": {"x": k}}).encode()) for k in range(1200)]
        return [*numbered, ("2000.json", json.dumps(value).encode()), ("2001.json", b'{"n": 7}')]

    for value, message in (
        ({"n": "seven"}, r"key '2000'.*column 'json_n' holds 'seven' \(string\), and is int64"),
        ({"n": 1.5}, r"column 'json_n' holds 1\.5"),
        ({"n": True}, "column 'json_n' holds True"),
        ({"o": {"x": 1, "y": 2}}, r"field 'json_o\.y' is in none of the rows"),
        ({"new": 1}, "'json_new', which is in none of the rows.*schema="),
    ):
        path = members(tmp_path / "a.tar", docs(value))
        with pytest.raises(SourceError, match=message):
            rows(WebDataset(path))
        left: list[str] = []
        assert len(rows(WebDataset(path, on_error="skip"), left)) == 1201
        assert len(left) == 1
    path = members(tmp_path / "a.tar", [("1.json", b'{"n": 1}'), ("2.json", b'{"n": "x"}')])
    with pytest.raises(
        SourceError, match=r"column 'json_n' holds string, and int64 before\. Give the columns: schema="
    ):
        rows(WebDataset(path))
    left = []
    assert rows(WebDataset(path, on_error="skip"), left)["json_n"].to_pylist() == [1]
    assert len(left) == 1


def test_a_column_that_no_row_has_is_refused_with_those_there_are(tmp_path: Path) -> None:
    written(tmp_path / "a.tar", samples(2))
    with pytest.raises(SourceError, match=r"has column 'mask'.*has .*jpg.*Correct columns="):
        rows(WebDataset(tmp_path / "a.tar", columns=["jpg", "mask"]))


def test_tars_compressed_and_not_are_not_mixed(tmp_path: Path) -> None:
    written(tmp_path / "a.tar", samples(1))
    with wds.TarWriter(str(tmp_path / "b.tar.gz"), compress=True) as writer:
        writer.write(samples(1)[0])
    with pytest.raises(SourceError, match=r"b\.tar\.gz is compressed and a\.tar is not"):
        WebDataset(tmp_path).import_units()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"key": "middle"}, 'Give "first" or "last"'),
        ({"columns": "jpg"}, r'Give names, such as \["jpg", "cls"\]'),
        ({"columns": ["jpg", 3]}, "columns has"),
        ({"columns": ["jpg", "jpg"]}, "names 'jpg' twice"),
        ({"columns": {"a.b": "jpg"}}, "without a dot"),
        ({"columns": []}, "Give names"),
        ({"sidecars": ["depth"]}, "what to replace in the path"),
        ({"sidecars": {"depth": "x"}}, "what to replace in the path"),
        ({"sidecars": {"depth": ("", "x")}}, "what to replace in the path"),
        ({"on_error": "ignore"}, 'Give "raise" or "skip"'),
    ],
)
def test_arguments_of_another_form_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(SourceError, match=message):
        WebDataset("a.tar", **arguments)


def test_a_source_is_written_down_and_opened_again(tmp_path: Path) -> None:
    source = WebDataset(
        [tmp_path / "a.tar", tmp_path / "b.tar"], columns={"kind": "jpg;png"}, sidecars={"kind": ("a", "b")}, key="last"
    )
    assert source_from_json(json.loads(json.dumps(source_to_json(source)))) == source
    assert hash(source)


def jpeg(k: int) -> bytes:
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(np.full((8, 9, 3), 20 * k, np.uint8)).save(out, "JPEG")
    return out.getvalue()


@pytest.fixture
def shards(tmp_path: Path) -> Callable[[int], Path]:
    def make(number: int) -> Path:
        some = [{"__key__": f"{number}-{k}", "jpg": jpeg(k), "cls": k, "bin": bytes([number, k])} for k in range(4)]
        return written(tmp_path / "tars" / f"{number}.tar", some)

    return make


def test_a_catalog_keeps_the_index_and_streams_read_the_tars(tmp_path: Path, shards: Callable[[int], Path]) -> None:
    shards(0), shards(1)
    catalog = connect(tmp_path / "catalog")
    catalog.register("tars", WebDataset(tmp_path / "tars"), identity="__key__")
    sampled = catalog.table("tars").sample(identity="__key__", order=Sequential())
    fields = {
        "x": Stack("jpg", decode="jpeg", transforms=[Resize((4, 4))]),
        "y": Stack("cls"),
        "raw": List("jpg"),
        "b": List("bin"),
        "k": List("__key__"),
    }
    with sampled.collate(batch_size=8, fields=fields).to_numpy() as stream:
        [batch] = list(stream)
    assert batch["x"].shape == (8, 3, 4, 4)
    for key, raw, label, data in zip(batch["k"], batch["raw"], batch["y"], batch["b"], strict=True):
        assert raw == jpeg(label)
        assert data == bytes([int(key[0]), label])
    table = catalog.table("tars").to_arrow()
    assert table["__file__"].to_pylist() == ["0.tar"] * 4 + ["1.tar"] * 4
    assert table["__index_in_file__"].to_pylist() == [0, 1, 2, 3] * 2


def test_refresh_reads_tars_that_came_and_changed_ones_are_noticed(
    tmp_path: Path, shards: Callable[[int], Path]
) -> None:
    path = shards(0)
    catalog = connect(tmp_path / "catalog")
    catalog.register("tars", WebDataset(tmp_path / "tars"), identity="__key__")
    assert catalog.verify("tars").sound
    shards(1)
    catalog.refresh("tars")
    assert len(catalog.table("tars").to_arrow()) == 8
    data = bytearray(path.read_bytes())
    data[700] ^= 1
    path.write_bytes(data)
    assert not catalog.verify("tars").sound


def test_nothing_half_imported_is_left_visible_and_skipped_rows_are_told(
    tmp_path: Path, shards: Callable[[int], Path]
) -> None:
    shards(0)
    members(tmp_path / "tars" / "1.tar", [("a.cls", b"1"), ("b.cls", b"dog")])
    catalog = connect(tmp_path / "catalog")
    with pytest.raises(SourceError, match="dog"):
        catalog.register("tars", WebDataset(tmp_path / "tars", columns=["cls"]), identity="__key__")
    assert catalog.tables() == []
    with pytest.warns(SpiralWarning, match="1 rows could not be read"):
        catalog.register("tars", WebDataset(tmp_path / "tars", columns=["cls"], on_error="skip"), identity="__key__")
    assert len(catalog.table("tars").to_arrow()) == 5


def test_the_laws_of_sources_hold(tmp_path: Path) -> None:
    for k in range(3):
        some = samples(5, k)
        some[1].pop("seg.png")
        written(tmp_path / "images" / f"{k}.tar", some)
        written(tmp_path / "depth" / f"{k}.tar", [{"__key__": each["__key__"], "txt": "d"} for each in some])
    paths = [tmp_path / "images" / "0.tar", tmp_path / "images" / "{1,2}.tar"]
    changed = [{"__key__": each["__key__"], "txt": "e"} for each in samples(5, 1)]
    source = WebDataset(paths, sidecars={"depth": ("/images/", "/depth/")})
    check_source(source, lambda: written(tmp_path / "depth" / "1.tar", changed))


def test_a_member_id_that_holds_text_is_text_and_one_that_holds_numbers_is_a_number(tmp_path: Path) -> None:
    texts = members(tmp_path / "a.tar", [("0.id", b"0012"), ("0.txt", b"x"), ("1.id", b"n01440764_1"), ("2.id", b"7")])
    assert rows(WebDataset(str(texts)))["id"].to_pylist() == ["0012", "n01440764_1", "7"]
    numbers = members(tmp_path / "b.tar", [("0.id", b"12"), ("1.id", b" 7\n"), ("2.sample.id", b"-3")])
    found = rows(WebDataset(str(numbers)))
    assert found["id"].to_pylist() == [12, 7, None]
    assert found["sample_id"].to_pylist() == [None, None, -3]
    assert found.schema.field("id").type == pa.int64()
    late = members(
        tmp_path / "c.tar", [(f"{at:06d}.id", b"x" if at == 29_999 else str(at).encode()) for at in range(30_000)]
    )
    with pytest.raises(SourceError, match=r"029999.*id"):
        rows(WebDataset(str(late)))


NAMES = st.lists(st.text("0123456789+-_ n\n", min_size=1, max_size=4), min_size=1, max_size=9)
SMALL = st.lists(st.integers(-(1 << 63), (1 << 63) - 1).map(str), min_size=1, max_size=4)


@few(60, 400)
@given(texts=NAMES | SMALL)
@example(["0012"])
@example(["0012", "0013"])
@example(["12", "0012"])
def test_a_member_id_says_all_that_its_text_says(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    path = tmp_path_factory.mktemp("tars") / "a.tar"
    members(path, [(f"{at}.id", text.encode()) for at, text in enumerate(texts)])
    found = rows(WebDataset(path))["id"]

    is_number = all(re.fullmatch("0|-?[1-9][0-9]*", text.strip()) for text in texts)
    assert found.type == (pa.int64() if is_number else pa.utf8())
    assert found.to_pylist() == ([int(text) for text in texts] if is_number else texts)
    declared = rows(WebDataset(path, schema={"id": "string"}))["id"]
    assert declared.to_pylist() == texts


@pytest.mark.parametrize("late", ["0012", "+7", "1_000", "n01440764"])
def test_a_late_id_that_is_no_number_is_refused_by_name(tmp_path: Path, late: str) -> None:
    path = members(
        tmp_path / "a.tar", [*[(f"{at}.id", str(at).encode()) for at in range(1001)], ("x.id", late.encode())]
    )
    with pytest.raises(SourceError, match=rf"key 'x'.*column 'id' holds '{re.escape(late)}'.*schema="):
        rows(WebDataset(path))
    catalog = connect(str(tmp_path / "catalog"))
    catalog.register("names", WebDataset(path, schema={"id": "string"}), identity="id")
    assert catalog.table("names").filter(col("id") == late).to_arrow()["__key__"].to_pylist() == ["x"]


def test_numbers_of_other_members_are_as_documented(tmp_path: Path) -> None:
    for field in ("cls", "cls2", "class", "count", "index", "inx"):
        path = members(tmp_path / f"{field}.tar", [(f"0.{field}", b"0012")])
        assert rows(WebDataset(path))[field].to_pylist() == [12]
        assert rows(WebDataset(path, schema={field: "string"}))[field].to_pylist() == ["0012"]
    sidecars = {"other": (str(tmp_path / "main"), str(tmp_path / "side"))}
    members(tmp_path / "main" / "a.tar", [("0.txt", b"x")])
    members(tmp_path / "side" / "a.tar", [("0.id", b"0012")])
    assert rows(WebDataset(tmp_path / "main", sidecars=sidecars))["other_id"].to_pylist() == ["0012"]
    renamed = rows(WebDataset(tmp_path / "side", columns={"name": "id"}))
    assert renamed["name"].to_pylist() == ["0012"]


def test_keys_that_say_nothing_are_no_fault(tmp_path: Path) -> None:
    docs = [{"a": 1, "empty": {}}, {"a": 2, "empty": {"x": None}}] * 600 + [
        {"a": 3, "late": None, "more": {}, "empty": {}}
    ]
    path = members(tmp_path / "a.tar", [(f"{at:04d}.json", json.dumps(doc).encode()) for at, doc in enumerate(docs)])
    found = rows(WebDataset(path))
    assert found["json_a"].to_pylist() == [doc["a"] for doc in docs]
    assert "json_late" not in found.column_names


def test_a_codec_that_is_missing_leaves_no_file_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> None:
        raise pa.ArrowNotImplementedError("Support for codec 'zstd' not built")

    (tmp_path / "0.tar.zst").write_bytes(b"")
    monkeypatch.setattr(pa, "input_stream", missing)
    before = len(list(Path("/dev/fd").iterdir()))
    for _ in range(3):
        with pytest.raises(pa.ArrowNotImplementedError) as caught:
            WebDataset(str(tmp_path)).import_schema(WebDataset(str(tmp_path)).import_units())
        frames = caught.traceback  # hold what the error holds
        assert len(list(Path("/dev/fd").iterdir())) == before, frames
