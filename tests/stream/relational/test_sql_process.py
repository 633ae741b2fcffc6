"""What a text may read, and what an answer is, in the process that SQL text runs in; attacks on it are in `test_sql`."""

import json
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.relational import sql_process
from spiral_stream.relational.sql_process import MAKERS, RefusedError, first_alike, used_relations
from tests.fixtures.examples import few

KNOWN = ["vision.labels", "labels", "Words", "other"]
TABLE = pa.table({"id": [1, 2, 3], "Score": [0.5, None, 2.5]})


@given(st.lists(st.text("aAbBäÄ", min_size=1, max_size=3), max_size=6))
def test_names_are_alike_exactly_if_they_differ_in_the_case_of_ascii_letters_alone(names: list[str]) -> None:
    folded = [name.encode().lower() for name in names]
    found = first_alike(names)

    assert (found is None) == all(
        one == other or folded[i] != folded[j] for i, one in enumerate(names) for j, other in enumerate(names)
    )
    if found is not None:
        assert found[0] != found[1]
        assert found[0].encode().lower() == found[1].encode().lower()


@few(6, 12)  # each opens the engine
@given(names=st.lists(st.sampled_from(KNOWN), min_size=1, unique=True), data=st.data())
def test_the_relations_of_a_text_are_those_that_it_names_however_they_are_written(
    names: list[str], data: st.DataObject
) -> None:
    quoted = [data.draw(st.sampled_from([f'"{name}"', name, name.upper()])) for name in names]
    ways = [" JOIN ".join(f"{name} USING (id)" if i else name for i, name in enumerate(quoted))]
    ways.append(", ".join(f"(SELECT * FROM {name}) AS t{i}" for i, name in enumerate(quoted)))
    text = f"WITH w AS (SELECT 1 AS id) SELECT 1 FROM {data.draw(st.sampled_from(ways))}, w"

    assert used_relations(text, KNOWN)[0] == sorted(names)


def test_functions_that_make_rows_read_nothing() -> None:
    assert used_relations("SELECT * FROM range(3), unnest([1])", KNOWN)[0] == []
    assert {"range", "unnest"} <= MAKERS


@pytest.mark.parametrize(
    ("text", "way_out"),
    [
        ("DELETE FROM labels", "the text is DELETE. Give one SELECT"),
        ("SELECT 1; SELECT 2", "the text is SELECT, SELECT. Give one SELECT"),
        ("", "the text is nothing. Give one SELECT"),
        ("SELECT * FROM read_csv('x')", "read_csv reads no relation. Register what it reads, and name that"),
        ("SELECT * FROM (SELECT * FROM glob('*'))", "glob reads no relation. Register what it reads"),
        ("SELECT current_setting('threads')", "current_setting reads no relation but the engine's own state"),
        ("SELECT * FROM duckdb_tables", "duckdb_tables reads no relation but the engine's own state, .*. Leave it out"),
    ],
)
def test_a_text_that_reads_something_else_is_refused(text: str, way_out: str) -> None:
    with pytest.raises(RefusedError, match=way_out):
        used_relations(text, KNOWN)


def test_relations_that_the_text_cannot_tell_apart_are_refused() -> None:
    with pytest.raises(RefusedError, match=r"relations 'A' and 'a' differ only in case.*. Rename one of them"):
        used_relations('SELECT * FROM "a", "A"', ["a", "A"])
    assert used_relations('SELECT * FROM "A"', ["a", "A"])[0] == ["A"]


def asked(text: str, task: str = "run", **changes: Any) -> tuple[list[dict[str, Any]], pa.Table | None]:
    """What the process says to a text over ``space.t``, and the rows that it sends; its scans get all rows at once."""
    request = {
        "task": task,
        "text": text,
        "relations": ["space.t"],
        "timeout_s": 600,
        "memory_bytes": 1 << 32,
        "spill": "",
    } | changes
    command = [sys.executable, "-P", sql_process.__file__]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(request).encode() + b"\n")
        with pa.ipc.new_stream(process.stdin, TABLE.schema):
            pass
        process.stdin.flush()
        heard, scans, reader, rows = list[dict[str, Any]](), list[Any](), None, list[pa.RecordBatch]()
        while not heard or not heard[-1].keys() & {"answer", "error"}:
            heard.append(json.loads(process.stdout.readline()))
            if "scan" in heard[-1]:
                sent = TABLE.select(heard[-1]["columns"])
                scans.append((pa.ipc.new_stream(process.stdin, sent.schema), iter(sent.to_batches())))
            elif "next" in heard[-1]:
                writer, batches = scans[heard[-1]["next"]]
                batch = next(batches, None)
                writer.close() if batch is None else writer.write_batch(batch)
                process.stdin.flush()
            elif "rows" in heard[-1]:
                reader = pa.ipc.open_stream(process.stdout) if reader is None else reader
                rows += [reader.read_next_batch()] if heard[-1]["rows"] else list(reader)
    return heard, None if reader is None else pa.Table.from_batches(rows, reader.schema)


def test_a_query_asks_for_the_columns_that_it_names() -> None:
    heard, rows = asked("SELECT id, Score * 2 AS twice FROM space.t WHERE Score IS NOT NULL ORDER BY id DESC")

    assert heard[0]["scan"] == "space.t"
    assert sorted(heard[0]["columns"]) == ["Score", "id"]
    assert heard[0]["where"]["type"] == "OPERATOR_IS_NOT_NULL"
    assert heard[-1] == {"answer": {}}
    assert rows is not None
    assert rows.to_pydict() == {"id": [3, 1], "twice": [5.0, 1.0]}


def test_a_description_has_the_columns_no_rows_and_the_floats_that_are_read() -> None:
    heard, rows = asked("SELECT id, id, max(SCORE) FROM space.t GROUP BY id", "describe")

    assert heard[-1] == {"answer": {"used": ["space.t"], "floats": [["space.t", "Score"]], "unsteady": []}}
    assert not any("scan" in each for each in heard)
    assert rows is not None
    assert (len(rows), rows.column_names[:2]) == (0, ["id", "id"])


def test_the_process_imports_neither_numpy_nor_pandas() -> None:
    """Starting is most of what a short query costs."""
    sent = json.dumps(
        {
            "task": "run",
            "text": "SELECT 1 AS x",
            "relations": [],
            "timeout_s": 600,
            "memory_bytes": 1 << 32,
            "spill": "",
        }
    )
    command = [sys.executable, "-X", "importtime", "-P", sql_process.__file__]
    done = subprocess.run(command, input=f"{sent}\n".encode(), capture_output=True, check=True)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.decode().splitlines()}

    assert done.stdout.endswith(b'{"answer": {}}\n')
    assert {"duckdb", "pyarrow"} <= imported
    assert imported.isdisjoint({"numpy", "pandas"})


def test_an_error_is_told_in_one_line_without_rows() -> None:
    (error,), rows = asked("SELECT none FROM space.t")

    assert rows is None
    assert error["memory"] is False
    assert 'Referenced column "none" not found' in error["error"]


def test_a_result_beyond_the_memory_is_told_so() -> None:
    rows = pa.table({"a": list(range(1000))})
    reader = pa.RecordBatchReader.from_batches(rows.schema, rows.to_batches(max_chunksize=100))
    with pytest.raises(MemoryError, match="larger than the memory limit") as caught:
        list(sql_process.within(reader, 8 * 350))
    assert sql_process.is_memory(caught.value)
    kept = pa.RecordBatchReader.from_batches(rows.schema, rows.to_batches(max_chunksize=100))
    assert sum(len(batch) for batch in sql_process.within(kept, 8_000)) == 1000
