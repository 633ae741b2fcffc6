"""What every source owes: the rows asked for, in the order asked, and the rows that pass."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import lance
import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
import vortex
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream import Arrow, Expr, Lance, Parquet, col
from spiral_stream.sources import Source, Vortex
from spiral_stream.sources.serialize import library_kinds
from spiral_stream.testing import check_source
from tests.fixtures.every_source import changed, made
from tests.fixtures.examples import few
from tests.fixtures.lines import Lines

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


def vortex_files(table: pa.Table, folder: Path, piece: int) -> Source:
    for i, start in enumerate(range(0, len(table), piece)):
        vortex.io.write(table.slice(start, piece), str(folder / f"part-{i:03d}.vortex"))
    return Vortex(str(folder))


def arrow_table(table: pa.Table, folder: Path, piece: int) -> Source:
    return Arrow(pa.concat_tables([table.slice(0, piece), table.slice(piece)]))


WRITERS = {
    "lance": lance_plain,
    "lance with deletions": lance_with_deletions,
    "lance blob v1": lance_blob("2.0"),
    "lance blob v2": lance_blob("2.2"),
    "parquet": parquet_files,
    "arrow": arrow_table,
    "vortex": vortex_files,
}


def predicates() -> st.SearchStrategy[Expr]:
    """What `check_source` does not draw by itself: arithmetic, zeros with signs, several columns."""
    return st.sampled_from(
        [
            col("f") == 0.0,
            col("f").is_nan() | col("n").is_null(),
            ~col("payload").is_null() & (col("n") % 2 == 1),
            col("id").is_in(["s0", "s3", "s7"]) & (col("f") / 2 < 1.0),
            (col("n") / col("n") == 1.0) & (col("id") != "s1"),
        ]
    )


@pytest.mark.parametrize("kind", WRITERS)
@few(4, 15)
@given(table=tables(), piece=st.integers(1, 20), predicate=predicates(), seed=st.integers(0, 2**32))
def test_a_source_of_ours_has_the_rows_that_were_written_and_keeps_the_laws(
    kind: str, table: pa.Table, piece: int, predicate: Expr, seed: int
) -> None:
    with TemporaryDirectory() as folder:
        source = WRITERS[kind](table, Path(folder), piece)
        with source.open() as reader:
            found = pa.Table.from_batches(reader.scan(SCHEMA.names))

            assert reader.schema.equals(SCHEMA)
            assert repr(found.select(SCHEMA.names).to_pylist()) == repr(table.to_pylist())
        check_source(source, predicates=[predicate], seed=seed)


def more_rows(source: Source, folder: Path) -> None:
    if isinstance(source, Lance):
        lance.dataset(source.uri).delete("id = 's7'")
    elif isinstance(source, Parquet):
        pq.write_table(pq.read_table(folder / "part-000.parquet").slice(1), folder / "part-000.parquet")
    elif isinstance(source, Vortex):
        path = str(folder / "part-000.vortex")
        vortex.io.write(vortex.open(path).to_arrow().read_all().slice(1), path)


@pytest.mark.parametrize("kind", [kind for kind in WRITERS if kind != "arrow"])
def test_a_changed_unit_has_another_content_key(kind: str, tmp_path: Path) -> None:
    rows = [{"id": f"s{k}", "n": k, "f": k / 2, "part": {"uri": "u", "offset": k}} for k in range(30)]
    source = WRITERS[kind](pa.Table.from_pylist(rows, schema=SCHEMA), tmp_path, 9)

    check_source(source, lambda: more_rows(source, tmp_path))


@pytest.mark.parametrize("kind", sorted(library_kinds()))
def test_every_source_of_the_library_keeps_the_laws(kind: str, tmp_path: Path) -> None:
    check_source(made(kind, tmp_path), lambda: changed(kind, tmp_path))


def test_a_source_that_is_imported_keeps_the_laws(tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        (tmp_path / f"{name}.num").write_text("\n".join(str(ord(name) * 100 + k) for k in range(20)))

    check_source(Lines(str(tmp_path)), lambda: (tmp_path / "a.num").write_text("1\n2"))


def test_partitions_and_origins_keep_the_laws(tmp_path: Path) -> None:
    rows = pa.table({"n": range(30), "year": [2020 + k % 3 for k in range(30)], "text": [f"t{k}" for k in range(30)]})
    pads.write_dataset(rows, tmp_path, format="parquet", partitioning=["year"], partitioning_flavor="hive")

    check_source(Parquet(str(tmp_path), origin=True), lambda: (tmp_path / "year=2021").rename(tmp_path / "year=2030"))


@pytest.mark.parametrize("kind", ["lance", "parquet", "arrow"])
def test_numpy_reads_a_fetched_fixed_width_column_without_a_copy(kind: str, tmp_path: Path) -> None:
    table = pa.Table.from_pylist([{"id": f"{i}", "n": i} for i in range(20)], schema=SCHEMA)
    with WRITERS[kind](table, tmp_path, 100).open() as reader:
        column = reader.fetch(np.arange(5, 15, dtype=np.uint64), ["n"])["n"]
        view = column.chunk(0).to_numpy(zero_copy_only=True)

    assert column.num_chunks == 1
    assert view.ctypes.data == column.chunk(0).buffers()[1].address + 8 * column.chunk(0).offset
    assert view.tolist() == list(range(5, 15))
