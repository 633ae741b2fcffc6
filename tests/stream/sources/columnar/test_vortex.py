import math
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import lance
import numpy as np
import pyarrow as pa
import pytest
import vortex
from hypothesis import given
from hypothesis import strategies as st

import spiral_stream as spiral
from spiral_stream import Expr, Lance, col
from spiral_stream.dialects.numpy import passes
from spiral_stream.errors import MissingExtraError, SourceError
from spiral_stream.sources import ROW, Known, Vortex
from spiral_stream.sources.columnar.vortex import LISTS
from tests.fixtures.examples import few

ROWS = 3 * 8192  # rows of three zones
NAN = math.nan


def zones() -> pa.Table:
    """Rows whose zone maps hide a NaN between equal values, and zeros of both signs."""
    f = np.concatenate([np.full(8192, 0.7), np.full(8192, -0.0), np.arange(8192) / 7])
    f[[5, 8192 + 6]] = NAN
    n = np.repeat([1, 5, 9], 8192)
    return pa.table(
        {
            "n": pa.array(n),
            "f": pa.array(f),
            "g": pa.array(f.astype(np.float32), mask=np.arange(ROWS) % 11 == 0),
            "text": pa.array([f"t{at % 50}" for at in range(ROWS)]),
            "full": pa.array(np.arange(ROWS, dtype=np.int32)),
        },
        schema=pa.schema(
            [
                ("n", pa.int64()),
                ("f", pa.float64()),
                ("g", pa.float32()),
                ("text", pa.utf8()),
                pa.field("full", pa.int32(), nullable=False),
            ]
        ),
    )


CONDITIONS = [
    col("f") == 0.0,
    col("f") < 0.0,
    col("f") >= -0.0,
    ~(col("f") == 0.7),
    col("f") != 0.7,
    (col("f") <= math.inf) & (col("n") != 5),
    ~(col("g") < 1.0) | (col("n") == 5),
    col("g").is_null() & (col("full") < 9000),
    col("full").is_in([0, 9_000, 24_000, 99_999]),
    (col("n") == 9) & col("text").is_in(["t3", "t4"]),
    (col("full") % 1000 == 7) & (col("n") >= 5),
    col("n") == 7,
    col("n") >= 1,
]


@pytest.mark.parametrize("condition", CONDITIONS, ids=str)
def test_zone_maps_rule_out_no_row_that_passes(condition: Expr, tmp_path: Path) -> None:
    rows = zones()
    vortex.io.write(rows, str(tmp_path / "t.vortex"))
    kept = passes(condition, {name: rows[name] for name in condition.columns()})
    with Vortex(str(tmp_path / "t.vortex")).open() as reader:
        batches = list(reader.scan(["full", "text"], condition))
        alone = [row for batch in reader.scan([], condition) for row in batch.column(ROW).to_pylist()]
    found = [row for batch in batches for row in batch.column(ROW).to_pylist()]
    full = [value for batch in batches for value in batch.column("full").to_pylist()]

    assert alone == found == full == np.flatnonzero(kept).tolist()


def test_a_condition_is_asked_of_some_rows_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spiral_stream.sources.columnar.vortex.SCAN_ROWS", 5_000)
    rows = zones()
    vortex.io.write(rows, str(tmp_path / "t.vortex"))
    with Vortex(str(tmp_path / "t.vortex")).open() as reader:
        found = pa.Table.from_batches(reader.scan(["n", "text"], (col("n") == 5) & (col("text") != "t3")))

    want = rows.append_column(ROW, pa.array(np.arange(ROWS, dtype=np.uint64)))
    want = want.filter(pa.array((rows["n"].to_numpy() == 5) & (np.array(rows["text"].to_pylist()) != "t3")))
    assert found.equals(want.select(["n", "text", ROW]))


@pytest.mark.parametrize("columns", [["image", "id", "tokens"], ["id", "image"]])
@few(15, 40)
@given(data=st.data())
def test_stretches_and_single_rows_come_in_the_order_asked(columns: list[str], data: st.DataObject) -> None:
    rows = []
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, 150))
        rows += range(start, start + data.draw(st.sampled_from([1, 2, LISTS - 1, LISTS, 40])))
    if data.draw(st.booleans()):
        rows = data.draw(st.permutations(rows))
    table = pa.table(
        {
            "id": pa.array(range(200), pa.int64()),
            "tokens": pa.array([list(range(at % 5)) if at % 9 else None for at in range(200)], pa.list_(pa.int32())),
            "image": pa.array([bytes([at]) * at for at in range(200)], pa.large_binary()),
        }
    )
    with TemporaryDirectory() as folder:
        for at in (0, 1):
            vortex.io.write(table.slice(100 * at, 100), f"{folder}/{at}.vortex")
        with Vortex(folder).open() as reader:
            found = reader.fetch(np.array(rows, np.uint64), columns)

    assert found.equals(table.select(columns).take(pa.array(rows)))


def test_long_stretches_of_numbers_are_read_as_ranges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spiral_stream.sources.columnar.vortex.STRETCH", 5)
    rows = pa.table({"id": range(100), "text": [f"t{at}" for at in range(100)]})
    vortex.io.write(rows, str(tmp_path / "t.vortex"))
    asked = [50, *range(20, 30), 3, *range(60, 64), 99]
    with Vortex(str(tmp_path / "t.vortex")).open() as reader:
        assert reader.fetch(np.array(asked, np.uint64), ["text", "id"]).equals(
            rows.select(["text", "id"]).take(pa.array(asked))
        )


def test_batches_are_those_of_the_same_rows_in_lance(tmp_path: Path) -> None:
    rows = pa.table({"id": range(300), "x": np.arange(300) / 3, "text": [f"row {at}" for at in range(300)]})
    (tmp_path / "v").mkdir()
    for at in range(3):
        vortex.io.write(rows.slice(100 * at, 100), str(tmp_path / "v" / f"fragment-{at:08d}.vortex"))
    lance.write_dataset(rows, str(tmp_path / "t.lance"), max_rows_per_file=100)
    catalog = spiral.connect(tmp_path / "catalog")
    catalog.register("vortex", Vortex(str(tmp_path / "v")), identity="id")
    catalog.register("lance", Lance(str(tmp_path / "t.lance")), identity="id")
    batches = {}
    for name in ("vortex", "lance"):
        table = catalog.table(name).filter((col("x") < 80.0) & (col("id") != 7))
        plan = table.sample(identity="id", order=spiral.GlobalShuffle(seed=4))
        fields = {"id": spiral.List("id"), "x": spiral.Stack("x"), "text": spiral.List("text")}
        with plan.collate(batch_size=16, fields=fields).to_numpy() as stream:
            batches[name] = [{key: list(value) for key, value in batch.items()} for batch in stream]

    assert len(batches["lance"]) == 14
    assert batches["vortex"] == batches["lance"]


def test_rows_say_which_file_they_come_from(tmp_path: Path) -> None:
    for at in (0, 1):
        vortex.io.write(pa.table({"id": [at, at + 10]}), str(tmp_path / f"{at}.vortex"))
    with Vortex(str(tmp_path / "{0..1}.vortex"), origin=True).open() as reader:
        found = pa.Table.from_batches(reader.scan(["id", "__index_in_file__"], col("__file__") == "1.vortex"))

    assert found.drop_columns(ROW).to_pydict() == {"id": [1, 11], "__index_in_file__": [0, 1]}


def test_nested_and_timed_columns_have_plain_types(tmp_path: Path) -> None:
    rows = pa.table(
        {
            "names": pa.array([["a", None], [], None], pa.list_(pa.utf8())),
            "at": pa.array([1, None, 3], pa.timestamp("us", "UTC")),
            "day": pa.array([1, None, 3], pa.date32()),
            "part": pa.array([{"uri": "u", "offset": 1}, None, {"uri": "v", "offset": None}]),
            "vector": pa.array([[1.0, 2.0], None, [3.0, 4.0]], pa.list_(pa.float32(), 2)),
        }
    )
    vortex.io.write(rows, str(tmp_path / "t.vortex"))
    with Vortex(str(tmp_path / "t.vortex")).open() as reader:
        found = reader.fetch(np.array([2, 0, 1], np.uint64), rows.column_names)

        assert reader.schema.equals(rows.schema)
    assert found.to_pylist() == rows.take(pa.array([2, 0, 1])).to_pylist()


def test_a_file_of_other_columns_is_named(tmp_path: Path) -> None:
    vortex.io.write(pa.table({"id": [1]}), str(tmp_path / "0.vortex"))
    vortex.io.write(pa.table({"id": ["x"]}), str(tmp_path / "1.vortex"))
    with pytest.raises(SourceError, match=r"1\.vortex has the columns id string; the first file has id int64"):
        Vortex(str(tmp_path)).open()


@pytest.mark.parametrize("data", [b"", b"not vortex at all", None])
def test_a_file_that_is_no_vortex_or_cut_short_is_named(data: bytes | None, tmp_path: Path) -> None:
    vortex.io.write(zones(), str(tmp_path / "0.vortex"))
    whole = (tmp_path / "0.vortex").read_bytes()
    (tmp_path / "0.vortex").write_bytes(whole[:-1000] if data is None else data)
    with pytest.raises(SourceError, match=r"Vortex file .*0\.vortex: .*Check that the file is whole"):
        Vortex(str(tmp_path)).open()


def test_a_file_cut_short_after_opening_is_a_source_error(tmp_path: Path) -> None:
    vortex.io.write(zones(), str(tmp_path / "0.vortex"))
    with Vortex(str(tmp_path)).open() as reader:
        with (tmp_path / "0.vortex").open("r+b") as file:
            file.truncate(100)
        with pytest.raises(SourceError, match=r"0\.vortex"):
            reader.fetch(np.arange(0, ROWS, 7, dtype=np.uint64), ["f", "text"])
        with pytest.raises(SourceError, match=r"0\.vortex"):
            list(reader.scan(["f", "text"]))


def test_known_files_are_opened_when_they_are_read(tmp_path: Path) -> None:
    for at in range(3):
        vortex.io.write(pa.table({"id": [at, 10 + at]}), str(tmp_path / f"{at}.vortex"))
    with Vortex(str(tmp_path)).open() as reader:
        units = reader.units()
    names, keys = pa.array([unit.name for unit in units]), pa.array([unit.content_key for unit in units])
    known = Known(names, np.array([2, 2, 2], np.uint64), keys)
    (tmp_path / "2.vortex").write_bytes(b"other")
    with Vortex(str(tmp_path)).open_known(known) as reader:
        assert reader.trusting
        assert reader.fetch(np.array([3], np.uint64), ["id"])["id"].to_pylist() == [11]
        with pytest.raises(SourceError, match=r"2\.vortex"):
            reader.fetch(np.array([5], np.uint64), ["id"])
    vortex.io.write(pa.table({"id": [7, 8]}), str(tmp_path / "2.vortex"))
    with (
        Vortex(str(tmp_path)).open_known(known) as reader,
        pytest.raises(SourceError, match="changed since registration"),
    ):
        reader.fetch(np.array([5], np.uint64), ["id"])


def test_a_registration_is_saved_opened_and_refreshed(tmp_path: Path) -> None:
    (tmp_path / "v").mkdir()
    vortex.io.write(pa.table({"id": [0, 1]}), str(tmp_path / "v" / "0.vortex"))
    spiral.connect(tmp_path / "catalog").register("v", Vortex(str(tmp_path / "v")), identity="id")
    vortex.io.write(pa.table({"id": [2]}), str(tmp_path / "v" / "1.vortex"))
    catalog = spiral.connect(tmp_path / "catalog")

    assert catalog.refresh("v").changes.added == ("1.vortex",)
    assert catalog.table("v").filter(col("id") > 0).to_arrow()["id"].to_pylist() == [1, 2]


def test_without_the_extra_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vortex.io.write(pa.table({"id": [1]}), str(tmp_path / "0.vortex"))
    monkeypatch.setitem(sys.modules, "vortex", None)
    with pytest.raises(MissingExtraError, match=r'pip install "spiral-stream\[vortex\]"'):
        Vortex(str(tmp_path)).open()
