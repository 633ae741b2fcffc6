import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spiral_stream import Parquet, col
from spiral_stream.errors import SourceError
from spiral_stream.sources import Known
from spiral_stream.sources.serialize import source_from_json, source_to_json


def write(path: Path, start: int = 0, rows: int = 20, **columns: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table(
        {"id": [f"s{i:03d}" for i in range(start, start + rows)], "n": np.arange(start, start + rows), **columns}
    )
    pq.write_table(table, path, row_group_size=5)


def test_files_come_in_the_order_of_their_names_below_the_common_folder(tmp_path: Path) -> None:
    write(tmp_path / "b" / "part-0.parquet", 20)
    write(tmp_path / "a" / "part-1.parquet", 0)
    for path in (tmp_path, tmp_path / "*" / "part-*.parquet"):
        with Parquet(str(path)).open() as reader:
            assert [unit.name for unit in reader.units()] == ["a/part-1.parquet", "b/part-0.parquet"]
            assert reader.units()[0].groups == (5, 5, 5, 5)
            assert reader.fetch(np.array([0, 20], np.uint64), ["n"])["n"].to_pylist() == [0, 20]
            assert reader.base == str(tmp_path)


def test_one_file_is_called_by_its_own_name(tmp_path: Path) -> None:
    write(tmp_path / "labels.parquet")
    with Parquet(str(tmp_path / "labels.parquet")).open() as reader:
        assert [unit.name for unit in reader.units()] == ["labels.parquet"]


def test_a_fetch_reads_only_the_row_groups_and_columns_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "t.parquet")
    read: list[tuple[int, list[str]]] = []
    original = pq.ParquetFile.read_row_group

    def recorded(self: pq.ParquetFile, i: int, columns: list[str]) -> pa.Table:
        read.append((i, columns))
        return original(self, i, columns=columns)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", recorded)
    with Parquet(str(tmp_path / "t.parquet")).open() as reader:
        first = reader.fetch(np.array([17, 3, 16], np.uint64), ["n"])
        second = reader.fetch(np.array([4, 15], np.uint64), ["n"])

    assert first["n"].to_pylist() == [17, 3, 16]
    assert second["n"].to_pylist() == [4, 15]
    assert read == [(0, ["n"]), (3, ["n"])]


def test_a_scan_leaves_out_row_groups_that_statistics_rule_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "t.parquet")
    read: list[list[int]] = []
    original = pq.ParquetFile.iter_batches

    def recorded(self: pq.ParquetFile, **options: object) -> object:
        read.append(options["row_groups"])
        return original(self, **options)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", recorded)
    with Parquet(str(tmp_path / "t.parquet")).open() as reader:
        found = pa.Table.from_batches(reader.scan(["id"], col("n") >= 12))

    assert found["__row"].to_pylist() == list(range(12, 20))
    assert read == [[2, 3]]


def test_a_changed_file_changes_its_own_content_key_alone(tmp_path: Path) -> None:
    write(tmp_path / "0.parquet")
    write(tmp_path / "1.parquet")
    source = Parquet(str(tmp_path))
    with source.open() as reader:
        before = [unit.content_key for unit in reader.units()]
    facts = (tmp_path / "1.parquet").stat()
    os.utime(tmp_path / "1.parquet", ns=(facts.st_atime_ns, facts.st_mtime_ns + 1))
    with source.open() as reader:
        after = [unit.content_key for unit in reader.units()]

    assert [a == b for a, b in zip(before, after, strict=True)] == [True, False]


@pytest.mark.parametrize(
    ("columns", "difference"),
    [
        ({"more": ["x"] * 20}, "has a column 'more' more"),
        ({"n": pa.array(range(20), pa.int32())}, "column 'n' is .*int32.* not .*int64"),
    ],
)
def test_files_of_another_schema_are_refused_with_the_difference(
    tmp_path: Path, columns: dict[str, object], difference: str
) -> None:
    write(tmp_path / "0.parquet")
    write(tmp_path / "1.parquet", **columns)
    with pytest.raises(
        SourceError, match=f"1.parquet differs from .*0.parquet: .*{difference}.*register the files separately"
    ):
        Parquet(str(tmp_path)).open()


def test_a_file_that_is_no_parquet_is_refused_by_name(tmp_path: Path) -> None:
    write(tmp_path / "0.parquet")
    (tmp_path / "1.parquet").write_bytes(b"not parquet at all")
    with pytest.raises(SourceError, match=r"1\.parquet: .*Replace the file"):
        Parquet(str(tmp_path)).open()


def test_a_file_cut_short_after_opening_is_a_source_error(tmp_path: Path) -> None:
    write(tmp_path / "0.parquet")
    with Parquet(str(tmp_path)).open() as reader:
        (tmp_path / "0.parquet").write_bytes(b"PAR1")
        with pytest.raises(SourceError, match=r"0\.parquet: .*has not changed"):
            reader.fetch(np.array([3], np.uint64), ["id"])
        with pytest.raises(SourceError, match=r"0\.parquet: .*has not changed"):
            list(reader.scan(["id"]))


@pytest.mark.parametrize("path", ["none.parquet", "none-*.parquet", "empty", "deep/er/none.parquet"])
def test_paths_without_files_are_refused(tmp_path: Path, path: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match="Correct the path"):
        Parquet(str(tmp_path / path)).open()


def test_a_list_and_a_brace_pattern_name_files_of_one_relation(tmp_path: Path) -> None:
    for at in range(4):
        write(tmp_path / f"p_{at:06d}.parquet", 20 * at)
    listed = [tmp_path / "p_000002.parquet", str(tmp_path / "p_{000000..000001}.parquet"), str(tmp_path / "*3.parquet")]
    with Parquet(str(tmp_path)).open() as reader:
        units, rows = reader.units(), reader.fetch(np.array([79, 0, 20], np.uint64), ["n", "id"])
    for path in (listed, str(tmp_path / "p_{000000..000003}.parquet")):
        with Parquet(path).open() as reader:
            assert reader.units() == units
            assert reader.fetch(np.array([79, 0, 20], np.uint64), ["n", "id"]).equals(rows)


def test_a_list_of_another_schema_names_the_file(tmp_path: Path) -> None:
    write(tmp_path / "a" / "0.parquet")
    write(tmp_path / "b" / "1.parquet", more=["x"] * 20)
    with pytest.raises(SourceError, match=r"b/1\.parquet differs from .*a/0\.parquet: it has a column 'more' more"):
        Parquet([str(tmp_path / "a"), str(tmp_path / "b")]).open()


def test_lists_are_saved_as_lists_and_one_path_as_before(tmp_path: Path) -> None:
    one, several = Parquet("/data/p.parquet"), Parquet(["/data/a.parquet", "/data/b"], origin=True)

    assert source_to_json(replace(one, hive=False)) == {"kind": "parquet", "path": "/data/p.parquet", "base": None}
    assert json.loads(json.dumps(source_to_json(several)))["path"] == ["/data/a.parquet", "/data/b"]
    for source in (one, several, replace(one, hive=True)):
        assert source_from_json(json.loads(json.dumps(source_to_json(source)))) == source


def test_a_source_from_before_folders_became_columns_takes_none(tmp_path: Path) -> None:
    write(tmp_path / "year=2024" / "p.parquet")
    source = source_from_json({"kind": "parquet", "path": str(tmp_path), "base": None})
    with source.open() as reader, Parquet(str(tmp_path)).open() as now:
        assert reader.schema.names == ["id", "n"]
        assert now.schema.names == ["id", "n", "year"]


def test_known_files_of_a_list_are_opened_without_a_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for at in range(3):
        write(tmp_path / "t" / f"{at}.parquet", 20 * at)
    source = Parquet([str(tmp_path / "t" / f"{at}.parquet") for at in range(3)])
    with source.open() as reader:
        units = reader.units()
    known = Known(
        pa.array([unit.name for unit in units]),
        np.array([unit.rows for unit in units], np.uint64),
        pa.array([unit.content_key for unit in units]),
    )
    monkeypatch.setattr("spiral_stream.sources.columnar.parquet.listed", None)
    with source.open_known(known) as reader:
        assert reader.trusting
        assert reader.fetch(np.array([45], np.uint64), ["n"])["n"].to_pylist() == [45]
    write(tmp_path / "t" / "1.parquet", 7)
    with source.open_known(known) as reader, pytest.raises(SourceError, match=r"1\.parquet changed since registration"):
        reader.fetch(np.array([25], np.uint64), ["n"])


def test_what_is_no_choice_of_columns_is_refused() -> None:
    with pytest.raises(SourceError, match=r"hive='yes'\. Give True, False or None"):
        Parquet("p.parquet", hive="yes")
    with pytest.raises(SourceError, match=r"origin=1\. Give True or False"):
        Parquet("p.parquet", origin=1)
