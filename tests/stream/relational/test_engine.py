import sys
import threading

import numpy as np
import pyarrow as pa
import pytest

from spiral_stream.errors import PlanError
from spiral_stream.relational import engine

LABELS = pa.table({"label_id": pa.array([2, 1, 2, None], pa.int32()), "x": [1.0, 2.0, None, 4.0]})


def test_the_engine_is_imported_only_when_used() -> None:
    import subprocess

    code = "import sys, spiral_stream.relational.engine; sys.exit('duckdb' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_groups_come_sorted_with_null_last() -> None:
    measures = [("x", "count", "n"), ("x", "sum", "s"), ("label_id", "sum", "l"), ("x", "avg", "a")]

    out = engine.aggregate(LABELS, ["label_id"], measures)

    assert out.to_pydict() == {
        "label_id": [1, 2, None],
        "n": [1, 1, 1],
        "s": [2.0, 1.0, 4.0],
        "l": [1, 4, None],
        "a": [2.0, 1.0, 4.0],
    }
    assert out.schema.field("l").type == pa.int64()


def test_no_keys_make_one_group() -> None:
    out = engine.aggregate(LABELS, [], [("label_id", "count_distinct", "d"), ("x", "max", 'm"')])

    assert out.to_pydict() == {"d": [2], 'm"': [4.0]}


@pytest.mark.usefixtures("no_threads_left")
def test_an_aggregate_that_takes_too_long_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPIRAL_SQL_TIMEOUT_S", "0.02")
    rows = pa.table({"k": np.arange(3_000_000) * 2654435761 % 2**32})

    with pytest.raises(
        PlanError, match=r"aggregate count\(k\): not done within 0\.02 s.*or set \$SPIRAL_SQL_TIMEOUT_S"
    ):
        engine.aggregate(rows, ["k"], [("k", "count", "n")])
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("spiral-")] == []


def test_an_aggregate_beyond_its_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPIRAL_SQL_MEMORY_BYTES", str(1 << 20))
    rows = pa.table({"k": np.arange(200_000)})

    with pytest.raises(PlanError, match=r"aggregate max\(k\): needs more than .*or set \$SPIRAL_SQL_MEMORY_BYTES"):
        engine.aggregate(rows, ["k"], [("k", "max", "n")])


def test_a_column_that_cannot_be_measured_is_named() -> None:
    rows = pa.table({"Big": pa.array([2**64 - 1, 1], pa.uint64())})

    with pytest.raises(PlanError, match=r"aggregate sum\(Big\): .*out of range.*c0 is 'Big' \(uint64\).*cast it first"):
        engine.aggregate(rows, [], [("Big", "sum", "n")])
