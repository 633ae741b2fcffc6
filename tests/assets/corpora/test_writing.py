"""What is written is whole or absent, and never over somebody's files."""

import os
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from spiral_assets.corpora.writing import Record, worker_count, write_lance


def test_only_a_finished_writing_of_the_same_recipe_is_found(tmp_path: Path) -> None:
    record = Record(tmp_path, "record.json", ["data"])
    record.begin()
    (tmp_path / "data").mkdir()
    assert record.found({"count": 1}) is None

    record.finish({"count": 1}, {"rows": 5})

    assert record.found({"count": 1}) == {"rows": 5}
    assert record.found({"count": 2}) is None


def test_a_new_writing_clears_its_own_files_and_refuses_others(tmp_path: Path) -> None:
    record = Record(tmp_path, "record.json", ["data"])
    (tmp_path / "data").mkdir()
    record.finish({}, {})

    record.begin()
    assert list(tmp_path.iterdir()) == []

    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"'thesis\.txt', which the demo did not write. Name an empty folder"):
        record.begin()
    assert (tmp_path / "thesis.txt").read_text() == "mine"


def test_a_lance_dataset_has_one_fragment_per_shard(tmp_path: Path) -> None:
    shards = [pa.table({"n": [0, 1]}), pa.table({"n": [2]})]

    write_lance(tmp_path / "numbers.lance", shards[0].schema, shards)

    written = lance.dataset(str(tmp_path / "numbers.lance"))
    assert [fragment.count_rows() for fragment in written.get_fragments()] == [2, 1]
    assert written.to_table()["n"].to_pylist() == [0, 1, 2]


@pytest.mark.parametrize("asked", [0, 3])
def test_as_many_processes_draw_as_asked_or_one_per_core(asked: int) -> None:
    assert worker_count(asked) == asked
    assert 1 <= worker_count(None) <= (os.cpu_count() or 1)
