import csv
import gzip
import io
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.errors import SourceError
from spiral_stream.sources import Csv
from spiral_stream.sources.text import csv as csv_files
from spiral_stream.sources.text import csv_records
from spiral_stream.sources.text import lines as text_blocks
from tests.fixtures.imports import left_out, read_all, rows_of

TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0") | st.sampled_from(',"\n\r\t'), max_size=8)
ROWS = st.lists(st.tuples(st.integers(-(1 << 63), (1 << 63) - 1), TEXTS, st.booleans()), min_size=1, max_size=20)
SCHEMA = {"n": "int64", "text": "string", "flag": "bool"}


def written(path: Path, rows: list[Any], header: bool = True, **how: Any) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, **how).writerows([list(SCHEMA), *rows] if header else rows)
    return path


def as_rows(table: pa.Table) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in table.to_pylist()]


@given(rows=ROWS, ends=st.sampled_from(["\n", "\r\n"]), quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]))
def test_rows_are_what_csv_wrote(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Any], ends: str, quoting: int
) -> None:
    folder = tmp_path_factory.mktemp("csv")
    path = written(folder / "a.csv", rows, lineterminator=ends, quoting=quoting)
    bare = written(folder / "b.tsv", rows, header=False, lineterminator=ends, quoting=quoting, delimiter="\t")

    assert as_rows(rows_of(Csv(path, schema=SCHEMA))) == rows
    assert as_rows(rows_of(Csv(bare, schema=SCHEMA, column_names=list(SCHEMA)))) == rows


@given(rows=ROWS, size=st.integers(1, 64))
def test_rows_do_not_depend_on_the_blocks_that_they_are_read_in(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Any], size: int
) -> None:
    path = written(tmp_path_factory.mktemp("csv") / "a.csv", rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_files, "BLOCK_BYTES", size)
        assert as_rows(rows_of(Csv(path, schema=SCHEMA))) == rows


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".csv.zst"])
def test_a_file_of_pandas_and_one_of_polars_are_read_as_they_read_them(tmp_path: Path, suffix: str) -> None:
    frame = pd.DataFrame(
        {
            "n": range(300),
            "x": [k / 7 for k in range(300)],
            "s": [f'ä, "{k}"\n' for k in range(300)],
            "some": pd.array([None, 5] * 150, dtype="Int64"),
            "ok": [True, False] * 150,
        }
    )
    frame.to_csv(tmp_path / f"pandas{suffix}", index=False)
    pack = {"gz": gzip.compress, "zst": zstandard.compress}.get(suffix.rsplit(".", 1)[1], lambda data: data)
    (tmp_path / f"polars{suffix}").write_bytes(pack(pl.from_pandas(frame).write_csv().encode()))
    expected = pl.from_pandas(frame).to_dict(as_series=False)

    for name in ("pandas", "polars"):
        found = rows_of(Csv(tmp_path / f"{name}{suffix}"))
        assert found.to_pydict() == expected
        assert found.schema.types == [pa.int64(), pa.float64(), pa.utf8(), pa.int64(), pa.bool_()]


def test_a_column_without_a_name_is_called_by_its_place(tmp_path: Path) -> None:
    pd.DataFrame({"a": [5, 6]}).to_csv(tmp_path / "a.csv")
    assert rows_of(Csv(tmp_path / "a.csv")).to_pydict() == {"column_1": [0, 1], "a": [5, 6]}


def test_a_dot_in_a_name_becomes_what_a_column_may_have(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("petal.length,`n`,*\n1.5,2,3\n")
    assert rows_of(Csv(tmp_path)).to_pydict() == {"petal_length": [1.5], "_n_": [2], "_": [3]}
    for options in (
        {"schema": {"petal.length": "double"}},
        {"column_names": ["a.b", "c"]},
        {"column_names": ["_rowid"]},
    ):
        with pytest.raises(SourceError, match=r"a column is called '.*', and names have no dot"):
            Csv(tmp_path, **options)
    (tmp_path / "b.csv").write_text("a.b,a_b\n1,2\n")
    with pytest.raises(SourceError, match="two columns are called 'a_b'"):
        rows_of(Csv(tmp_path / "b.csv"))


def test_types_are_widened_over_files_and_columns_are_found_by_name(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n,x,t,b,e\n1,1,1,true,\n")
    (tmp_path / "b.csv").write_text("t,e,x,n,b\n2026-11-23,,2.5,2,7\n")
    found = rows_of(Csv(tmp_path))

    assert found.schema.types == [pa.int64(), pa.float64(), pa.utf8(), pa.utf8(), pa.utf8()]
    assert found.to_pydict() == {
        "n": [1, 2],
        "x": [1.0, 2.5],
        "t": ["1", "2026-11-23"],
        "b": ["true", "7"],
        "e": ["", ""],
    }


def test_a_declared_schema_takes_its_columns_alone(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n,t,more\n1,2026-11-23 01:02:03,x\nNA,,x\n")
    schema = pa.schema([("t", pa.timestamp("s")), ("n", pa.float32())])
    found = rows_of(Csv(tmp_path / "a.csv", schema=schema))

    assert found.schema == schema
    assert [[None if value is None else str(value) for value in row] for row in as_rows(found)] == [
        ["2026-11-23 01:02:03", "1.0"],
        [None, None],
    ]


def test_texts_stay_as_they_are_and_blank_lines_are_no_rows(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b'\xef\xbb\xbf\r\ns\r\nNA\r\n\r\n""\r\n 5" \r\n\n"x""y"')
    assert rows_of(Csv(tmp_path / "a.csv", schema={"s": "string"})).to_pydict() == {"s": ["NA", "", ' 5" ', 'x"y']}


BAD = {
    "1": "it has 1 fields, and 3 columns are named",
    "1,x,true,5": "it has 4 fields, and 3",
    "q,x,true": "column 'n' holds 'q', and is int64",
    "1.5,x,true": "column 'n' holds '1.5'",
    "1,x,maybe": "column 'flag' holds 'maybe', and is bool",
    "1,\udcff,true": "it is not UTF-8",
}


@pytest.mark.parametrize("row", BAD)
def test_a_row_that_cannot_be_read_is_named_by_its_line_or_left_out(tmp_path: Path, row: str) -> None:
    good = '1,"a\nb",true\n'
    text = "n,text,flag\n" + good * 300 + "\n" + row + "\n" + good
    (tmp_path / "a.csv").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(SourceError, match=rf"a\.csv, line 603: {BAD[row]}.*on_error"):
        rows_of(Csv(tmp_path, schema=SCHEMA))
    found, [refused] = read_all(Csv(tmp_path, schema=SCHEMA, on_error="skip"))

    assert (len(found), refused.count) == (301, 1)


def test_a_quote_that_is_never_closed_is_named_where_it_opens(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('n,text,flag\n1,"x",true\n2,"y,true\n3,z,false\n')
    said = r"a\.csv, line 3: a quote opens before .*y,true.* not closed before the end of the file.*quote=None"
    with pytest.raises(SourceError, match=said):
        rows_of(Csv(tmp_path, schema=SCHEMA))
    assert as_rows(rows_of(Csv(tmp_path, schema=SCHEMA, on_error="skip"))) == [(1, "x", True)]
    assert as_rows(rows_of(Csv(tmp_path, schema=SCHEMA, quote=None)))[1] == (2, '"y', True)


def test_a_row_beyond_the_limit_is_refused_with_the_quote_that_made_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_records, "LINE_BYTES", 1 << 16)
    monkeypatch.setattr(csv_files, "BLOCK_BYTES", 1 << 12)
    monkeypatch.setattr(text_blocks, "BLOCK_BYTES", 1 << 12)
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b'n\n1\n"' + b"2\n" * (1 << 20)))
    with pytest.raises(SourceError, match=r"a\.csv\.gz, line 3: the row is longer than 0 MiB.*A quote opens there"):
        rows_of(Csv(tmp_path, schema={"n": "int64"}))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,a\n1,2\n", "two columns are called 'a'"),
        ("a,b\r1,2\r", "carriage returns alone"),
        ("", "have no rows.*schema="),
        ("a,b\n", "have no rows"),
        ('"a,b\n1,2\n', "line 1: a quote opens"),
    ],
)
def test_a_file_without_a_table_says_why(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "a.csv").write_text(text, newline="")
    with pytest.raises(SourceError, match=rf"a\.csv.*{said}"):
        rows_of(Csv(tmp_path))


@pytest.mark.parametrize(
    ("second", "said"), [("a\n1\n", "has no column 'b'; it has a"), ("a,b,c\n1,2,3\n", "has a column 'c' that others")]
)
def test_a_file_with_other_columns_is_named(tmp_path: Path, second: str, said: str) -> None:
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    source = Csv(tmp_path)
    columns = source.import_schema(source.import_units())
    (tmp_path / "b.csv").write_text(second)
    unit = source.import_units()[1]
    with pytest.raises(SourceError, match=rf"b\.csv {said}"):
        list(source.import_rows(unit, columns, csv_files.Refused(unit)))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"delimiter": ",,"}, "delimiter=',,'. Give one ASCII character"),
        ({"quote": "ä"}, "quote='ä'"),
        ({"delimiter": "\n"}, "Give one ASCII character"),
        ({"column_names": "ab"}, "Give a list of names"),
        ({"column_names": ["a", "a"]}, "two columns are called 'a'"),
        ({"column_names": ["a", ""]}, "column 2 has no name"),
        ({"schema": {"a": ("list", "int64")}}, "column 'a' is list.*no field is read as"),
        ({"on_error": None}, 'Give "raise" or "skip"'),
    ],
)
def test_a_wrong_option_is_refused_at_once(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(SourceError, match=f"Csv: .*{said}"):
        Csv(tmp_path, **options)


def test_a_catalog_keeps_the_rows_and_their_files(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("id\ts\n1\tx, y\n")
    (tmp_path / "b.csv").write_text('id,s\n2,"x\ny"\n')
    catalog = sp.connect(tmp_path / "catalog")
    catalog.register("rows", sp.sources.Csv([tmp_path / "b.csv", tmp_path / "a.tsv"]), identity="id")
    found = catalog.table("rows").to_arrow().to_pydict()

    assert (found["s"], found["__file__"]) == (["x, y", "x\ny"], ["a.tsv", "b.csv"])
    assert left_out(Csv(tmp_path / "a.tsv")) == []
    assert io.StringIO(str(catalog.table("rows").to_arrow().schema)).readline() == "id: int64\n"
