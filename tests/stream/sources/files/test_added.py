from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spiral_stream as spiral
from spiral_stream import Expr, Lance, Parquet, col
from spiral_stream.dialects.numpy import passes
from spiral_stream.errors import SourceError
from spiral_stream.sources import ROW, MemoryReader, Unit
from spiral_stream.sources.files.partition_columns import AddedReader, with_added

NAMES = ("a/0.parquet", "a/1.parquet", "b/0.parquet")


def units(sizes: list[int]) -> list[Unit]:
    return [Unit(name, rows, None, "0" * 32, (rows,) if rows else ()) for name, rows in zip(NAMES, sizes, strict=True)]


def expected(sizes: list[int]) -> pa.Table:
    """What the rows are, written without the reader."""
    total = sum(sizes)
    return pa.table(
        {
            "n": pa.array(range(total), pa.int64()),
            "part": pa.array([p for p, rows in zip("xyz", sizes, strict=True) for _ in range(rows)], pa.utf8()),
            "__file__": pa.array([n for n, rows in zip(NAMES, sizes, strict=True) for _ in range(rows)], pa.utf8()),
            "__index_in_file__": pa.array([at for rows in sizes for at in range(rows)], pa.int64()),
        }
    )


def reader(sizes: list[int]) -> AddedReader:
    stored = MemoryReader(expected(sizes).select(["n"]), units(sizes), "")
    made = with_added(stored, {"part": pa.array(list("xyz"))}, None, origin=True)
    assert isinstance(made, AddedReader)
    return made


CONDITIONS = [
    col("part") == "y",
    (col("part") != "x") & (col("n") % 2 == 0),
    (col("__file__") <= "a/9") & (col("__index_in_file__") >= 2),
    (col("__index_in_file__") == 0) | (col("n") == 3),
    (col("__file__") == "nowhere") | (col("part") == "z"),
    col("n") > 2,
]


@given(
    sizes=st.lists(st.integers(0, 6), min_size=3, max_size=3),
    condition=st.none() | st.sampled_from(CONDITIONS),
    columns=st.lists(st.sampled_from(["n", "part", "__file__", "__index_in_file__"]), unique=True),
    chosen=st.none() | st.lists(st.integers(0, 2), unique=True),
)
def test_a_scan_gives_the_rows_that_pass_with_what_their_units_say(
    sizes: list[int], condition: Expr | None, columns: list[str], chosen: list[int] | None
) -> None:
    rows = expected(sizes)
    kept = np.ones(len(rows), bool)
    if condition is not None:
        kept = passes(condition, {name: rows[name] for name in condition.columns()})
    if chosen is not None:
        kept &= np.isin(np.repeat(np.arange(3), sizes), chosen)
    batches = list(reader(sizes).scan(columns, condition, chosen))
    found = [row for batch in batches for row in batch.to_pylist()]

    want = rows.select(columns).append_column(ROW, pa.array(np.arange(len(rows), dtype=np.uint64)))
    assert found == want.filter(pa.array(kept)).to_pylist()
    assert all(batch.schema.names == [*columns, ROW] for batch in batches)


@given(sizes=st.lists(st.integers(1, 6), min_size=3, max_size=3), data=st.data())
def test_a_fetch_gives_what_the_units_of_the_rows_say(sizes: list[int], data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.integers(0, sum(sizes) - 1)))
    columns = data.draw(st.lists(st.sampled_from(expected(sizes).column_names), min_size=1, unique=True))
    opened = reader(sizes)
    found = opened.fetch(np.array(rows, np.uint64), columns)

    assert found.num_rows == len(rows)
    assert found.schema.equals(pa.schema([opened.schema.field(name) for name in columns]))
    assert found.to_pylist() == expected(sizes).select(columns).take(pa.array(rows, pa.int64())).to_pylist()


def test_parquet_rows_say_which_file_they_come_from_through_select_and_filter(tmp_path: Path) -> None:
    for at in range(2):
        (tmp_path / "t").mkdir(exist_ok=True)
        pq.write_table(pa.table({"id": [f"{at}-{k}" for k in range(3)]}), tmp_path / "t" / f"p{at}.parquet")
    catalog = spiral.connect(tmp_path / "catalog")
    catalog.register("t", Parquet(str(tmp_path / "t"), origin=True), identity="id")
    catalog.register("plain", Parquet(str(tmp_path / "t")), identity="id")
    table = catalog.table("t")
    found = table.filter(col("__index_in_file__") == 1).select("id", "__file__").to_arrow()
    plan = table.sample(identity="id", order=spiral.GlobalShuffle(seed=1))
    with plan.collate(
        batch_size=6, fields={"id": spiral.List("id"), "file": spiral.List("__file__")}
    ).to_numpy() as stream:
        batch = next(iter(stream))

    assert found.to_pylist() == [{"id": f"{at}-1", "__file__": f"p{at}.parquet"} for at in range(2)]
    assert [f"p{each[0]}.parquet" for each in batch["id"]] == list(batch["file"])
    assert "__file__" not in catalog.table("plain").to_arrow().column_names


def test_lance_rows_say_which_fragment_they_come_from(tmp_path: Path) -> None:
    lance.write_dataset(pa.table({"id": range(10)}), str(tmp_path / "t.lance"), max_rows_per_file=4)
    lance.dataset(str(tmp_path / "t.lance")).delete("id = 5")
    catalog = spiral.connect(tmp_path / "catalog")
    entry = catalog.register("t", Lance(str(tmp_path / "t.lance"), origin=True), identity="id")
    again = catalog.register("t", Lance(str(tmp_path / "t.lance"), origin=True), identity="id")
    found = catalog.table("t").filter(col("id") > 2).to_arrow()

    assert entry.source.version == 2
    assert again.data_version == entry.data_version
    assert (
        found["__file__"].to_pylist() == ["fragment-00000000"] + ["fragment-00000001"] * 3 + ["fragment-00000002"] * 2
    )
    assert found["__index_in_file__"].to_pylist() == [3, 0, 1, 2, 0, 1]


def test_rows_that_have_such_a_column_already_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1], "__file__": ["x"]}), tmp_path / "p.parquet")
    with pytest.raises(SourceError, match=r"a column '__file__' already\. Register them with origin=False"):
        Parquet(str(tmp_path / "p.parquet"), origin=True).open()


def test_files_of_a_folder_are_rows_of_their_own(tmp_path: Path) -> None:
    for name in ("cat/1.jpg", "dog/0.png"):
        (tmp_path / "images" / name).parent.mkdir(parents=True)
        (tmp_path / "images" / name).write_bytes(b"x")
    catalog = spiral.connect(tmp_path / "catalog")
    catalog.register("images", spiral.ImageFolder(str(tmp_path / "images"), origin=True))
    found = catalog.table("images").select("__file__", "__index_in_file__").to_arrow()

    assert found.to_pydict() == {"__file__": ["cat/1.jpg", "dog/0.png"], "__index_in_file__": [0, 0]}
