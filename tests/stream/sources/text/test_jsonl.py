import gzip
import io
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.errors import SourceError
from spiral_stream.sources import ImportUnit, Jsonl, Refused
from spiral_stream.sources.text import jsonl
from spiral_stream.sources.text.json_arrays import json_blocks
from spiral_stream.sources.text.lines import Block
from tests.fixtures.imports import left_out, rows_of

TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
ROWS = st.lists(
    st.fixed_dictionaries(
        {"id": st.integers(-(1 << 63), (1 << 63) - 1), "text": TEXTS},
        optional={
            "score": st.none() | st.floats(allow_nan=False, allow_infinity=False),
            "tags": st.none() | st.lists(TEXTS, max_size=3),
            "meta": st.none() | st.fixed_dictionaries({"lang": TEXTS, "ok": st.booleans()}),
        },
    ),
    min_size=1,
    max_size=20,
)
FULL = {"id": 1, "text": "x", "score": 0.5, "tags": ["t"], "meta": {"lang": "en", "ok": True}}
SCHEMA = {
    "id": "int64",
    "text": "string",
    "score": "double",
    "tags": ("list", "string"),
    "meta": ("struct", ("lang", "string"), ("ok", "bool")),
}


def written(path: Path, rows: list[dict[str, Any]], **how: Any) -> Path:
    path.write_text("".join(json.dumps(row, **how) + "\n" for row in rows), encoding="utf-8", newline="")
    return path


def without_nulls(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if value is not None} for row in rows]


@given(rows=ROWS, ascii_only=st.booleans())
def test_rows_are_what_json_wrote(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]], ascii_only: bool
) -> None:
    path = written(tmp_path_factory.mktemp("jsonl") / "rows.jsonl", [*rows, FULL], ensure_ascii=ascii_only)
    for source in (Jsonl(path), Jsonl(path, schema=SCHEMA)):
        assert without_nulls(rows_of(source).to_pylist()) == without_nulls([*rows, FULL])


@pytest.mark.parametrize("packed", [".jsonl", ".ndjson.gz", ".json.zst"])
def test_a_file_of_pandas_and_one_of_polars_are_read_as_they_read_them(tmp_path: Path, packed: str) -> None:
    frame = pd.DataFrame({"n": range(500), "x": [k / 7 for k in range(500)], "s": [f'ä{k}\n"' for k in range(500)]})
    (tmp_path / "pandas").mkdir()
    (tmp_path / "polars").mkdir()
    frame.to_json(tmp_path / "pandas" / f"rows{packed}", orient="records", lines=True, double_precision=15)
    text = io.BytesIO()
    pl.from_pandas(frame).write_ndjson(text)
    pack = {"gz": gzip.compress, "zst": zstandard.compress}.get(packed.rsplit(".", 1)[1], lambda data: data)
    (tmp_path / "polars" / f"rows{packed}").write_bytes(pack(text.getvalue()))

    expected = pd.read_json(tmp_path / "pandas" / f"rows{packed}", lines=True, precise_float=True)
    assert rows_of(Jsonl(tmp_path / "pandas")).to_pandas().equals(expected)
    assert rows_of(Jsonl(tmp_path / "polars")).to_pydict() == pl.read_ndjson(text.getvalue()).to_dict(as_series=False)


@given(rows=ROWS, cut=st.integers(0, 20))
def test_files_one_after_the_other_are_their_rows_one_after_the_other(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]], cut: int
) -> None:
    folder = tmp_path_factory.mktemp("files")
    whole = written(folder / "whole.jsonl", rows)
    written(folder / "part-0.jsonl", rows[:cut])
    (folder / "part-1.jsonl.gz").write_bytes(gzip.compress(written(folder / "rest.txt", rows[cut:]).read_bytes()))
    parts = [folder / "part-0.jsonl", folder / "part-1.jsonl.gz"]

    expected = rows_of(Jsonl(whole, schema=SCHEMA))
    for paths in (parts, parts[::-1], folder / "part-*", folder / "part-{0.jsonl,1.jsonl.gz}"):
        assert rows_of(Jsonl(paths, schema=SCHEMA)).equals(expected)


def test_types_are_widened_over_the_lines_and_files_that_are_looked_at(tmp_path: Path) -> None:
    written(tmp_path / "a.jsonl", [{"n": 1, "x": None, "new": {}}, {"n": 2, "x": [1], "never": {}}])
    written(tmp_path / "b.jsonl", [{"n": 2.5, "x": [None, 1.5], "new": {"k": "v"}}])
    assert rows_of(Jsonl(tmp_path)).schema == pa.schema(
        [("n", pa.float64()), ("x", pa.list_(pa.float64())), ("new", pa.struct([("k", pa.utf8())]))]
    )


def test_a_key_that_is_new_and_says_nothing_is_no_fault(tmp_path: Path) -> None:
    written(tmp_path / "a.jsonl", [{"n": 1, "m": {"x": 1}, "l": [{"y": 1}], "empty": {}, "of": [{}]}])
    source = Jsonl(tmp_path)
    columns = source.import_schema(source.import_units())
    written(
        tmp_path / "a.jsonl",
        [
            {"n": 2, "m": {"x": 2, "new": None, "e": {}}, "l": [{"y": 2, "z": None}], "q": None, "w": {"v": None}},
            {"n": 3, "empty": {}, "of": [{}, {}]},
            {"n": 4, "empty": {"now": 1}},
            {"n": 5, "of": [{"now": 1}]},
            {"n": 6, "m": {"new": 1}},
            {"n": 7, "new": []},
        ],
    )
    [unit] = source.import_units()
    refused = Refused(unit, "skip")
    found = pa.Table.from_batches(source.import_rows(unit, columns, refused))

    assert columns.names == ["n", "m", "l"]
    assert found.to_pylist() == [{"n": 2, "m": {"x": 2}, "l": [{"y": 2}]}, {"n": 3, "m": None, "l": None}]
    assert [text.split("field ")[1].split(" is")[0] for text in refused.examples] == [
        "'empty'",
        "'of'",
        "'m.new'",
        "'new'",
    ]


@pytest.mark.parametrize("name", ["a.b", "a`b", "*", "_rowid", ""])
def test_a_key_that_no_column_is_called_is_refused_with_a_way_out(tmp_path: Path, name: str) -> None:
    written(tmp_path / "a.jsonl", [{"n": 1, name: 2}])
    with pytest.raises(
        SourceError, match=r"a\.jsonl: a column is called '.*', and names have no dot.*Rename it, or leave it out"
    ):
        rows_of(Jsonl(tmp_path))
    assert rows_of(Jsonl(tmp_path, schema={"n": "int64"})).to_pydict() == {"n": [1]}


def test_a_declared_schema_leaves_other_keys_out_and_casts(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", [{"v": [1, 2], "t": "2026-11-23T01:02:03Z", "more": [{}]}, {"v": None}])
    schema = pa.schema([("t", pa.timestamp("us", "UTC")), ("v", pa.list_(pa.float16(), 2)), ("gone", pa.int8())])
    found = rows_of(Jsonl(path, schema=schema))

    assert found.schema == schema
    assert [(row["v"], row["gone"]) for row in found.to_pylist()] == [([1.0, 2.0], None), (None, None)]
    assert found["t"].to_pylist()[0].isoformat() == "2026-11-23T01:02:03+00:00"


def test_line_ends_blank_lines_and_a_byte_order_mark_are_no_rows(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n\n \t\r\n  {"a": 2}\n\n{"a": 3}')
    assert rows_of(Jsonl(tmp_path / "a.jsonl")).to_pydict() == {"a": [1, 2, 3]}


BAD = {
    '{"a": 1.5}': r"column 'a' holds 1\.5 \(double\), and is int64",
    '{"a": "x"}': "column 'a' holds 'x'.*and is int64",
    '{"a": 9223372036854775808}': "holds 9223372036854775808.*is int64",
    '{"b": 1}': r"field 'b' is in none.*schema=",
    '{"a": 1': r"no JSON: .* at column 8",
    "{'a': 1}": "no JSON: .* at column 2",
    '{"a": 1} {"a": 2}': "Extra data at column 10",
    '{"a": 1} null': "no JSON: Extra data",
    "null": "it holds None",
    "[1]": r"it holds \[1\], and a line holds one object",
    "5": "it holds 5",
    '{"a": 1, "a": 2}': "specified twice",
    '{"a": \xff}': "byte 7 .* not UTF-8",
    '{"a": 1}\x00': "no JSON",
}


@pytest.mark.parametrize("line", BAD)
def test_a_line_that_is_no_row_is_named_or_left_out(tmp_path: Path, line: str) -> None:
    good = [b'{"a": 1}'] * 700
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"\n".join([*good, line.encode("latin-1"), b'{"a": null}', b""]))
    schema = None if "'b'" in BAD[line] else {"a": "int64"}
    source = Jsonl(path, schema=schema)
    units = source.import_units()
    columns = pa.schema([("a", pa.int64())])
    with pytest.raises(SourceError, match=rf"rows\.jsonl, line 701: .*{BAD[line]}.*on_error=\"skip\""):
        list(source.import_rows(units[0], columns, Refused(units[0])))
    refused = Refused(units[0], "skip")
    found = pa.Table.from_batches(source.import_rows(units[0], columns, refused))

    assert found["a"].to_pylist() == [1] * 700 + [None]
    assert (refused.count, len(refused.examples)) == (1, 1)


def test_which_lines_are_rows_does_not_depend_on_the_block_that_they_are_in(tmp_path: Path) -> None:
    rng = random.Random(0)
    pieces = ["null", "{", "}", "[", "]", ",", ":", '"', "1", "-1.5", "true", "\n", "\r\n", " ", '{"a":1}', '{"s":"x"}']
    pieces += ['{"l":[1,null]}', '{"st":{"x":1}}', '{"st":null}', '"a"', "\\", "\x00", "NaN", '{"l":{}}', "}null", "\t"]
    schema = pa.schema(
        [("a", pa.int64()), ("s", pa.utf8()), ("l", pa.list_(pa.float64())), ("st", pa.struct([("x", pa.int8())]))]
    )
    for _ in range(300):
        lines = "".join(rng.choices(pieces, k=rng.randint(1, 12))).encode().split(b"\n")
        together, apart = ([], []), ([], [])
        for parts, (rows, left) in (
            ([Block(1, b"\n".join(lines))], together),
            ([Block(k, line) for k, line in enumerate(lines, 1)], apart),
        ):
            refused = Refused(ImportUnit("u", "u", 0, "0" * 32), "skip")
            reader = jsonl.JsonLines(schema, refused, known_only=True)
            rows.extend(row for block in parts for table in reader.tables(block) for row in table.to_pylist())
            left.extend(refused.examples)
        assert repr(together) == repr(apart), lines


def test_mixed_types_in_the_first_lines_say_which_line_and_column(tmp_path: Path) -> None:
    written(tmp_path / "a.jsonl", [{"m": {"k": 1}}, {"m": {"k": "x"}}])
    with pytest.raises(
        SourceError, match=r"a\.jsonl, line 2: column 'm\.k' holds string, and int64 before\. .*schema="
    ):
        rows_of(Jsonl(tmp_path))


@pytest.mark.parametrize("text", ["", "\n\n", "{}\n"])
def test_files_without_columns_ask_for_them(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.jsonl").write_text(text)
    with pytest.raises(SourceError, match=r"no line of .*a\.jsonl has keys\. Give the columns: schema="):
        rows_of(Jsonl(tmp_path))
    assert len(rows_of(Jsonl(tmp_path, schema={"a": "int64"}))) == len(text.replace("\n", "")) // 2


def test_one_json_array_says_what_a_line_would_be(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('[\n{"a": 1},\n{"a": 2}\n]\n')
    with pytest.raises(SourceError, match=r"line 1: .*one JSON array: write one object per line"):
        rows_of(Jsonl(tmp_path))


def test_a_line_nested_deeply_is_refused_or_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n{"a": ' + "[" * 100_000 + "]" * 100_000 + "}\n")
    with pytest.raises(SourceError, match="line 2: it is nested too deeply"):
        rows_of(Jsonl(tmp_path))
    assert rows_of(Jsonl(tmp_path, on_error="skip")).to_pydict() == {"a": [1]}


def test_a_cut_off_last_line_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n{"a": 2')
    assert left_out(Jsonl(tmp_path, on_error="skip"))[0].startswith(f"{tmp_path}/a.jsonl, line 2: it is no JSON")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"on_error": "ignore"}, 'Jsonl: on_error=.*Give "raise" or "skip"'),
        ({"schema": {"a": pa.duration("s")}}, "column 'a' is duration.*JSON is not read as"),
        ({"schema": {"a": ("list", ("decimal128", 3, 1)), "b": "month_interval"}}, "column 'b' is|unknown type"),
        ({"allow_outside": 3}, "Give True or False"),
    ],
)
def test_a_wrong_option_is_refused_at_once(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(SourceError, match=said):
        Jsonl(tmp_path, **options)


def test_a_catalog_reads_new_and_changed_files_alone_and_says_what_was_left_out(tmp_path: Path) -> None:
    written(tmp_path / "data-0.jsonl", [{"id": k, "s": "x"} for k in range(5)])
    catalog = sp.connect(tmp_path / "catalog")
    catalog.register("rows", Jsonl(tmp_path / "data-*.jsonl", on_error="skip"), identity="id")
    (tmp_path / "data-1.jsonl").write_text('{"id": 7, "s": "y"}\n{"id": 8, "s": 9}\n')
    with pytest.warns(sp.SpiralWarning, match=r"1 rows could not be read.*data-1\.jsonl, line 2: column 's' holds 9"):
        catalog.refresh("rows")
    found = catalog.table("rows").to_arrow().sort_by("id")

    assert found["id"].to_pylist() == [0, 1, 2, 3, 4, 7]
    assert found["__file__"].to_pylist() == ["data-0.jsonl"] * 5 + ["data-1.jsonl"]


def test_references_start_at_the_common_folder_or_at_the_base(tmp_path: Path) -> None:
    written(tmp_path / "a.jsonl", [{"a": 1}])
    assert (Jsonl(tmp_path / "a.jsonl").base, Jsonl(tmp_path / "a.jsonl").allow_outside) == (str(tmp_path), True)
    confined = Jsonl(tmp_path / "a.jsonl", base=tmp_path / "images")
    assert (confined.base, confined.allow_outside) == (str(tmp_path / "images"), False)


MEMORY = """
import resource, sys
from spiral_stream.sources.text.jsonl import Jsonl
from spiral_stream.sources.import_source import Refused
source = Jsonl(sys.argv[1], schema={"a": "int64", "s": "string"})
[unit] = source.import_units()
schema = source.import_schema([unit])
next(source.import_rows(unit, schema, Refused(unit)))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(sum(len(batch) for batch in source.import_rows(unit, schema, Refused(unit))))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""


def test_memory_holds_a_few_blocks_of_a_large_file(tmp_path: Path) -> None:
    line = json.dumps({"a": 1, "s": "x" * 1000}).encode() + b"\n"
    with gzip.open(tmp_path / "a.jsonl.gz", "wb", compresslevel=1) as file:
        for _ in range(200):
            file.write(line * 1000)
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(tmp_path / "a.jsonl.gz")], capture_output=True, text=True, check=True
    )
    rows, more = map(int, done.stdout.split())

    assert rows == 200_000
    assert more < 60, "MiB of 200"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
@given(
    values=st.lists(
        st.fixed_dictionaries(
            {"text": st.text(max_size=30), "n": st.integers(-(2**53), 2**53), "x": st.lists(st.text(max_size=5))}
        ),
        min_size=1,
        max_size=30,
    ),
    indent=st.sampled_from([None, 0, 2]),
    ascii_only=st.booleans(),
    ending=st.sampled_from(["", ".gz"]),
    size=st.sampled_from([7, 64, 1 << 20]),
)
def test_a_file_of_one_array_gives_the_rows_of_its_lines(
    values: list[Any], indent: int | None, ending: str, size: int, tmp_path: Path, *, ascii_only: bool
) -> None:
    schema = {"text": "string", "n": "int64", "x": ("list", "string")}
    written = json.dumps(values, indent=indent, ensure_ascii=ascii_only).encode()
    place = tmp_path / f"array.json{ending}"
    place.write_bytes(gzip.compress(written) if ending else written)
    source = Jsonl(str(place), schema=schema)
    assert rows_of(source).to_pylist() == values
    [unit] = source.import_units()
    found = [
        json.loads(line)
        for block in json_blocks(unit, Refused(unit, "raise"), size)
        for line in block.data.splitlines()
    ]
    assert found == values


@pytest.mark.parametrize("text", ['[{"a": 1}', '[{"a": 1} {"a": 2}]', '[{"a": 1},]', '[{"a": 1}] x', '[{"a": tru}]'])
def test_a_damaged_array_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(SourceError, match=r"its JSON array is damaged after \d objects.* write one object per line"):
        rows_of(Jsonl(str(tmp_path / "a.json")))
