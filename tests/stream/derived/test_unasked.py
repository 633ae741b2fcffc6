"""What opening a stream makes unasked is told before it begins, and above a bound it is not made."""

import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import spiral_stream as sp
from spiral_stream.derived import unasked
from spiral_stream.derived.unasked import Cost, in_bytes
from spiral_stream.planner.selection import narrow_columns as kept_columns
from tests.fixtures.inner import stages_of

pytestmark = pytest.mark.usefixtures("no_threads_left")

ROWS = 3_000
TABLE = pa.table(
    {
        "id": np.arange(ROWS),
        "x": np.arange(ROWS) * 7 % 100,
        "small": (np.arange(ROWS) % 5).astype(np.int8),
        "text": [f"t{k}" for k in range(ROWS)],
        "tokens": pa.array([list(range(k % 4)) for k in range(ROWS)], pa.list_(pa.int32())),
    }
)


@pytest.fixture
def catalog(tmp_path: Path) -> sp.Catalog:
    pq.write_table(TABLE, tmp_path / "rows.parquet", row_group_size=500)
    catalog = sp.connect(str(tmp_path / "catalog"))
    catalog.register("rows", sp.Parquet(str(tmp_path / "rows.parquet")), identity="id")
    return catalog


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Every relation is large enough for a look, and nothing is worth telling."""
    monkeypatch.setattr(unasked, "LOOKED_AT_ROWS", 1)
    monkeypatch.setattr(kept_columns, "LOOKED_AT_ROWS", 1)
    return monkeypatch


def stream(catalog: sp.Catalog, *, filtered: bool = False) -> sp.PreparedStream:
    rows = catalog.table("rows")
    rows = rows.filter(sp.col("x") < 50) if filtered else rows
    fields = {name: sp.List(name) for name in ("id", "x", "small", "text", "tokens")}
    made: sp.PreparedStream = (
        rows.sample(order=sp.GlobalShuffle(seed=3)).collate(batch_size=64, fields=fields).to_numpy()
    )
    return made


def words(stream: sp.PreparedStream) -> str:
    """EXPLAIN without its line breaks."""
    return " ".join(str(stream.explain()).split())


def test_much_is_told_before_it_is_made_and_only_once(catalog: sp.Catalog, looked_at: pytest.MonkeyPatch) -> None:
    looked_at.setattr(unasked, "WARN_CPU_S", 0.0)
    with stream(catalog, filtered=True) as one, pytest.warns(sp.SpiralWarning) as told:
        first = next(iter(one))
    messages = [str(each.message) for each in told]
    assert len(messages) == 2
    assert "makes survivors now, which later ones read: 3,000 rows, about" in messages[0]
    assert "makes columns of id, small, text, tokens, x now" in messages[1]
    assert all('call stream.materialize(executor="processes")' in each for each in messages)
    with stream(catalog, filtered=True) as again, warnings.catch_warnings():
        warnings.simplefilter("error")
        assert next(iter(again)) == first


def test_what_is_asked_for_is_not_told(catalog: sp.Catalog, looked_at: pytest.MonkeyPatch) -> None:
    looked_at.setattr(unasked, "WARN_CPU_S", 0.0)
    with stream(catalog, filtered=True) as one, pytest.warns(sp.SpiralWarning) as told:
        one.materialize(report=lambda _: None)
    assert [str(each.message)[:30] for each in told] == ["materialize: nothing is built:"]


def test_above_the_bound_the_smallest_columns_are_made_and_explain_names_the_others(
    catalog: sp.Catalog, looked_at: pytest.MonkeyPatch
) -> None:
    with stream(catalog) as one:
        expected = list(one)
    other = sp.connect(str(catalog.root / "other"))
    other.register("rows", catalog.entry("rows").source, identity="id")
    looked_at.setattr(unasked, "MOST_BYTES", 8 * ROWS)

    with stream(other) as one:
        assert list(one) == expected
        kept = stages_of(one).streams[0].selected.narrow
        assert {name for name in TABLE.column_names if name in kept} == {"small"}
        lines = words(one)
        for name in ("id", "x", "text", "tokens"):
            assert f"column rows.{name}" in lines
        assert "more than is done unasked: stream.materialize()" in lines
        assert "rows.small" not in lines

        one.materialize(report=lambda _: None)
        assert "than is done unasked" not in words(one)
        assert all(name in stages_of(one).streams[0].selected.narrow for name in TABLE.column_names)
        assert list(one) != expected  # the next epoch
    with stream(other) as one:
        assert list(one) == expected


@pytest.mark.parametrize(
    ("size", "text"), [(5e5, "0.5 MB"), (3.2e9, "3.2 GB"), (8e10, "80 GB"), (2e13, "20 TB"), (0, "0.0 MB")]
)
def test_bytes_have_two_digits(size: float, text: str) -> None:
    assert in_bytes(size) == text
    assert str(Cost(1_000, size, 3.4)) == f"1,000 rows, about {text} on disk and 3 s of CPU time"


def test_opening_one_large_file_takes_no_memory_for_its_rows(tmp_path: Path) -> None:
    """12 million rows in one file: before, 47 bytes of memory for each."""
    count, group = 12_000_000, 1_000_000
    with pq.ParquetWriter(tmp_path / "rows.parquet", pa.schema([("x", pa.int64())])) as writer:
        for first in range(0, count, group):
            writer.write_table(pa.table({"x": np.arange(first, first + group)}), row_group_size=group)
    script = f"""
import resource
import spiral_stream as sp
catalog = sp.connect({str(tmp_path / "catalog")!r})
catalog.register("rows", sp.Parquet({str(tmp_path / "rows.parquet")!r}), identity=sp.RowIdentity())
rows = catalog.table("rows").filter(sp.col("x") % 3 < 2)
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before = peak()
with rows.sample(order=sp.Sequential()).collate(batch_size=64, fields={{"x": sp.Stack("x")}}).to_numpy() as stream:
    print(len(stream), (peak() - before) >> 10)
"""
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    steps, megabytes = map(int, done.stdout.split())
    assert steps == 8_000_000 // 64
    assert megabytes < 280, "568 MB before"
