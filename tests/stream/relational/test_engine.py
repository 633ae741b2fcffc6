import sys

import numpy as np
import pyarrow as pa
import pytest

from spiral_stream.errors import PlanError
from spiral_stream.relational import engine
from spiral_stream.relational.sql import describe_sql, run_sql

LABELS = pa.table({"label_id": pa.array([2, 1, 2, None], pa.int32()), "x": [1.0, 2.0, None, 4.0]})


def test_the_engine_is_imported_only_when_used() -> None:
    import subprocess

    code = "import sys, spiral_stream.relational.engine; sys.exit('duckdb' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("name", ["vision.labels", '"vision.labels"', "VISION.labels"])
def test_a_dotted_name_is_found_however_it_is_quoted(name: str) -> None:
    tables = {"vision.labels": LABELS}

    assert run_sql(f"SELECT sum(x) AS s FROM {name}", tables).to_pydict() == {"s": [7.0]}


def test_a_query_says_what_it_reads_and_gives() -> None:
    schemas = {"vision.labels": LABELS.schema, "b": LABELS.schema, "c": LABELS.schema}
    text = (
        'WITH z AS (SELECT * FROM "b") SELECT label_id, count(*) AS n FROM z JOIN vision.labels USING (label_id)'
        " GROUP BY 1"
    )

    used, schema, _ = describe_sql(text, schemas)

    assert used == ["b", "vision.labels"]
    assert schema == pa.schema([("label_id", pa.int32()), ("n", pa.int64())])


@pytest.mark.parametrize(
    ("text", "way_out"),
    [
        ("SELECT nope FROM t", 'Candidate bindings: "label_id"'),
        ("SELEC 1", "correct it in DuckDB's dialect"),
        ("SELECT * FROM other", "The query may read t;"),
        ("SELECT * FROM read_parquet('/etc/hostname')", "read_parquet reads no relation; register what it reads"),
    ],
)
def test_a_refused_query_says_what_may_be_read(text: str, way_out: str) -> None:
    with pytest.raises(PlanError) as refused:
        run_sql(text, {"t": LABELS})

    assert way_out in str(refused.value)


def test_only_queries_describe_relations() -> None:
    with pytest.raises(PlanError, match="dialect"):
        describe_sql("SELECT * FROM missing", {"t": LABELS.schema})


def test_a_stream_of_batches_is_read_without_holding_it() -> None:
    reader = pa.RecordBatchReader.from_batches(LABELS.schema, iter(LABELS.to_batches(max_chunksize=1)))

    assert run_sql("SELECT count(*) AS n FROM t", {"t": reader}).to_pydict() == {"n": [4]}


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


def test_the_same_rows_give_the_same_bytes() -> None:
    rng = np.random.default_rng(1)
    rows = pa.table({"k": rng.integers(0, 5000, 200_000), "x": rng.random(200_000)})
    text = "SELECT t.k, sum(t.x) AS s FROM t JOIN t AS u USING (k) WHERE u.x > 0.9 GROUP BY t.k"

    first, second = (run_sql(text, {"t": rows}) for _ in range(2))

    assert first.equals(second)
