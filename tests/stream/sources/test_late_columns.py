"""What the first look at files did not see: refused by name with the way out, and read where ``schema=`` says it."""

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import typer.main
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import spiral_stream as sp
from spiral_stream.commands import cli
from spiral_stream.commands.command_words import typed
from spiral_stream.errors import SourceError
from spiral_stream.semantic import SHAPE, semantic_of
from spiral_stream.sources.mds import samples as mds_samples
from spiral_stream.sources.mds import source as mds
from spiral_stream.sources.mds.encodings import ARRAY_TYPES
from spiral_stream.sources.references.resolve import payload
from spiral_stream.sources.serialize import source_from_json, source_to_json
from spiral_stream.sources.tar import webdataset
from spiral_stream.sources.text import jsonl
from spiral_stream.testing import check_source
from tests.fixtures.examples import few
from tests.fixtures.imported_rows import rows_of
from tests.stream.sources.mds.test_source import shard
from tests.stream.sources.tar.test_webdataset import members
from tests.stream.sources.test_mosaic import write_lines

Row = dict[str, Any]
Member = tuple[str, bytes]
Form = tuple[Any, str, Sequence[Row]]  # the source, what columns begin with, and the rows
WAY_OUT = r'schema=\{"name": "type", \.\.\.\}'
INTEGERS = st.integers(-(1 << 63), (1 << 63) - 1)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
LATE: list[tuple[Any, st.SearchStrategy[Any]]] = [
    ("int64", INTEGERS),
    ("double", FLOATS),
    ("string", st.text(max_size=5)),
    ("bool", st.booleans()),
    (("list", "double"), st.lists(FLOATS, min_size=1, max_size=3)),
    (("struct", ("x", "string"), ("y", ("list", "int64"))), st.fixed_dictionaries({"x": st.text(max_size=3)})),
]
EARLY = 4  # rows that are looked at


@pytest.fixture(autouse=True)
def looks_at_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webdataset, "ROWS", EARLY)
    monkeypatch.setattr(webdataset, "OTHERS", 1)
    monkeypatch.setattr(mds, "LOOKED_AT", 1)
    monkeypatch.setattr(jsonl, "SAMPLE_BYTES", 0)  # then 2^18 of each file
    monkeypatch.setattr(mds_samples, "ROWS", EARLY)


# ---- each way to write rows of which a later one has the key "late"; the schema says under which column


def as_tar(folder: Path, rows: Sequence[Row]) -> Form:
    members(folder / "0.tar", [(f"{at:04d}.json", json.dumps(row).encode()) for at, row in enumerate(rows)])
    return sp.sources.WebDataset, "json_", rows


def as_tars(folder: Path, rows: Sequence[Row]) -> Form:
    """A tar per row, of which the first row of some is looked at."""
    written = []
    for at, row in enumerate(rows):
        both = [{"early": 0}, row] if "late" in row else [row]
        members(folder / f"{at:03d}.tar", [(f"{k}.json", json.dumps(each).encode()) for k, each in enumerate(both)])
        written += both
    return sp.sources.WebDataset, "json_", written


def as_mds(folder: Path, rows: Sequence[Row]) -> Form:
    write_shards(folder, [([[json.dumps(row).encode()] for row in rows], {"m": "json"}, [None])])
    return sp.sources.Mds, "m_", rows


def as_lines_of_mosaic(folder: Path, rows: Sequence[Row]) -> Form:
    write_lines(folder, "json", {"early": "int"}, list(rows), whole=True)
    return sp.sources.Mds, "", rows


def as_lines_by_jsonl(folder: Path, rows: Sequence[Row]) -> Form:
    write_lines(folder, "json", {"early": "int"}, list(rows), whole=True)
    return sp.sources.Jsonl, "", rows


def as_lines(folder: Path, rows: Sequence[Row]) -> Form:
    lines = [json.dumps(row) for row in rows]
    lines[0] += " " * (1 << 18)  # no other line is looked at
    (folder / "a.jsonl").write_text("\n".join(lines))
    return sp.sources.Jsonl, "", rows


def as_one_array(folder: Path, rows: Sequence[Row]) -> Form:
    (folder / "a.json").write_text(json.dumps([{**rows[0], "pad": "x" * (1 << 18)}, *rows[1:]]))
    return sp.sources.Jsonl, "", rows


def write_shards(folder: Path, shards: Sequence[tuple[Any, dict[str, str], Any]]) -> None:
    entries = []
    for at, (samples, encodings, sizes) in enumerate(shards):
        data, entry = shard(samples, encodings, sizes)
        name = f"shard.{at:05d}.mds"
        (folder / name).write_bytes(data)
        entries.append({**entry, "raw_data": {**entry["raw_data"], "basename": name}})
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": entries}))


FORMS: list[Callable[[Path, Sequence[Row]], Form]] = [
    as_tar,
    as_tars,
    as_mds,
    as_lines_of_mosaic,
    as_lines_by_jsonl,
    as_lines,
    as_one_array,
]


@st.composite
def drawn_rows(draw: st.DrawFn) -> tuple[Any, list[Row]]:
    kind, values = draw(st.sampled_from(LATE))
    early = [{"early": draw(INTEGERS)} for _ in range(EARLY)]
    later: list[Row] = []
    for _ in range(draw(st.integers(1, 5))):
        row: Row = {} if draw(st.booleans()) else {"early": draw(INTEGERS)}
        later.append(row | ({"late": draw(st.none() | values)} if draw(st.booleans()) else {}))
    later.insert(draw(st.integers(0, len(later))), {"early": 5, "late": draw(values)})
    return kind, [*early, *later]


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_nulls(each) for name, each in value.items() if each is not None}
    return value


@pytest.mark.parametrize("write", FORMS)
@few(25, 200)
@given(drawn=drawn_rows(), skips=st.booleans())
def test_a_key_that_first_appears_late_is_refused_by_name_and_read_where_the_schema_says_it(
    tmp_path_factory: pytest.TempPathFactory,
    write: Callable[[Path, Sequence[Row]], Form],
    drawn: tuple[Any, list[Row]],
    skips: bool,
) -> None:
    kind, folder = drawn[0], tmp_path_factory.mktemp("late")
    source, prefix, rows = write(folder, drawn[1])
    names = [f"{prefix}early", f"{prefix}late"]

    if skips:
        left: list[str] = []
        found = rows_of(source(folder, on_error="skip"), left)
        assert found[names[0]].to_pylist() == [row.get("early") for row in rows if row.get("late") is None]
        assert len(left) == sum(row.get("late") is not None for row in rows)
        assert names[1] not in found.column_names
    else:
        with pytest.raises(SourceError, match=rf"late'.*{WAY_OUT}"):
            rows_of(source(folder))
    found = rows_of(source(folder, schema={names[0]: "int64", names[1]: kind})).select(names)
    read = [dict(zip(("early", "late"), row.values(), strict=True)) for row in found.to_pylist()]
    assert list(map(without_nulls, read)) == [without_nulls(row) for row in rows]
    wrong = "bool" if kind != "bool" else "int64"
    with pytest.raises(SourceError, match=r"late.* and is (bool|int64)"):
        rows_of(source(folder, schema={names[0]: "int64", names[1]: wrong}))


# ---- members of tars

MEMBERS: dict[str, tuple[str, Any, Callable[[Any], bytes]]] = {  # field: the type of its column, values, their bytes
    "txt": ("string", st.text(max_size=5), str.encode),
    "cls": ("int64", INTEGERS, lambda value: str(value).encode()),
    "id": ("string", st.text("0123456789_", min_size=1, max_size=5), str.encode),
    "jpg": ("image/jpeg-ref", st.binary(max_size=9), bytes),
    "seg.png": ("image/jpeg-ref", st.binary(max_size=9), bytes),
    "mp4": ("video/h264-ref", st.binary(max_size=9), bytes),
    "npy": ("application/bytes-ref", st.binary(max_size=9), bytes),
}


@few(60, 400)
@given(data=st.data(), packed=st.booleans())
def test_a_member_that_first_appears_late_is_refused_by_name_and_read_where_the_schema_says_it(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, packed: bool
) -> None:
    early = data.draw(st.lists(st.sampled_from(list(MEMBERS)), min_size=1, max_size=3, unique=True))
    late = data.draw(st.sampled_from([field for field in MEMBERS if field not in early]))
    count = data.draw(st.integers(EARLY + 1, EARLY + 5))
    rows: list[Row] = []
    for at in range(count):
        fields = early if at < EARLY else [field for field in (*early, late) if data.draw(st.booleans())]
        rows.append({field: data.draw(MEMBERS[field][1]) for field in fields})
    rows.append({late: data.draw(MEMBERS[late][1])})
    folder = tmp_path_factory.mktemp("late")
    files = [
        (f"{at:03d}.{field}", MEMBERS[field][2](value)) for at, row in enumerate(rows) for field, value in row.items()
    ]
    path = members(folder / "0.tar", files)
    if packed:
        import gzip

        (folder / "0.tar.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()

    column = late.replace(".", "_")
    with pytest.raises(SourceError, match=rf"'{column}', which is in none of the rows .*{WAY_OUT}"):
        rows_of(sp.sources.WebDataset(folder))
    schema = {field.replace(".", "_"): MEMBERS[field][0] for field in (*early, late)}
    source = sp.sources.WebDataset(folder, schema=schema)
    found = rows_of(source)
    assert found.column_names == ["__key__", *schema]
    there = [row for row in rows if row]  # a key without members is no row
    for field in (*early, late):
        values = found[field.replace(".", "_")]
        if "-ref" in MEMBERS[field][0]:
            assert semantic_of(found.schema.field(field.replace(".", "_"))) == MEMBERS[field][0]
        read = payload(values.combine_chunks(), source.base) if "-ref" in MEMBERS[field][0] else values.to_pylist()
        assert list(read) == [row.get(field) for row in there]


# ---- arrays of MDS


def array_bytes(value: np.ndarray[Any, Any], *, says_type: bool) -> bytes:
    code = next(code for code, name in ARRAY_TYPES.items() if name == value.dtype.name)
    head = bytes([code] if says_type else []) + bytes([value.ndim << 2]) + bytes(value.shape)
    return head + value.tobytes()


@few(60, 400)
@given(
    dtype=st.sampled_from(["int32", "float32", "uint8", "float16"]),
    shapes=st.lists(st.lists(st.integers(0, 4), max_size=3), min_size=1, max_size=5).filter(
        lambda some: any(len(shape) != 1 for shape in some)
    ),
    says_type=st.booleans(),
)
def test_a_rank_that_first_appears_late_is_refused_by_name_and_read_where_the_schema_says_it(
    tmp_path_factory: pytest.TempPathFactory, dtype: str, shapes: list[list[int]], says_type: bool
) -> None:
    arrays = [np.arange(at + 1).astype(dtype) for at in range(EARLY)]
    arrays += [np.arange(np.prod(shape, dtype=int)).astype(dtype).reshape(shape) for shape in shapes]
    folder = tmp_path_factory.mktemp("late")
    encoding = "ndarray" if says_type else f"ndarray:{dtype}"
    write_shards(folder, [([[array_bytes(each, says_type=says_type)] for each in arrays], {"a": encoding}, [None])])

    with pytest.raises(
        SourceError, match=rf"a is an array of shape \(.*\), and there is no column of shapes.*{WAY_OUT}"
    ):
        rows_of(sp.sources.Mds(folder))
    inner = {"float16": "halffloat", "float32": "float"}.get(dtype, dtype)
    for kind in (inner, "double"):  # as it is, and as a type that holds its values
        found = rows_of(sp.sources.Mds(folder, schema={"a": ("list", kind), "a_shape": ("list", "int64")}))
        assert found["a"].to_pylist() == [each.ravel().tolist() for each in arrays]
        assert found["a_shape"].to_pylist() == [list(each.shape) for each in arrays]
    with pytest.raises(SourceError, match=r"there is no column of shapes.*\"a_shape\""):
        rows_of(sp.sources.Mds(folder, schema={"a": ("list", inner)}))


def test_an_array_of_another_type_is_read_as_one_that_holds_it(tmp_path: Path) -> None:
    arrays = [np.arange(3, dtype=np.int32)] * (EARLY + 1) + [np.array([1 << 40])]
    write_shards(tmp_path, [([[array_bytes(each, says_type=True)] for each in arrays], {"a": "ndarray"}, [None])])
    with pytest.raises(SourceError, match=rf"is an array of int64, and the column is list<item: int32>\. .*{WAY_OUT}"):
        rows_of(sp.sources.Mds(tmp_path))
    wide = rows_of(sp.sources.Mds(tmp_path, schema={"a": ("list", "int64")}))
    assert wide["a"].to_pylist() == [each.tolist() for each in arrays]
    with pytest.raises(SourceError, match=r"holds 1099511627776 .* and is int32"):
        rows_of(sp.sources.Mds(tmp_path, schema={"a": ("list", "int32")}))
    with pytest.raises(SourceError, match=r"holds 1 items, and is fixed_size_list"):
        rows_of(sp.sources.Mds(tmp_path, schema={"a": ("fixed_size_list", "int64", 3)}))


# ---- columns that some shards or files have


def test_columns_of_later_shards_are_refused_by_name_and_read_where_the_schema_says_them(tmp_path: Path) -> None:
    eight = [None, 8]
    first = [[b"x", np.int64(1).tobytes()]]
    later = [[b"y", np.int32(2).tobytes(), b"bytes"]]
    write_shards(
        tmp_path,
        [
            (first, {"t": "str", "n": "int64"}, eight),
            (later, {"t": "str", "n": "int32", "b": "bytes"}, [None, 4, None]),
        ],
    )
    with pytest.raises(SourceError, match=rf"shard\.00001\.mds has columns .*'b'.*{WAY_OUT}"):
        rows_of(sp.sources.Mds(tmp_path))
    source = sp.sources.Mds(tmp_path, schema={"b": "application/bytes-ref", "n": "int64", "t": "large_string"})
    found = rows_of(source)
    assert found.select(["n", "t"]).to_pydict() == {"n": [1, 2], "t": ["x", "y"]}
    assert payload(found["b"].combine_chunks(), str(tmp_path)) == [None, b"bytes"]
    for schema, message in (
        ({"gone": "string"}, r"'gone', which is no column of the folder; it has t, n, b\. Correct schema="),
        ({"b": "string"}, r"'b' is string, and the index says application/bytes-ref\. Correct schema="),
        ({"t": "image/jpeg-ref"}, r"'t' is image/jpeg-ref, and the index says string\. Correct schema="),
        ({"n": "string"}, r"column 'n' holds 1 \(int64\), and is string"),
        ({"t": "timestamp[s]"}, "sample 0: t "),
    ):
        with pytest.raises(SourceError, match=message):
            rows_of(sp.sources.Mds(tmp_path, schema=schema))


def test_fixed_arrays_keep_their_shape_under_a_schema(tmp_path: Path) -> None:
    one, other = np.arange(6, dtype=np.int32).tobytes(), np.arange(6, 12, dtype=np.int32).tobytes()
    write_shards(tmp_path, [([[one]], {"a": "ndarray:int32:2,3"}, [24]), ([[other]], {"a": "ndarray:int32:2,3"}, [24])])
    found = rows_of(sp.sources.Mds(tmp_path, schema={"a": ("fixed_size_list", "int32", 6)}))
    assert found.schema.field("a").metadata[SHAPE] == b"2,3"
    write_shards(tmp_path, [([[one]], {"a": "ndarray:int32:2,3"}, [24]), ([[other]], {"a": "ndarray:int32:3,2"}, [24])])
    with pytest.raises(SourceError, match=r"arrays of 'a' have several shapes.*\"a_shape\""):
        rows_of(sp.sources.Mds(tmp_path, schema={"a": ("fixed_size_list", "int32", 6)}))
    found = rows_of(sp.sources.Mds(tmp_path, schema={"a": ("list", "int32"), "a_shape": ("list", "int64")}))
    assert found.to_pydict() == {"a": [list(range(6)), list(range(6, 12))], "a_shape": [[2, 3], [3, 2]]}


@few(40, 300)
@given(data=st.data())
def test_a_column_that_some_csv_files_lack_is_refused_by_name_and_null_where_the_schema_says_it(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    kinds: dict[str, tuple[str, st.SearchStrategy[Any]]] = {
        "a": ("int64", INTEGERS),
        "b": ("double", FLOATS),
        "c": ("string", st.text('ab,"\n', max_size=4)),
        "d": ("bool", st.booleans()),
    }
    headers = data.draw(
        st.lists(st.lists(st.sampled_from(list(kinds)), min_size=1, unique=True), min_size=2, max_size=4).filter(
            lambda some: len(set(map(frozenset, some))) > 1
        )
    )
    folder, rows = tmp_path_factory.mktemp("late"), []
    for at, names in enumerate(headers):
        some = [{name: data.draw(kinds[name][1]) for name in names} for _ in range(data.draw(st.integers(1, 3)))]
        out = io.StringIO()
        writer = csv.DictWriter(out, names, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
        writer.writeheader()
        writer.writerows([{n: str(v).lower() if isinstance(v, bool) else v for n, v in row.items()} for row in some])
        (folder / f"{at}.csv").write_text(out.getvalue())
        rows += some
    with pytest.raises(SourceError, match=rf"has (no|a) column '[abcd]'.*{WAY_OUT}"):
        rows_of(sp.sources.Csv(folder))
    there = sorted({name for names in headers for name in names})
    found = rows_of(sp.sources.Csv(folder, schema={name: kinds[name][0] for name in there}))
    assert found.to_pylist() == [{name: row.get(name) for name in there} for row in rows]
    with pytest.raises(SourceError, match=r"no file has a column 'gone'; .*0\.csv has .*Correct schema="):
        rows_of(sp.sources.Csv(folder, schema={"gone": "int64", **{name: kinds[name][0] for name in there}}))


def test_separated_values_of_mosaic_take_a_schema(tmp_path: Path) -> None:
    rows = [{"n": at, "zip": "0012"} for at in range(EARLY)] + [{"n": 2**64 - 1, "zip": "7"}]
    write_lines(tmp_path, "csv", {"n": "int", "zip": "int"}, rows)
    with pytest.raises(SourceError, match=rf"18446744073709551615.*{WAY_OUT}"):
        rows_of(sp.sources.Csv(tmp_path))
    for source in (sp.sources.Csv, sp.sources.Mds):
        found = rows_of(source(tmp_path, schema={"n": "uint64", "zip": "string"}))
        assert found.to_pydict() == {"n": [row["n"] for row in rows], "zip": [row["zip"] for row in rows]}


# ---- what is declared


def test_types_are_read_as_jsonl_reads_them(tmp_path: Path) -> None:
    rows = [{"t": "2026-01-02", "d": 1.5, "f": 0.1, "v": [1, 2], "m": [{"x": 1}]}, {"t": None, "d": 12}]
    schema = {
        "t": pa.timestamp("s"),
        "d": pa.decimal128(20, 2),
        "f": pa.float32(),
        "v": pa.list_(pa.float16(), 2),
        "m": pa.large_list(pa.struct([("x", pa.int8())])),
    }
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    wanted = rows_of(sp.sources.Jsonl(tmp_path / "a.jsonl", schema=schema))
    for write in (as_tar, as_mds, as_lines_of_mosaic):
        (tmp_path / write.__name__).mkdir()
        source, prefix, _ = write(tmp_path / write.__name__, rows)
        found = rows_of(
            source(tmp_path / write.__name__, schema=pa.schema([(f"{prefix}{n}", k) for n, k in schema.items()]))
        )
        found = found.select([f"{prefix}{name}" for name in schema]).rename_columns(list(schema))
        assert found.cast(wanted.schema).equals(wanted)


def test_a_registered_schema_is_taken_again_with_a_column_more(tmp_path: Path) -> None:
    files: list[Member] = [(f"{at:03d}.jpg", b"x") for at in range(EARLY)]
    members(tmp_path / "0.tar", files)
    catalog = sp.connect(str(tmp_path / "catalog"))
    catalog.register("tars", sp.sources.WebDataset(tmp_path / "0.tar"), identity="__key__")
    members(tmp_path / "0.tar", [*files, ("9.jpg", b"y"), ("9.txt", b"late")])
    with pytest.raises(SourceError, match=rf"'txt', which is in none.*{WAY_OUT}"):
        catalog.refresh("tars")
    schema = pa.schema(
        [rows_of(sp.sources.WebDataset(tmp_path / "0.tar", columns=["jpg"])).schema.field("jpg"), ("txt", "string")]
    )
    catalog.register("tars", sp.sources.WebDataset(tmp_path / "0.tar", schema=schema), identity="__key__", replace=True)
    assert catalog.table("tars").to_arrow()["txt"].to_pylist() == [None] * EARLY + ["late"]
    [plan] = [catalog.table("tars").sample(order=sp.Sequential()).collate(batch_size=5, fields={"jpg": sp.List("jpg")})]
    with plan.to_numpy() as stream:
        assert next(iter(stream))["jpg"] == [b"x"] * EARLY + [b"y"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"schema": {"jpg": "jpeg"}}, r"unknown type.*of payload one of image/jpeg-ref"),
        ({"schema": ["jpg"]}, r"Give a pyarrow\.schema"),
        ({"schema": {"a.b": "string"}}, "names have no dot"),
        ({"schema": {"a": pa.duration("s")}}, "column 'a' is duration.*JSON is not read as"),
        ({"schema": {"a": "string"}, "columns": ["b"]}, r"schema= has column 'a', and columns= does not"),
        ({"schema": {"a": "string"}, "columns": ["a", "b"]}, r"columns= has 'b', and schema= does not"),
    ],
)
def test_a_schema_that_cannot_be_meant_is_refused(tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
    for source in (sp.sources.WebDataset, sp.sources.Mds):
        with pytest.raises(SourceError, match=message):
            source(tmp_path, **arguments)


def test_a_schema_is_saved_and_sources_without_one_are_saved_as_before(tmp_path: Path) -> None:
    schema = {"jpg": "image/jpeg-ref", "many": ("list", "image/jpeg-ref"), "n": ("struct", ("a", ("list", "int64")))}
    for source in (sp.sources.WebDataset(tmp_path, schema=schema), sp.sources.Mds(tmp_path, schema=schema)):
        assert source_from_json(json.loads(json.dumps(source_to_json(source)))) == source
        before = source_to_json(replace(source, schema=None))
        assert "schema" not in before
        assert source_from_json(before) == replace(source, schema=None)


def test_the_laws_of_sources_hold_under_a_schema(tmp_path: Path) -> None:
    tars, shards = tmp_path / "tars", tmp_path / "shards"
    shards.mkdir()
    for at in range(3):
        members(tars / f"{at}.tar", [(f"{at}.jpg", b"x"), (f"{at}.txt", b"t")][: at + 1])
    columns = {"txt": "string", "jpg": "image/jpeg-ref"}
    check_source(sp.sources.WebDataset(tars, schema=columns), lambda: members(tars / "1.tar", [("1.txt", b"new")]))
    write_shards(
        shards, [([[b"1"]], {"m": "json"}, [None]), ([[b'{"a": 1}', b"b"]], {"m": "json", "b": "bytes"}, [None] * 2)]
    )
    again = [([[b"[2]"]], {"m": "json"}, [None]), ([[b'{"a": 1}', b"b"]], {"m": "json", "b": "bytes"}, [None] * 2)]
    columns = {"b": "application/bytes-ref", "m_a": "int8"}
    check_source(sp.sources.Mds(shards, schema=columns), lambda: write_shards(shards, again))


def test_what_a_tar_holds_is_what_its_schema_says(tmp_path: Path) -> None:
    members(
        tmp_path / "0.tar", [("0.jpg", b"x"), ("0.txt", b"a"), ("0.json", b'{"k": 1, "more": {}}'), ("1.json", b"[1]")]
    )
    for schema, message in (
        ({"jpg": "string"}, r"column 'jpg' holds an image\. Declare it as \"image/jpeg-ref\""),
        ({"jpg": "application/bytes-ref"}, r"column 'jpg' holds an image\. Declare it as \"image/jpeg-ref\""),
        ({"txt": "image/jpeg-ref"}, r"column 'txt' holds text\. Declare it as what it is"),
        ({"txt": "int64"}, r"column 'txt' holds 'a' \(string\), and is int64"),
        ({"json": "string", "txt": "string"}, r"its keys are columns: json_<key>\. Name those in schema="),
        ({"__key__": "string"}, "which is there always"),
    ):
        with pytest.raises(SourceError, match=message):
            rows_of(sp.sources.WebDataset(tmp_path, schema=schema))
    found = rows_of(
        sp.sources.WebDataset(tmp_path, columns={"x": "txt", "m": "json"}, schema={"m_k": "int8", "x": "large_string"})
    )
    assert found.to_pydict() == {"__key__": ["0", "1"], "m_k": [1, None], "x": ["a", None]}
    with pytest.warns(sp.SpiralWarning, match=r"has a column of schema= \(tyop\).*0\.tar has jpg, txt, json_k"):
        assert rows_of(sp.sources.WebDataset(tmp_path, schema={"tyop": "string"}))["tyop"].null_count == 2


def test_the_command_says_and_takes_the_option(tmp_path: Path) -> None:
    files: list[Member] = [(f"{at:03d}.txt", b"x") for at in range(EARLY)]
    members(tmp_path / "0.tar", [*files, ("9.cls", b"7")])
    words = ["register", "tars", "auto", str(tmp_path / "0.tar"), "--identity", "__key__"]
    words += ["--catalog", str(tmp_path / "catalog")]
    refused = CliRunner().invoke(cli.app, words)
    assert isinstance(refused.exception, SourceError)
    command: Any = typer.main.get_command(cli.app).commands["register"]  # type: ignore[attr-defined]  # a group
    assert """Give the columns: --option 'schema={"name": "type", ...}'""" in typed(str(refused.exception), command)
    done = CliRunner().invoke(cli.app, [*words, "--option", 'schema={"txt": "string", "cls": "int8"}'])
    assert done.exit_code == 0, done.output
    found = sp.connect(str(tmp_path / "catalog")).table("tars").to_arrow()
    assert found["cls"].to_pylist() == [None] * EARLY + [7]
