"""Shards of lines that Mosaic's writers wrote: tests/data/mosaic, with the values that its readers read (write.py there)."""

import gzip
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import example, given
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream import use_storage
from spiral_stream.errors import SourceError
from spiral_stream.sources.detect import source_at
from spiral_stream.sources.mds import source as mds
from spiral_stream.storage.open import store_of
from tests.fixtures import stores
from tests.fixtures.examples import few
from tests.fixtures.fault_proxy import fault_proxy
from tests.fixtures.imported_rows import rows_of
from tests.stream.sources.test_remote import put_all
from tests.stream.sources.test_remote import rows_of as rows_in

DATA = Path(__file__).parents[2] / "data" / "mosaic"
VALUES: dict[str, list[dict[str, Any]]] = json.loads((DATA / "values.json").read_text())
COMPRESSED = ("zstd", "gz", "bz2", "br", "snappy")
JSON_FOLDERS = ("json", "json-newline", *(f"json-{each}" for each in COMPRESSED))
CSV_FOLDERS = ("csv", "tsv", *(f"csv-{each}" for each in COMPRESSED))
SEPARATORS = {"csv": ",", "tsv": "\t"}
Wrote = Callable[[str], Path]


def texts(rows: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Rows whose values can be compared bit for bit."""
    return [{name: repr(value) for name, value in row.items()} for row in rows]


@pytest.mark.parametrize("folder", list(VALUES))
def test_mds_reads_what_mosaic_reads(folder: str) -> None:
    assert texts(rows_of(sp.sources.Mds(DATA / folder)).to_pylist()) == texts(VALUES[folder])


@pytest.mark.parametrize(
    ("kind", "folder"),
    [*((sp.sources.Jsonl, each) for each in JSON_FOLDERS), *((sp.sources.Csv, each) for each in CSV_FOLDERS)],
)
def test_sources_of_lines_read_the_shards_by_their_index(kind: type, folder: str) -> None:
    assert texts(rows_of(kind(DATA / folder)).to_pylist()) == texts(VALUES[folder])


@pytest.mark.parametrize("folder", list(VALUES))
def test_auto_leads_there(folder: str) -> None:
    assert source_at(str(DATA / folder)) == sp.sources.Mds(DATA / folder)


def test_a_source_of_other_lines_says_what_reads_them() -> None:
    for kind, folder in (
        (sp.sources.Jsonl, "csv"),
        (sp.sources.Csv, "json"),
        (sp.sources.Jsonl, "mds-snappy"),
        (sp.sources.Csv, "xsv"),
    ):
        with pytest.raises(SourceError, match=rf"lists shards of \w+\. Read them with Mds\('.*/{folder}'\)"):
            rows_of(kind(DATA / folder))


@pytest.mark.parametrize("how", ["one", "pattern", "list", "index"])
def test_a_shard_that_is_named_alone_is_refused_with_the_folder(how: str) -> None:
    path: Any = {
        "one": DATA / "csv" / "shard.00000.csv",
        "pattern": str(DATA / "csv" / "*.csv"),
        "list": [DATA / "csv" / "shard.00000.csv", DATA / "tsv" / "shard.00000.tsv"],
        "index": str(DATA / "csv" / "*"),
    }[how]
    with pytest.raises(SourceError, match=r"Give the folder alone: Csv\('.*/csv'\), or Mds\('.*/csv'\)"):
        rows_of(sp.sources.Csv(path))


def test_what_an_index_says_is_not_said_again(copied: Wrote) -> None:
    for source in (
        sp.sources.Csv(DATA / "csv", delimiter=";"),
        sp.sources.Csv(DATA / "csv", column_names=["a"]),
        sp.sources.Jsonl(DATA / "json", references=["text"]),
    ):
        with pytest.raises(
            SourceError, match=r"= does not go with shards whose form .*index\.json says\. Leave it out"
        ):
            rows_of(source)
    folder = copied("json")
    (folder / "more.jsonl").write_text('{"id": 1}\n')
    with pytest.raises(
        SourceError, match=r"more\.jsonl is none of the shards that .* lists\. Move it, or name it alone"
    ):
        rows_of(sp.sources.Jsonl(folder))
    assert rows_of(sp.sources.Jsonl(folder / "more.jsonl"))["id"].to_pylist() == [1]


def test_an_index_json_that_is_none_is_a_file_of_rows(tmp_path: Path) -> None:
    for name in ("index.json", "shard.00000.json"):
        (tmp_path / name).write_text('{"id": 1, "shards": []}\n')
    assert len(rows_of(sp.sources.Jsonl(tmp_path))) == 2
    (tmp_path / "a.csv").write_text("id\n5\n")
    assert rows_of(sp.sources.Csv(tmp_path))["id"].to_pylist() == [5]


@pytest.fixture
def copied(tmp_path: Path) -> Wrote:
    def copy(name: str) -> Path:
        shutil.copytree(DATA / name, tmp_path / name)
        return tmp_path / name

    return copy


def test_both_forms_of_a_shard_are_one(copied: Wrote) -> None:
    folder = copied("json-gz")
    for name in ("shard.00000.json", "shard.00000.json.meta"):
        (folder / name).write_bytes(gzip.decompress((folder / f"{name}.gz").read_bytes()))
    for kind in (sp.sources.Jsonl, sp.sources.Mds):
        assert texts(rows_of(kind(folder)).to_pylist()) == texts(VALUES["json-gz"])


def size(folder: Path, name: str) -> int:
    shards = json.loads((folder / "index.json").read_text())["shards"]
    files = [each[key] for each in shards for key in ("raw_data", "raw_meta")]
    return next(int(each["bytes"]) for each in files if each["basename"] == name)


def test_folders_of_folders_follow_each_other(tmp_path: Path) -> None:
    for name in ("json", "json-br"):
        shutil.copytree(DATA / name, tmp_path / name)
    for kind in (sp.sources.Mds, sp.sources.Jsonl):
        assert texts(rows_of(kind(tmp_path)).to_pylist()) == texts([*VALUES["json-br"], *VALUES["json"]])


def test_columns_are_chosen_and_renamed() -> None:
    for folder in ("json", "csv-br"):
        assert rows_of(sp.sources.Mds(DATA / folder, columns=["zip", "id"])).schema.names == ["id", "zip"]
        found = rows_of(sp.sources.Mds(DATA / folder, columns={"caption": "text"}))
        assert found.to_pydict() == {"caption": [each["text"] for each in VALUES[folder]]}
        with pytest.raises(SourceError, match=r"'nothing' is no column of the folder; it has id, text, x, zip"):
            rows_of(sp.sources.Mds(DATA / folder, columns=["nothing"]))


# ---- what differs is refused


@pytest.mark.parametrize("folder", ["json-zstd", "csv", "xsv", "json-snappy"])
@given(place=st.integers(0, 1 << 30), bit=st.integers(0, 7), which=st.integers(0, 1 << 30))
@few(25)
def test_no_flipped_bit_passes_a_hash(
    tmp_path_factory: pytest.TempPathFactory, folder: str, place: int, bit: int, which: int
) -> None:
    copy = tmp_path_factory.mktemp("flip") / folder
    shutil.copytree(DATA / folder, copy)
    files = sorted(path for path in copy.iterdir() if path.name != "index.json")
    path = files[which % len(files)]
    data = bytearray(path.read_bytes())
    data[place % len(data)] ^= 1 << bit
    path.write_bytes(data)

    with pytest.raises(
        SourceError, match=rf"{path.name}: its (sha1|blake2b) is .*Write the folder again, or fetch it again"
    ):
        rows_of(sp.sources.Mds(copy))


LIES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "samples": (lambda shard: shard.update(samples=9), "the meta file has 15 samples, and the index says 9"),
    "bytes": (lambda shard: shard["raw_data"].update(bytes=5), "bytes, and the index says 5"),
    "meta": (lambda shard: shard["raw_meta"].update(basename="x.meta"), r"lists .*x\.meta, which is not there"),
    "newline": (lambda shard: shard.update(newline="|"), r"its first line is .*, and the index says 'id\\tnote"),
    "names": (lambda shard: shard.update(column_names=["id", "other"]), r"the shard says columns .*'note'"),
    "encodings": (
        lambda shard: shard.update(column_encodings=["int", "bytes"]),
        "would be each name once, with str, int",
    ),
    "no newline": (lambda shard: shard.update(newline=""), "has newline ''; it would be a text"),
    "format": (lambda shard: shard.update(format="parquet"), "it would be one of mds, json, csv, tsv, xsv"),
    "compression": (
        lambda shard: shard["raw_data"].update(hashes={"sha1": "0"}),
        "its sha1 is .*, and the index says '0'",
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_an_index_that_lies_is_named(tmp_path: Path, lie: str) -> None:
    change, message = LIES[lie]
    write_lines(
        tmp_path, "tsv", {"id": "int", "note": "str"}, [{"id": k, "note": "x"} for k in range(15)], change=change
    )
    with pytest.raises(SourceError, match=message):
        rows_of(sp.sources.Csv(tmp_path))


def test_data_that_contradict_their_offsets_are_named(tmp_path: Path) -> None:
    rows = [{"id": k, "note": "abc"} for k in range(5)]
    write_lines(tmp_path, "csv", {"id": "int", "note": "str"}, rows)
    path = tmp_path / "shard.00000.csv"
    path.write_bytes(path.read_bytes().replace(b"2,abc\n3", b"2,abc;3"))
    with pytest.raises(SourceError, match=r"sample 2 does not end with .*Write the folder again"):
        rows_of(sp.sources.Mds(tmp_path))
    path.write_bytes(path.read_bytes().replace(b"2,abc;3", b"2,a,c\n3"))
    with pytest.raises(SourceError, match="sample 2: id is one of 3 values of a line, and the index names 2 columns"):
        rows_of(sp.sources.Csv(tmp_path))
    left: list[str] = []
    assert rows_of(sp.sources.Csv(tmp_path, on_error="skip"), left)["id"].to_pylist() == [0, 1, 3, 4]
    assert len(left) == 1


def test_hashes_are_compared_when_a_shard_is_registered_and_never_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[str] = []
    original = mds.need_hashes

    def counted(path: str, file: Any, data: memoryview) -> None:
        compared.append(file.name)
        original(path, file, data)

    monkeypatch.setattr(mds, "need_hashes", counted)
    catalog = sp.connect(str(tmp_path / "catalog"))
    shutil.copytree(DATA / "json-zstd", tmp_path / "shards")
    catalog.register("shards", sp.sources.Jsonl(tmp_path / "shards"), identity="id")
    first = list(compared)
    assert len(set(first)) == 12  # data and meta, raw and packed, of three shards
    assert len(first) == 24  # the look at the columns reads up to four shards
    fields = {"x": sp.Stack("x")}
    with (
        catalog.table("shards")
        .sample(order=sp.GlobalShuffle(1))
        .collate(batch_size=5, fields=fields)
        .to_numpy() as stream
    ):
        assert sum(len(batch["x"]) for batch in stream) == len(VALUES["json-zstd"])
    catalog.refresh("shards")
    assert compared == first


# ---- folders made here, as the writers write them


def write_lines(
    folder: Path,
    form: str,
    columns: dict[str, str],
    rows: list[dict[str, Any]],
    *,
    newline: str = "\n",
    separator: str | None = None,
    change: Callable[[dict[str, Any]], Any] = lambda _: None,
    hashes: tuple[str, ...] = (),
    whole: bool = False,
) -> None:
    """Write one shard as SplitWriter of Mosaic's streaming 0.13.0 does; ``whole`` writes keys that are no column, too."""
    mark = separator or SEPARATORS.get(form, "")
    names = sorted(columns)
    if form == "json":
        head, config = "", {"columns": columns}
        bodies = [json.dumps(row if whole else {name: row[name] for name in columns}, sort_keys=True) for row in rows]
    else:
        head = mark.join(names) + newline
        config = {"column_names": names, "column_encodings": [columns[name] for name in names]}
        config |= {"separator": mark} if form == "xsv" else {}
        bodies = [mark.join(str(row[name]) for name in names) for row in rows]
    samples = [f"{body}{newline}".encode() for body in bodies]
    offsets = np.cumsum([len(head.encode()), *map(len, samples)]).astype("<u4")
    config |= {
        "compression": None,
        "format": form,
        "hashes": list(hashes),
        "newline": newline,
        "size_limit": None,
        "version": 2,
    }
    meta = np.uint32(len(samples)).tobytes() + offsets.tobytes() + json.dumps(config, sort_keys=True).encode()
    files = {f"shard.00000.{form}": head.encode() + b"".join(samples), f"shard.00000.{form}.meta": meta}
    entry: dict[str, Any] = {**config, "samples": len(samples), "zip_data": None, "zip_meta": None}
    for key, (name, data) in zip(("raw_data", "raw_meta"), files.items(), strict=True):
        digests = {
            each: (xxhash.xxh64(data) if each == "xxh64" else hashlib.new(each, data)).hexdigest() for each in hashes
        }
        entry[key] = {"basename": name, "bytes": len(data), "hashes": digests}
        (folder / name).write_bytes(data)
    change(entry)
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": [entry]}, sort_keys=True))


LETTERS = st.text(st.characters(codec="utf-8") | st.sampled_from("\"',;\t\r\\"), max_size=8)
ROWS = st.lists(
    st.fixed_dictionaries(
        {"n": st.integers(-(1 << 63), (1 << 63) - 1), "s": LETTERS, "x": st.floats(), "z.z": LETTERS}
    ),
    min_size=1,
    max_size=12,
)


@given(
    rows=ROWS,
    form=st.sampled_from(["json", "csv", "tsv", "xsv"]),
    newline=st.sampled_from(["\n", "\r\n", "\n\n", "\x1e"]),
    separator=st.sampled_from(["||", ";", "→", "ab"]),
)
@example([{"n": 1, "s": '"open', "x": 0.5, "z.z": ""}], "csv", "\n", ";")
def test_drawn_shards_are_read_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]], form: str, newline: str, separator: str
) -> None:
    folder = tmp_path_factory.mktemp("shards")
    mark = SEPARATORS.get(form, separator if form == "xsv" else "")
    if (
        form != "json"
    ):  # a writer refuses values that hold a separator or a newline; a part of one reads otherwise there too
        for row in rows:
            row |= {name: "".join(c for c in row[name] if c not in mark + newline) for name in ("s", "z.z")}
    columns = {"n": "int", "s": "str", "x": "float", "z.z": "str"}
    write_lines(
        folder,
        form,
        columns,
        rows,
        newline=newline,
        separator=mark if form == "xsv" else None,
        hashes=("sha1", "xxh64"),
    )

    found = rows_of(sp.sources.Mds(folder))

    assert texts(found.to_pylist()) == texts([{name.replace(".", "_"): row[name] for name in columns} for row in rows])
    assert found.schema.types == [pa.int64(), pa.utf8(), pa.float64(), pa.utf8()]


@pytest.mark.parametrize("form", ["json", "csv"])
def test_whole_numbers_above_int64_keep_their_digits(tmp_path: Path, form: str) -> None:
    numbers = [3, (1 << 64) - 1, 1 << 63]
    write_lines(tmp_path, form, {"n": "int"}, [{"n": each} for each in numbers])
    assert rows_of(sp.sources.Mds(tmp_path))["n"].to_pylist() == numbers
    write_lines(tmp_path, form, {"n": "int"}, [{"n": each} for each in (1, 1 << 64)])
    with pytest.raises(SourceError, match=r"18446744073709551616"):
        rows_of(sp.sources.Mds(tmp_path))


@pytest.mark.parametrize("form", ["json", "tsv"])
def test_two_columns_that_would_be_called_alike_are_told_apart(tmp_path: Path, form: str) -> None:
    write_lines(tmp_path, form, {"a.b": "int", "a_b": "str"}, [{"a.b": k, "a_b": f"t{k}"} for k in range(3)])
    with pytest.raises(SourceError, match=r"two columns would be called 'a_b'\. Name them"):
        rows_of(sp.sources.Mds(tmp_path))
    found = rows_of(sp.sources.Mds(tmp_path, columns={"number": "a.b", "text": "a_b"}))
    assert found.to_pydict() == {"number": [0, 1, 2], "text": ["t0", "t1", "t2"]}


def test_truth_values_that_json_calls_int_stay_truth_values(tmp_path: Path) -> None:
    write_lines(tmp_path, "json", {"ok": "int", "s": "str"}, [{"ok": k > 1, "s": "x"} for k in range(4)])
    assert rows_of(sp.sources.Mds(tmp_path))["ok"].to_pylist() == [False, False, True, True]


def test_a_shard_without_samples_has_the_columns_of_the_index(tmp_path: Path) -> None:
    write_lines(tmp_path, "json", {"n": "int", "s": "str"}, [])
    assert rows_of(sp.sources.Mds(tmp_path)).schema.types == [pa.int64(), pa.utf8()]


@pytest.mark.parametrize(
    ("kind", "folder"),
    [
        (sp.sources.Jsonl, "json"),
        (sp.sources.Csv, "csv-zstd"),
        (sp.sources.Mds, "xsv"),
        (sp.sources.Jsonl, "json-snappy"),
    ],
)
def test_shards_on_a_store_have_the_rows_of_local_ones(kind: type, folder: str, tmp_path: Path, bucket: str) -> None:
    put_all(DATA / folder, f"{bucket}/{folder}")
    catalog = sp.connect(str(tmp_path / "catalog"))
    for name, path in (("local", str(DATA / folder)), ("remote", f"{bucket}/{folder}")):
        catalog.register(name, kind(path), identity="id")
    assert repr(rows_in(catalog, "remote")) == repr(rows_in(catalog, "local"))
    assert len(rows_in(catalog, "remote")) == len(VALUES[folder])
    with pytest.raises(SourceError, match=r"Give the folder alone"):
        sp.sources.Csv(f"{bucket}/{folder}/shard.00000.{folder.partition('-')[0]}*").import_units()


def test_a_file_that_is_called_like_a_shard_is_read_where_no_index_can_be_looked_at(
    tmp_path: Path, s3_endpoint: str
) -> None:
    """A bucket that does not tell its names answers 403 for what is not there."""
    uri = f"s3://{stores.new_bucket(s3_endpoint)}"
    with fault_proxy(s3_endpoint) as proxy:
        use_storage("denied", prefix=uri, **stores.options(proxy.address))
        store, key = store_of(f"{uri}/a/shard.00000.csv")
        store.put(key, b"id,s\n1,x\n")
        proxy.set(denied="index.json")
        catalog = sp.connect(str(tmp_path / "catalog"))
        catalog.register("a", sp.sources.Csv(f"{uri}/a/shard.00000.csv"), identity="id")
        assert catalog.table("a").to_arrow()["s"].to_pylist() == ["x"]
        use_storage("denied", prefix=uri)
