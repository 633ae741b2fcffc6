"""What every source owes: the rows asked for, in the order asked, and the rows that pass."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import lance
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spiral_stream.dialects.numpy import passes
from spiral_stream.expr import Expr, col
from spiral_stream.sources.arrow import Arrow
from spiral_stream.sources.lance import Lance
from spiral_stream.sources.parquet import Parquet
from spiral_stream.sources.source import ROW, Source

SCHEMA = pa.schema(
    [
        ("id", pa.utf8()),
        ("n", pa.int64()),
        ("f", pa.float32()),
        ("payload", pa.large_binary()),
        ("part", pa.struct([("uri", pa.utf8()), ("offset", pa.int64())])),
    ]
)


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    rows = draw(st.integers(1, 40))
    number = st.none() | st.integers(-3, 3)
    real = st.none() | st.sampled_from([0.0, -0.0, 0.7, 1.5, float("nan"), float("inf")])
    columns = {
        "id": [f"s{i}" for i in range(rows)],
        "n": draw(st.lists(number, min_size=rows, max_size=rows)),
        "f": draw(st.lists(real, min_size=rows, max_size=rows)),
        "payload": draw(st.lists(st.none() | st.binary(max_size=5), min_size=rows, max_size=rows)),
        "part": [{"uri": f"u{i}", "offset": i} for i in range(rows)],
    }
    return pa.table(columns, schema=SCHEMA)


def lance_plain(table: pa.Table, folder: Path, piece: int) -> Source:
    lance.write_dataset(table, str(folder / "t.lance"), max_rows_per_file=piece)
    return Lance(str(folder / "t.lance"))


def lance_with_deletions(table: pa.Table, folder: Path, piece: int) -> Source:
    """Rows that are not in ``table`` stand between its rows, and are deleted."""
    extra = pa.table(
        {**{n: table[n] for n in table.column_names}, "id": [f"x{i}" for i in range(len(table))]}, schema=SCHEMA
    )
    order = np.arange(2 * len(table)).reshape(2, -1).T.ravel()
    lance.write_dataset(pa.concat_tables([extra, table]).take(order), str(folder / "t.lance"), max_rows_per_file=piece)
    lance.dataset(str(folder / "t.lance")).delete("id like 'x%'")
    return Lance(str(folder / "t.lance"))


def lance_blob(version: str) -> Callable[[pa.Table, Path, int], Source]:
    def write(table: pa.Table, folder: Path, piece: int) -> Source:
        payload = table["payload"].combine_chunks()
        if version == "2.0":
            field = pa.field("payload", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
        else:
            field, payload = lance.blob_field("payload"), lance.blob_array(payload.to_pylist())
        at = SCHEMA.get_field_index("payload")
        arrays = [payload if name == "payload" else table[name] for name in SCHEMA.names]
        stored = pa.table(arrays, schema=SCHEMA.set(at, field))
        lance.write_dataset(stored, str(folder / "t.lance"), max_rows_per_file=piece, data_storage_version=version)
        return Lance(str(folder / "t.lance"))

    return write


def parquet_files(table: pa.Table, folder: Path, piece: int) -> Source:
    for i, start in enumerate(range(0, len(table), 2 * piece)):
        pq.write_table(table.slice(start, 2 * piece), folder / f"part-{i:03d}.parquet", row_group_size=piece)
    return Parquet(str(folder / "part-*.parquet"))


def arrow_table(table: pa.Table, folder: Path, piece: int) -> Source:
    return Arrow(pa.concat_tables([table.slice(0, piece), table.slice(piece)]))


WRITERS = {
    "lance": lance_plain,
    "lance with deletions": lance_with_deletions,
    "lance blob v1": lance_blob("2.0"),
    "lance blob v2": lance_blob("2.2"),
    "parquet": parquet_files,
    "arrow": arrow_table,
}


def predicates() -> st.SearchStrategy[Expr]:
    return st.sampled_from(
        [
            col("n") >= 1,
            ~(col("n") == 2),
            col("f") >= 0.7,
            ~(col("f") < 0.7),
            col("f") == 0.0,
            col("f").is_nan() | col("n").is_null(),
            col("payload").is_null(),
            ~col("payload").is_null() & (col("n") % 2 == 1),
            col("id").is_in(["s0", "s3", "s7"]) & (col("f") / 2 < 1.0),
            (col("n") / col("n") == 1.0) & (col("id") != "s1"),
        ]
    )


@pytest.mark.parametrize("kind", WRITERS)
@settings(max_examples=25)
@given(table=tables(), piece=st.integers(1, 20), data=st.data())
def test_fetch_gives_the_rows_asked_for_in_the_order_asked(
    kind: str, table: pa.Table, piece: int, data: st.DataObject
) -> None:
    rows = data.draw(st.lists(st.integers(0, len(table) - 1), max_size=30))
    columns = data.draw(st.lists(st.sampled_from(SCHEMA.names), unique=True))
    with TemporaryDirectory() as folder, WRITERS[kind](table, Path(folder), piece).open() as reader:
        found = reader.fetch(np.array(rows, dtype=np.uint64), columns)

        assert reader.schema.equals(SCHEMA)
        assert len(found) == len(rows)
        assert found.schema.equals(pa.schema([SCHEMA.field(name) for name in columns]))
        assert repr(found.to_pylist()) == repr(table.take(pa.array(rows, pa.int64())).select(columns).to_pylist())


@pytest.mark.parametrize("kind", WRITERS)
@settings(max_examples=25)
@given(table=tables(), piece=st.integers(1, 20), predicate=st.none() | predicates(), data=st.data())
def test_scan_gives_the_rows_that_pass_with_their_ordinals(
    kind: str, table: pa.Table, piece: int, predicate: Expr | None, data: st.DataObject
) -> None:
    columns = data.draw(st.lists(st.sampled_from(SCHEMA.names), unique=True))
    kept = np.ones(len(table), bool)
    if predicate is not None:
        kept = passes(predicate, {name: table[name] for name in predicate.columns()})
    with TemporaryDirectory() as folder, WRITERS[kind](table, Path(folder), piece).open() as reader:
        units = reader.units()
        chosen = data.draw(st.none() | st.lists(st.integers(0, len(units) - 1), unique=True))
        ends = np.cumsum([unit.rows for unit in units])
        if chosen is not None:
            kept &= np.isin(np.searchsorted(ends, np.arange(len(table)), side="right"), chosen)
        batches = list(reader.scan(columns, predicate, chosen))
        found = pa.Table.from_batches(batches) if batches else pa.table({name: [] for name in [*columns, ROW]})

    assert found.column_names == [*columns, ROW]
    assert found[ROW].to_pylist() == np.flatnonzero(kept).tolist()
    assert repr(found.select(columns).to_pylist()) == repr(table.filter(pa.array(kept)).select(columns).to_pylist())


@pytest.mark.parametrize("kind", WRITERS)
def test_units_add_up_and_are_called_the_same_when_opened_again(kind: str, tmp_path: Path) -> None:
    table = pa.table(
        {
            "id": [f"s{i}" for i in range(50)],
            "n": range(50),
            "f": [1.0] * 50,
            "payload": [b"x"] * 50,
            "part": [{"uri": "u", "offset": 0}] * 50,
        },
        schema=SCHEMA,
    )
    source = WRITERS[kind](table, tmp_path, 9)
    with source.open() as first, source.open() as second:
        units = first.units()

        assert sum(unit.rows for unit in units) == 50
        assert all(sum(unit.groups) == unit.rows for unit in units)
        assert all(len(unit.content_key) == 32 for unit in units)
        assert list(units) == list(second.units())


@pytest.mark.parametrize("kind", WRITERS)
def test_a_row_past_the_end_is_refused(kind: str, tmp_path: Path) -> None:
    table = pa.Table.from_pylist([{"id": name, "part": {"uri": "u", "offset": 0}} for name in "ab"], schema=SCHEMA)
    with (
        WRITERS[kind](table, tmp_path, 9).open() as reader,
        pytest.raises(Exception, match=r"row 2 was asked for, .* 2 rows$") as caught,
    ):
        reader.fetch(np.array([2], dtype=np.uint64), ["id"])

    assert type(caught.value).__name__ == "SourceError"


@pytest.mark.parametrize("kind", ["lance", "parquet", "arrow"])
def test_numpy_reads_a_fetched_fixed_width_column_without_a_copy(kind: str, tmp_path: Path) -> None:
    table = pa.Table.from_pylist([{"id": f"{i}", "n": i} for i in range(20)], schema=SCHEMA)
    with WRITERS[kind](table, tmp_path, 100).open() as reader:
        column = reader.fetch(np.arange(5, 15, dtype=np.uint64), ["n"])["n"]
        view = column.chunk(0).to_numpy(zero_copy_only=True)

    assert column.num_chunks == 1
    assert view.ctypes.data == column.chunk(0).buffers()[1].address + 8 * column.chunk(0).offset
    assert view.tolist() == list(range(5, 15))
