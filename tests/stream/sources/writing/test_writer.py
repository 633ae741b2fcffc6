"""Rows that a writer was given are in the dataset, all or none, whoever else writes and whoever is killed."""

import json
import multiprocessing
import os
import pickle
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.synchronize import Barrier
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.errors import SourceError
from spiral_stream.semantic import JPEG_REF, with_semantic
from spiral_stream.sources.writing import destinations as targets
from spiral_stream.sources.writing import parts, writer
from tests.fixtures import warm
from tests.fixtures.examples import few
from tests.fixtures.writers import end_as_killed

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.utf8()), ("data", pa.large_binary()), ("few", pa.list_(pa.int16()))])
ROWS = [
    {"n": k, "text": None if k % 5 == 0 else f"t{k}", "data": bytes([k % 256]) * k, "few": [k, 1]} for k in range(200)
]


def read(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = lance.dataset(str(folder)).to_table().to_pylist()
    return found


def left(folder: Path) -> list[str]:
    """What is in a dataset's folder and no version names."""
    named = {file.path for each in lance.dataset(str(folder)).get_fragments() for file in each.metadata.files}
    data = {path.name for path in (folder / "data").iterdir()}
    assert named <= data
    drafts = [str(path.relative_to(folder)) for path in (folder / "_drafts").rglob("*")]
    return sorted([*(data - named), *drafts])


@few(10, 25)
@given(
    rows=st.lists(
        st.fixed_dictionaries(
            {
                "n": st.integers(-(2**63), 2**63 - 1),
                "text": st.none() | st.text(max_size=8),
                "data": st.none() | st.binary(max_size=300),
                "few": st.none() | st.lists(st.none() | st.integers(-5, 5), max_size=3),
            }
        ),
        min_size=1,
        max_size=60,
    ),
    shard_bytes=st.integers(1, 4000),
    shard_rows=st.none() | st.integers(1, 30),
    given_as=st.sampled_from(["rows", "batches", "tables", "mixed"]),
)
def test_rows_come_back_in_their_order_and_shards_keep_their_limits(
    rows: list[dict[str, Any]], shard_bytes: int, shard_rows: int | None, given_as: str
) -> None:
    with TemporaryDirectory() as folder:
        place = Path(folder, "t.lance")
        with sp.sources.Writer(place, SCHEMA, shard_bytes=shard_bytes, shard_rows=shard_rows) as out:
            for at in range(0, len(rows), 7):
                piece = pa.Table.from_pylist(rows[at : at + 7], SCHEMA)
                if given_as == "rows" or (given_as == "mixed" and at % 2):
                    for row in rows[at : at + 7]:
                        out.write(row)
                elif given_as == "batches":
                    for batch in piece.to_batches():
                        out.write(batch)
                else:
                    out.write(piece.select(["few", "data", "n", "text"]))  # in any order
        found = read(place)
        counts = [each.count_rows() for each in lance.dataset(str(place)).get_fragments()]

    assert found == rows
    assert max(counts) <= (shard_rows or len(rows))
    sizes = np.split(np.array([pa.Table.from_pylist([row], SCHEMA).nbytes for row in rows]), np.cumsum(counts)[:-1])
    assert all(
        each[:-1].sum() <= shard_bytes + 64 * len(each) or len(each) == 1 for each in sizes if given_as == "rows"
    )


def test_a_dataset_that_is_there_grows_and_a_registered_relation_takes_it_in(tmp_path: Path) -> None:
    catalog = sp.connect(str(tmp_path / "catalog"))
    for part in range(3):
        with sp.sources.Writer(tmp_path / "t.lance", SCHEMA, part=part) as out:
            out.write({**ROWS[3], "n": part})
        if part == 0:
            catalog.register("t", sp.Lance(str(tmp_path / "t.lance")), identity="n")
    entry = catalog.refresh("t")

    assert catalog.table("t").to_arrow()["n"].to_pylist() == [0, 1, 2]
    assert entry.changes is not None
    assert len(entry.changes.added) == 2
    assert left(tmp_path / "t.lance") == []


def test_metadata_of_columns_is_kept(tmp_path: Path) -> None:
    marked = with_semantic(pa.schema([("id", pa.utf8()), ("image", pa.large_binary())]), {"image": JPEG_REF})
    with sp.sources.Writer(tmp_path / "t.lance", marked) as out:
        out.write({"id": "a", "image": b"x"})
    catalog = sp.connect(str(tmp_path / "catalog"))
    entry = catalog.register("t", sp.Lance(str(tmp_path / "t.lance")), identity="id")

    assert entry.schema.field("image").metadata[b"spiral:semantic"] == JPEG_REF.encode()


def test_columns_that_were_added_and_dropped_by_others_are_written_to_their_places(tmp_path: Path) -> None:
    with sp.sources.Writer(tmp_path / "t.lance", SCHEMA) as out:
        out.write(ROWS[4])
    dataset = lance.dataset(str(tmp_path / "t.lance"))
    dataset.add_columns({"double": "n * 2"})
    lance.dataset(str(tmp_path / "t.lance")).drop_columns(["n", "text"])
    now = lance.dataset(str(tmp_path / "t.lance")).schema
    with sp.sources.Writer(tmp_path / "t.lance", now) as out:
        out.write({"double": 7, "data": b"seven", "few": [7]})

    assert read(tmp_path / "t.lance")[1] == {"data": b"seven", "few": [7], "double": 7}


def test_an_older_storage_version_is_kept(tmp_path: Path) -> None:
    lance.write_dataset(pa.Table.from_pylist(ROWS[:2], SCHEMA), str(tmp_path / "t.lance"), data_storage_version="2.0")
    with sp.sources.Writer(tmp_path / "t.lance", SCHEMA) as out:
        out.write(ROWS[2])

    assert read(tmp_path / "t.lance") == ROWS[:3]


def test_values_may_be_changed_after_they_were_given(tmp_path: Path) -> None:
    held, array = {"n": 0, "text": "a", "data": bytearray(b"x"), "few": [1]}, np.zeros(2, np.int16)
    with sp.sources.Writer(tmp_path / "t.lance", SCHEMA) as out:
        for k in range(3):
            array[:] = k
            held |= {"n": k, "few": array}
            held["data"][0] = k  # type: ignore[index]  # a bytearray
            out.write(held)

    assert [(row["n"], row["data"], row["few"]) for row in read(tmp_path / "t.lance")] == [
        (k, bytes([k]), [k, k]) for k in range(3)
    ]


def test_an_exception_publishes_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    def write() -> None:
        with sp.sources.Writer(tmp_path / "t.lance", SCHEMA, shard_rows=1) as out:
            out.write(ROWS[1])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write()

    assert list((tmp_path / "t.lance").iterdir()) == []


def test_a_writer_without_rows_publishes_nothing(tmp_path: Path) -> None:
    with sp.sources.Writer(tmp_path / "t.lance", SCHEMA) as out:
        assert out.close() == writer.WriteResult(0, 0, 0, 0)

    assert list((tmp_path / "t.lance").iterdir()) == []


def test_close_says_what_was_written(tmp_path: Path) -> None:
    out = sp.sources.Writer(tmp_path / "t.lance", SCHEMA, shard_rows=150)
    for row in ROWS:
        out.write(row)
    done = out.close()

    assert (done.rows, done.shards, out.rows) == (200, 2, 200)
    assert done.version == lance.dataset(str(tmp_path / "t.lance")).version
    assert done.size_bytes == sum(path.stat().st_size for path in (tmp_path / "t.lance" / "data").iterdir())
    out.abort()  # does nothing
    with pytest.raises(SourceError, match=r"it is closed\. Make another one"):
        out.write(ROWS[0])
    with pytest.raises(SourceError, match=r"it is closed\. Make another one"):
        out.close()


def test_equal_rows_of_a_named_part_have_equal_content_keys(tmp_path: Path) -> None:
    keys = []
    for name in ("a.lance", "b.lance"):
        with sp.sources.Writer(tmp_path / name, SCHEMA, part="one") as out:
            for row in ROWS:
                out.write(row)
        with sp.Lance(str(tmp_path / name)).open() as reader:
            keys.append([unit.content_key for unit in reader.units()])
    with sp.sources.Writer(tmp_path / "c.lance", SCHEMA, part="one") as out:
        out.write(ROWS[0])
    with sp.Lance(str(tmp_path / "c.lance")).open() as reader:
        assert reader.units()[0].content_key not in keys[0]

    assert keys[0] == keys[1]


@pytest.mark.parametrize("part", [3, "3"])
def test_a_part_is_taken_once(tmp_path: Path, part: Any) -> None:
    early = sp.sources.Writer(tmp_path / "t.lance", SCHEMA, part=part)
    early.write(ROWS[0])
    with sp.sources.Writer(tmp_path / "t.lance", SCHEMA, part=3) as out:
        out.write(ROWS[1])

    with pytest.raises(SourceError, match=r"has part '3' already\. Leave the part out"):
        sp.sources.Writer(tmp_path / "t.lance", SCHEMA, part=part)
    with pytest.raises(SourceError, match="has part '3' already, so nothing was added"):
        early.close()
    assert read(tmp_path / "t.lance") == [ROWS[1]]
    assert left(tmp_path / "t.lance") == []


@pytest.mark.parametrize("part", ["", "a/b", "..", "a-b", "x" * 65, True, 1.5, b"a"])
def test_a_part_with_no_legal_name_is_refused(tmp_path: Path, part: Any) -> None:
    with pytest.raises(SourceError, match="Give a number, or a name of up to 64 letters, digits and _"):
        sp.sources.Writer(tmp_path / "t.lance", SCHEMA, part=part)


@pytest.mark.parametrize(
    ("schema", "found"),
    [
        (
            {"n": pa.int32(), "text": pa.utf8()},
            "column 'n' is int64, in the rows to write it is int32. Write the columns",
        ),
        ({"n": pa.int64()}, "column 'text' is string, in the rows to write it is not there"),
        (
            {"n": pa.int64(), "text": pa.utf8(), "x": pa.int8()},
            "column 'x' is not there, in the rows to write it is int8",
        ),
        ({"text": pa.utf8(), "n": pa.int64()}, "its columns stand in the order n, text. Give the schema in this order"),
    ],
)
def test_other_columns_than_those_of_the_dataset_are_refused(tmp_path: Path, schema: Any, found: str) -> None:
    lance.write_dataset(pa.table({"n": [1], "text": ["a"]}), str(tmp_path / "t.lance"))
    with pytest.raises(SourceError, match=found):
        sp.sources.Writer(tmp_path / "t.lance", pa.schema(schema))


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ({"schema": {"a": "int"}}, "the schema is a dict. Give a pyarrow schema"),
        ({"schema": pa.schema([])}, "the schema has no column"),
        ({"schema": pa.schema([("a", pa.int8()), ("a", pa.int8())])}, "two columns of one name"),
        ({"shard_bytes": 0}, "shard_bytes=0, shard_rows=None. Give positive numbers"),
        ({"shard_rows": 0}, "shard_rows=0. Give positive numbers"),
        ({"uri": "https://host/t.lance"}, "https:.*nothing is written there. Give s3"),
        ({"uri": "memory://a/t.lance"}, "memory:.*nothing is written there. Give s3"),
        ({"uri": "s3://bucket"}, "s3://bucket is a whole bucket. Give the dataset a name in it"),
        ({"uri": "s3://bucket/a%41.lance"}, "Give names without them"),
        ({"uri": "s3://bucket/a//b.lance"}, "keys with an empty part"),
        ({"uri": "s3://me:very-secret@bucket/t.lance"}, r"s3://\.\.\.@bucket.* carries a password"),
        ({"uri": Path("s3://bucket/t.lance")}, "begins with s3:/, which no folder of this machine does"),
    ],
)
def test_arguments_that_mean_nothing_are_refused(tmp_path: Path, arguments: Any, found: str) -> None:
    with pytest.raises(SourceError, match=found):
        sp.sources.Writer(**{"uri": tmp_path / "t.lance", "schema": SCHEMA, **arguments})


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SourceError, match=r"file: .*Give a folder that can be written"):
        sp.sources.Writer(tmp_path / "file", SCHEMA)


def test_a_writer_stays_in_its_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with sp.sources.Writer(tmp_path / "t.lance", SCHEMA) as out:
        with pytest.raises(TypeError, match="Make one in each process"):
            pickle.dumps(out)
        out.write(ROWS[0])
        monkeypatch.setattr("os.getpid", lambda: -1)  # as in a process that was forked
        with pytest.raises(SourceError, match="it belongs to the process that made it"):
            out.close()
        monkeypatch.undo()


def meet(barrier: Barrier) -> None:
    """Called as a process of a pool begins: none takes work before all have begun."""
    barrier.wait(120)


def write_part(folder: str, part: int | None, first: int) -> int:
    with sp.sources.Writer(folder, SCHEMA, part=part, shard_rows=10) as out:
        for k in range(first, first + 30):
            out.write({**ROWS[1], "n": k})
    return os.getpid()


def test_processes_write_at_the_same_time(tmp_path: Path) -> None:
    own, parts = (
        tmp_path / "own.lance",
        tmp_path / "parts.lance",
    )  # parts that the writer names, and that the caller does
    calls = [(str(place), part, 30 * k) for k in range(9) for place, part in ((own, None), (parts, k))]
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, spawn, meet, (spawn.Barrier(2),)) as pool:
        assert len(set(pool.map(write_part, *zip(*calls, strict=True)))) == 2

    for place in (own, parts):
        found = [row["n"] for row in read(place)]
        assert sorted(found) == list(range(270))
        assert all(found[at : at + 30] == list(range(found[at], found[at] + 30)) for at in range(0, 270, 30))
        assert left(place) == []


BEGINS = """
import sys
import pyarrow as pa
import spiral_stream as sp

print("ready", flush=True)
sys.stdin.readline()
for _ in range(200):
    sp.sources.Writer(sys.argv[1], pa.schema([("n", pa.int64())])).abort()
"""


def test_writers_that_end_do_not_disturb_writers_that_begin(tmp_path: Path) -> None:
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", BEGINS, str(tmp_path / "t.lance")]
    children = [warm.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) for _ in range(3)]
    try:
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
        for child in children:
            assert child.stdin is not None
            child.stdin.write("\n")
            child.stdin.flush()
        said = [child.communicate(timeout=280)[1] for child in children]
    finally:
        for child in children:
            child.kill()

    assert [child.returncode for child in children] == [0, 0, 0], said


WRITES = """
import sys
import pyarrow as pa
import spiral_stream as sp

schema = pa.schema([("part", pa.int64()), ("n", pa.int64()), ("data", pa.large_binary())])
for part in range(int(sys.argv[2]), 1000):
    with sp.sources.Writer(sys.argv[1], schema, part=part, shard_rows=20) as writer:
        for n in range(100):
            writer.write({"part": part, "n": n, "data": b"x" * 1000})
    print(part, flush=True)
"""


@pytest.mark.parametrize("moment", [1, *(pytest.param(k, marks=pytest.mark.slow) for k in range(2, 20))])
def test_a_killed_writer_leaves_whole_parts_and_the_next_one_sweeps(tmp_path: Path, moment: int) -> None:
    place, done = tmp_path / "t.lance", -1
    draw = random.Random(moment)
    for _ in range(2):
        command = [sys.executable, "-c", WRITES, str(place), str(done + 1)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            said = [int(child.stdout.readline())]
            time.sleep(draw.random() * 0.3)
            child.send_signal(signal.SIGKILL)
            said += [int(line) for line in child.stdout.read().splitlines()]
        rows = lance.dataset(str(place)).to_table(columns=["part", "n"])
        there = sorted(set(rows["part"].to_pylist()))
        done = there[-1]

        assert there == list(range(done + 1))  # all parts that were done, and no other
        assert len(rows) == 100 * len(there)
        assert max(said) in (done, done - 1)  # one may be there that nobody was told of
    schema = lance.dataset(str(place)).schema
    with sp.sources.Writer(place, schema) as out:
        out.write({"part": -1, "n": 0, "data": b""})

    assert left(place) == []
    assert lance.dataset(str(place)).count_rows() == 100 * len(there) + 1


class Killed(BaseException):
    """Ends a writer as a signal does: nothing is cleaned up."""


@pytest.mark.parametrize("moment", ["noted", "moved", "committed"])
def test_whatever_a_writer_had_done_when_it_died_is_taken_back_or_stands(
    tmp_path: Path, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "t.lance"
    with sp.sources.Writer(place, SCHEMA) as out:
        out.write(ROWS[0])

    def die(*_: Any) -> Any:
        raise Killed

    out = sp.sources.Writer(place, SCHEMA, part="dead", shard_rows=1)
    out.write(ROWS[1])
    out.write(ROWS[2])
    monkeypatch.setattr(sp.sources.Writer, "abort", lambda _self: None)
    if moment != "committed":
        monkeypatch.setattr(targets, {"noted": "made", "moved": "append"}[moment], die)
    if moment == "committed":
        monkeypatch.setattr(parts.PartDraft, "drop", die)
    with pytest.raises(Killed):
        out.close()
    monkeypatch.undo()
    end_as_killed(out)
    with sp.sources.Writer(place, SCHEMA) as after:
        after.write(ROWS[3])

    expected = [ROWS[0], *(ROWS[1:3] if moment == "committed" else []), ROWS[3]]
    assert read(place) == expected
    assert left(place) == []


def test_drafts_of_writers_that_live_are_left_alone(tmp_path: Path) -> None:
    with sp.sources.Writer(tmp_path / "t.lance", SCHEMA, shard_rows=1) as out:
        out.write(ROWS[0])
        out.write(ROWS[1])
        with sp.sources.Writer(tmp_path / "t.lance", SCHEMA) as other:
            other.write(ROWS[2])

    assert read(tmp_path / "t.lance") == [ROWS[2], ROWS[0], ROWS[1]]


def test_a_note_that_names_files_elsewhere_removes_none(tmp_path: Path) -> None:
    place, other = tmp_path / "t.lance", tmp_path / "t.lance" / "precious"
    with sp.sources.Writer(place, SCHEMA) as out:
        out.write(ROWS[0])
    other.write_text("x")
    draft = place / "_drafts" / f".dead.{'0' * 32}"
    draft.mkdir(parents=True)
    note = [{"file": "../precious", "rows": 1, "size_bytes": 1, "described": "{}"}]
    (draft / "part.json").write_text(json.dumps(note))
    with sp.sources.Writer(place, SCHEMA) as out:
        out.write(ROWS[1])

    assert other.exists()
    assert left(place) == []


def test_memory_holds_about_a_shard(tmp_path: Path) -> None:
    program = f"""
import resource
import pyarrow as pa
import spiral_stream as sp

schema = pa.schema([("data", pa.large_binary())])
data = bytes(1 << 20)
with sp.sources.Writer({str(tmp_path / "t.lance")!r}, schema, shard_bytes=16 << 20) as writer:
    for k in range(17):
        writer.write({{"data": data}})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for k in range(250):
        writer.write({{"data": data}})
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert float(done.stdout) < 150  # MB, of 250 that were written
