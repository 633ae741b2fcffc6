from collections.abc import Callable
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest

import spiral_stream as spiral
from spiral_stream import Expr, Parquet, col
from spiral_stream.errors import SourceError
from spiral_stream.sources.columnar.parquet import ParquetReader

ROWS = pa.table(
    {
        "id": range(12),
        "text": [f"row {i}" for i in range(12)],
        "year": [2023, 2024, 2025] * 4,
        "lang": ["en", "de", "a b/ü%", "en"] * 3,
    }
)


def arrow_layout(folder: Path) -> None:
    pads.write_dataset(ROWS, folder, format="parquet", partitioning=["year", "lang"], partitioning_flavor="hive")


def duckdb_layout(folder: Path) -> None:
    rows = ROWS  # noqa: F841  which the statement names
    duckdb.sql(f"COPY rows TO '{folder}' (FORMAT parquet, PARTITION_BY (year, lang))")


def write(path: Path, **columns: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)


@pytest.mark.parametrize("written", [arrow_layout, duckdb_layout])
def test_partitions_of_other_libraries_give_the_rows_that_were_written(
    written: Callable[[Path], None], tmp_path: Path
) -> None:
    written(tmp_path / "t")
    with Parquet(str(tmp_path / "t")).open() as reader:
        found = pa.Table.from_batches(reader.scan(["id", "text", "year", "lang"]))
        shuffled = np.random.default_rng(3).permutation(12).astype(np.uint64)
        fetched = reader.fetch(shuffled, ["lang", "id", "year"])

        assert reader.schema.equals(ROWS.schema)

    assert found.drop_columns("__row").sort_by("id").equals(ROWS)
    assert fetched.sort_by("id").equals(ROWS.select(["lang", "id", "year"]))


@pytest.mark.parametrize(
    ("condition", "files"),
    [
        (col("year") == 2024, ["year=2024/lang=de", "year=2024/lang=en"]),
        ((col("year") >= 2024) & (col("lang") == "en"), ["year=2024/lang=en", "year=2025/lang=en"]),
        ((col("year") >= 2024) & (col("id") < 5), None),
        (col("lang").is_null(), []),
    ],
)
def test_a_condition_on_a_key_leaves_whole_files_out(
    condition: Expr, files: list[str] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for year in (2023, 2024, 2025):
        for lang in ("de", "en"):
            write(tmp_path / f"year={year}" / f"lang={lang}" / "p.parquet", id=[year % 10])
    read: list[str] = []
    original = ParquetReader.read_batches

    def recorded(self: ParquetReader, file: object, *rest: object) -> object:
        read.append(file.name.removesuffix("/p.parquet"))
        return original(self, file, *rest)

    monkeypatch.setattr(ParquetReader, "read_batches", recorded)
    with Parquet(str(tmp_path)).open() as reader:
        batches = list(reader.scan(["id", "lang", "year"], condition))
        everything = pa.Table.from_batches(reader.scan(["id", "year", "lang"]))
    found = [row["year"] for batch in batches for row in batch.to_pylist()]

    kept = duckdb.sql(f"SELECT year FROM everything WHERE {_sql(condition)} ORDER BY year, lang").fetchall()
    assert everything.num_rows == 6
    assert found == [year for (year,) in kept]
    if files is not None:
        assert read[: len(files)] == files
        assert len(read) == len(files) + 6


def _sql(condition: Expr) -> str:
    from tests.fixtures.duckdb_dialect import to_duckdb

    schema = pa.schema([("id", pa.int64()), ("year", pa.int64()), ("lang", pa.utf8())])
    return to_duckdb(condition, schema)


def test_a_key_is_a_number_only_if_all_its_values_are(tmp_path: Path) -> None:
    for part in ("month=01/k=7", "month=12/k=x", "month=__HIVE_DEFAULT_PARTITION__/k=-3"):
        write(tmp_path / part / "p.parquet", id=[1])
    with Parquet(str(tmp_path)).open() as reader:
        found = reader.fetch(np.arange(3, dtype=np.uint64), ["month", "k"])

    assert found.to_pydict() == {"month": [1, 12, None], "k": ["7", "x", "-3"]}
    assert found.schema.types == [pa.int64(), pa.utf8()]


@pytest.mark.parametrize(("one", "other"), [("1", "01"), ("0", "-0"), ("007", "7")])
def test_two_folders_that_would_be_one_number_keep_their_texts(tmp_path: Path, one: str, other: str) -> None:
    for part in (one, other):
        write(tmp_path / f"k={part}" / "p.parquet", id=[1])
    with Parquet(str(tmp_path)).open() as reader:
        assert sorted(reader.fetch(np.arange(2, dtype=np.uint64), ["k"])["k"].to_pylist()) == sorted([one, other])


def test_a_file_without_the_keys_is_named(tmp_path: Path) -> None:
    write(tmp_path / "year=2024" / "p.parquet", id=[1])
    write(tmp_path / "q.parquet", id=[1])
    with pytest.raises(SourceError, match=r"year=2024/p\.parquet has the keys year in its path.*hive=False"):
        Parquet(str(tmp_path)).open()
    with Parquet(str(tmp_path), hive=False).open() as reader:
        assert reader.schema.names == ["id"]


def test_a_key_that_comes_twice_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a=1" / "a=2" / "p.parquet", id=[1])
    with pytest.raises(SourceError, match=r"has the key 'a' twice.*hive=False"):
        Parquet(str(tmp_path)).open()


def test_a_key_that_is_stored_too_must_have_the_value_of_its_folder(tmp_path: Path) -> None:
    write(tmp_path / "year=2023" / "p.parquet", id=[1, 2], year=pa.array([2023, 2023], pa.int32()))
    with Parquet(str(tmp_path)).open() as reader:
        assert reader.schema.field("year").type == pa.int32()
    write(tmp_path / "year=2024" / "p.parquet", id=[3, 4], year=pa.array([2024, 2025], pa.int32()))
    with pytest.raises(
        SourceError, match=r"year=2024/p\.parquet .*column 'year' too, which has values from 2024 to 2025"
    ):
        Parquet(str(tmp_path)).open()
    write(tmp_path / "year=2024" / "p.parquet", id=[3, 4], year=pa.array([2024, None], pa.int32()))
    with pytest.raises(SourceError, match=r"does not say what values it has. Give hive=False"):
        Parquet(str(tmp_path)).open()


def test_registered_partitions_are_saved_refreshed_and_registered_again(tmp_path: Path) -> None:
    for year in (2023, 2024):
        write(tmp_path / "t" / f"year={year}" / "p.parquet", id=[year, -year])
    catalog = spiral.connect(tmp_path / "catalog")
    first = catalog.register("t", Parquet(str(tmp_path / "t")), identity="id")
    again = catalog.register("t", Parquet(str(tmp_path / "t")), identity="id")
    write(tmp_path / "t" / "year=2025" / "p.parquet", id=[2025, -2025])
    refreshed = catalog.refresh("t")

    assert again.data_version == first.data_version
    assert first.source.hive is True
    assert refreshed.changes.added == ("year=2025/p.parquet",)
    assert catalog.table("t").filter(col("year") > 2023).to_arrow()["id"].to_pylist() == [2024, -2024, 2025, -2025]


def test_a_relation_without_columns_of_folders_is_registered_again_as_it_is(tmp_path: Path) -> None:
    for year in (2023, 2024):
        write(tmp_path / "t" / f"year={year}" / "p.parquet", id=[year])
    catalog = spiral.connect(tmp_path / "catalog")
    first = catalog.register(
        "t", Parquet(str(tmp_path / "t"), hive=False), identity="id"
    )  # as before they were columns

    with pytest.warns(
        spiral.SpiralWarning,
        match=r"register 't': it is registered without columns of its folders.*hive=True and replace=True",
    ):
        again = catalog.register("t", Parquet(str(tmp_path / "t")), identity="id")
    assert again.data_version == first.data_version
    assert "year" not in catalog.table("t").to_arrow().column_names
    catalog.register("t", Parquet(str(tmp_path / "t"), hive=False), identity="id")
    with pytest.raises(spiral.errors.CatalogError, match=r"its hive is .*now True"):
        catalog.register("t", Parquet(str(tmp_path / "t"), hive=True), identity="id")
    catalog.register("t", Parquet(str(tmp_path / "t"), hive=True), identity="id", replace=True)
    assert catalog.table("t").to_arrow()["year"].to_pylist() == [2023, 2024]


def test_a_file_that_moves_to_another_folder_has_other_rows(tmp_path: Path) -> None:
    write(tmp_path / "year=2023" / "p.parquet", id=[1])
    source = Parquet(str(tmp_path))
    with source.open() as reader:
        before = reader.units()[0].content_key
    (tmp_path / "year=2023").rename(tmp_path / "year=2024")
    with source.open() as reader:
        assert reader.units()[0].content_key != before


def test_partitions_of_many_files_are_opened_without_a_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for at in range(12):
        write(tmp_path / "t" / f"part={at:02d}" / "p.parquet", id=[at, 100 + at])
    catalog = spiral.connect(tmp_path / "catalog")
    catalog.register("t", Parquet(str(tmp_path / "t"), origin=True), identity="id")
    monkeypatch.setattr("spiral_stream.catalog.relation.reader.LARGE", 3)
    table = catalog.table("t")
    found = table.filter(col("part") == 7).project("id", "__file__", "__index_in_file__").to_arrow()

    assert found.to_pydict() == {
        "id": [7, 107],
        "__file__": ["part=07/p.parquet"] * 2,
        "__index_in_file__": [0, 1],
    }


def test_lists_of_files_inside_a_catalog_move_with_it(tmp_path: Path) -> None:
    paths = [tmp_path / "catalog" / "files" / f"{at}.parquet" for at in range(2)]
    for at, path in enumerate(paths):
        write(path, id=[at])
    spiral.connect(tmp_path / "catalog").register("t", Parquet(paths), identity="id")
    (tmp_path / "catalog").rename(tmp_path / "moved")
    catalog = spiral.connect(tmp_path / "moved")

    assert catalog.entry("t").source.path == tuple(str(tmp_path / "moved" / "files" / each.name) for each in paths)
    assert catalog.table("t").to_arrow()["id"].to_pylist() == [0, 1]
