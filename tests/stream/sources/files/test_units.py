"""What of many and of big files is read at once: the rows, their places and their identities are those of the files."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import spiral_stream as spiral
from spiral_stream.sources import declared_source
from spiral_stream.sources.files import units as pieces
from spiral_stream.testing import check_source

COLUMNS = ["n", "text", "__file__", "__index_in_file__", "__row_id__"]


def as_jsonl(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def as_csv(rows: list[dict[str, Any]]) -> str:
    return "n,text\n" + "".join(f'{row["n"]},"{row["text"]}"\n' for row in rows)


KINDS: dict[str, tuple[Callable[[list[dict[str, Any]]], str], dict[str, Any]]] = {
    "jsonl": (as_jsonl, {}),
    "csv": (as_csv, {"newlines_in_values": False}),
}


def written(folder: Path, kind: str, *counts: int) -> dict[str, Any]:
    """Write a file of each count of rows; returns what declares the source."""
    folder.mkdir(parents=True, exist_ok=True)
    form, options = KINDS[kind]
    for k, count in enumerate(counts):
        rows = [{"n": 1000 * k + n, "text": "x" * (n % 7)} for n in range(count)]
        (folder / f"{k:03d}.{kind}").write_text(form(rows))
    return {"kind": kind, "path": str(folder), **options}


def rows_of(catalog: spiral.Catalog) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = catalog.table("rows").project(*COLUMNS).to_arrow().to_pylist()
    return sorted(found, key=lambda row: row["n"])


def registered(root: Path, declared: dict[str, Any], **more: Any) -> spiral.Catalog:
    catalog = spiral.connect(str(root))
    catalog.register("rows", declared_source(declared), identity=spiral.RowIdentity(), **more)
    return catalog


@pytest.mark.parametrize("kind", KINDS)
def test_a_big_file_is_read_in_parts_and_its_rows_are_those_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    declared = written(tmp_path / "in", kind, 90, 3)
    whole = rows_of(registered(tmp_path / "whole", declared))
    monkeypatch.setattr(pieces, "RANGE_BYTES", 400)
    parts = registered(tmp_path / "parts", declared)

    assert rows_of(parts) == whole
    assert [row["__index_in_file__"] for row in whole] == [*range(90), *range(3)]
    shards = parts.entry("rows").manifest().shard_names.to_pylist()
    assert len(shards) > 3
    assert shards[:2] == [f"000.{kind}#0000", f"000.{kind}#0001"]
    late = parts.table("rows").filter((spiral.col("__index_in_file__") >= 88) & (spiral.col("n") < 1000))
    assert late.to_arrow()["n"].to_pylist() == [88, 89]
    check_source(declared_source(declared))


def test_many_small_files_are_one_shard_and_a_new_one_changes_no_identity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = written(tmp_path / "in", "jsonl", 4, 0, 3, 5)
    alone = rows_of(registered(tmp_path / "alone", declared))
    monkeypatch.setattr(pieces, "FEW_FILES", 2)
    catalog = registered(tmp_path / "joined", declared)

    assert rows_of(catalog) == alone
    assert catalog.entry("rows").manifest().shard_names.to_pylist() == ["000.jsonl"]
    written(tmp_path / "new", "jsonl", 0, 2)
    shutil.copy(tmp_path / "new" / "001.jsonl", tmp_path / "in" / "002a.jsonl")
    catalog.refresh("rows")
    found = rows_of(catalog)
    assert [row for row in found if row["__file__"] != "002a.jsonl"] == alone
    assert len({row["__row_id__"] for row in found}) == len(alone) + 2
    check_source(declared_source(declared))


def test_small_files_that_are_few_stay_shards_of_their_own(tmp_path: Path) -> None:
    catalog = registered(tmp_path / "catalog", written(tmp_path / "in", "jsonl", 2, 2, 2))

    assert len(catalog.entry("rows").manifest().shard_names) == 3


def test_a_file_whose_fields_may_hold_line_ends_is_read_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "RANGE_BYTES", 40)
    (tmp_path / "rows.csv").write_text("n,text\n" + '1,"two\nlines"\n' * 20)
    source = spiral.sources.Csv(tmp_path / "rows.csv")
    assert len(source.import_pieces(source.import_units())) == 1

    broken = {"kind": "csv", "path": str(tmp_path / "rows.csv"), "newlines_in_values": False}
    with pytest.raises(
        spiral.errors.SourceError, match=r"line 2: .*a quote is not closed in its line.*newlines_in_values=False"
    ):
        registered(tmp_path / "catalog", broken)


def test_a_packed_file_is_read_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import gzip

    monkeypatch.setattr(pieces, "RANGE_BYTES", 20)
    (tmp_path / "rows.jsonl").write_bytes(gzip.compress(as_jsonl([{"n": k} for k in range(500)]).encode()))
    source = spiral.sources.Jsonl(tmp_path)

    assert len(source.import_pieces(source.import_units())) == 1


def test_a_bad_line_of_a_part_is_named_by_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "RANGE_BYTES", 400)
    declared = written(tmp_path / "in", "jsonl", 90)
    with (tmp_path / "in" / "000.jsonl").open("a") as file:
        file.write("{}}\n")

    with pytest.raises(spiral.errors.SourceError, match=r"000\.jsonl, line 91: it is no JSON"):
        registered(tmp_path / "catalog", declared)
    with pytest.warns(spiral.SpiralWarning, match="1 rows could not be read"):
        catalog = registered(tmp_path / "catalog", {**declared, "on_error": "skip"})
    [row] = catalog.refused("rows").to_pylist()
    line, begin = (int(word) for word in row["place"].split() if word.isdigit())
    data = (tmp_path / "in" / "000.jsonl").read_bytes()
    first = data.index(b"\n", begin - 1) + 1
    assert data[first:].split(b"\n")[line - 1] == row["data"] == b"{}}"
