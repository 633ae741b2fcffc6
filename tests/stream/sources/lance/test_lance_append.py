"""What is appended alone conflicts with whatever changed rows meanwhile, and disturbs nothing that was there."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.fragment import write_fragments

from spiral_stream.errors import SourceError
from spiral_stream.sources.lance.fragments import append_alone

ROWS = pa.table({"n": range(10), "text": [str(n) for n in range(10)]})
MORE = pa.table({"n": [77], "text": ["more"]})


@pytest.fixture
def uri(tmp_path: Path) -> str:
    lance.write_dataset(ROWS, str(tmp_path / "t.lance"), max_rows_per_file=5)
    return str(tmp_path / "t.lance")


def described(uri: str) -> list[str]:
    return [json.dumps(each.to_json()) for each in write_fragments(MORE, uri, schema=lance.dataset(uri).schema)]


CHANGES: dict[str, Callable[[Any], Any]] = {
    "append": lambda there: lance.write_dataset(MORE, there.uri, mode="append"),
    "delete": lambda there: there.delete("n = 3"),
    "update": lambda there: there.update({"text": "'x'"}, where="n = 3"),
    "compact": lambda there: there.optimize.compact_files(),
    "add": lambda there: there.add_columns(pa.schema([("new", pa.int8())])),
    "drop": lambda there: there.drop_columns(["text"]),
    "overwrite": lambda there: lance.write_dataset(ROWS, there.uri, mode="overwrite"),
    "alone": lambda there: append_alone(there.uri, described(there.uri), there.version),
    "nothing": lambda there: append_alone(there.uri, (), there.version),
}


@pytest.mark.parametrize("change", CHANGES)
def test_rows_that_changed_meanwhile_are_a_conflict(uri: str, change: str) -> None:
    there, ours = lance.dataset(uri), described(uri)
    CHANGES[change](lance.dataset(uri))
    after = lance.dataset(uri).to_table()
    with pytest.raises(SourceError, match=r"t\.lance"):
        append_alone(uri, ours, there.version)

    assert lance.dataset(uri).to_table() == after


@pytest.mark.parametrize("stable", [False, True])
def test_deleted_rows_stay_deleted_and_an_index_answers_for_new_rows(tmp_path: Path, stable: bool) -> None:
    uri = str(tmp_path / "t.lance")
    lance.write_dataset(ROWS, uri, max_rows_per_file=5, enable_stable_row_ids=stable)
    there = lance.dataset(uri)
    there.create_scalar_index("n", "BTREE")
    there.delete("n >= 5 OR n = 2")  # the whole last fragment: its number may not be given again
    append_alone(uri, described(uri), there.version)
    found = lance.dataset(uri)

    assert found.to_table()["n"].to_pylist() == [0, 1, 3, 4, 77]
    assert found.to_table(filter="n = 77")["text"].to_pylist() == ["more"]
    assert found.to_table(filter="n = 5 OR n = 2").num_rows == 0
    assert lance.write_dataset(MORE, uri, mode="append").count_rows() == 6
    assert found.optimize.compact_files() is not None
    assert sorted(lance.dataset(uri).to_table()["n"].to_pylist()) == [0, 1, 3, 4, 77, 77]


def test_an_append_of_others_that_began_before_is_no_conflict(uri: str) -> None:
    before = lance.dataset(uri)
    fragments = write_fragments(MORE, uri, schema=before.schema)
    append_alone(uri, described(uri), before.version)
    lance.LanceDataset.commit(uri, lance.LanceOperation.Append(fragments), read_version=before.version)

    assert lance.dataset(uri).to_table()["n"].to_pylist() == [*range(10), 77, 77]
