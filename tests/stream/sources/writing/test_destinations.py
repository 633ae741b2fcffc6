"""Rows that are written to an object store are there, all or none, whoever else writes and whoever is killed."""

import random
import re
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import spiral_stream as sp
from spiral_stream import use_storage
from spiral_stream.errors import SourceError
from spiral_stream.sources.lance import fragments as lance_append
from spiral_stream.sources.writing import destinations as targets
from spiral_stream.sources.writing import parts
from spiral_stream.storage.open import store_of
from spiral_stream.storage.profiles import options_of
from tests.fixtures import stores, warm
from tests.fixtures.writers import end_as_killed

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.utf8())])
Move = Callable[[str], Path]


@pytest.fixture
def uri(bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("SPIRAL_NODE_CACHE", str(tmp_path / "one" / "node"))
    return f"{bucket}/rows/t.lance"


@pytest.fixture
def to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Move:
    """Goes to a machine, and says where its drafts lie."""

    def move(machine: str) -> Path:
        monkeypatch.setenv("SPIRAL_NODE_CACHE", str(tmp_path / machine / "node"))
        return tmp_path / machine / "writing"

    return move


def dataset(uri: str, version: int | None = None) -> lance.LanceDataset:
    return lance.dataset(uri, version, storage_options=options_of(uri))


def numbers(uri: str) -> list[int]:
    found: list[int] = dataset(uri).to_table()["n"].to_pylist()
    return found


def objects(uri: str) -> list[str]:
    store, key = store_of(f"{uri}/")
    return [name for name, _ in store.list(key)]


def unnamed(uri: str) -> set[str]:
    """Files on the store that no version names."""
    store, key = store_of(f"{uri}/data/")
    there = {name[len(key) :] for name, _ in store.list(key)}
    found = lance_append.present(uri)
    named = frozenset() if found is None else found.files
    assert named <= there
    return there - named


def drafts(folder: Path) -> list[Path]:
    return [path for path in folder.glob("*/_drafts/**/*") if path.is_file()]


def write(uri: str, *rows: Any, part: str | None = None) -> None:
    with sp.sources.Writer(uri, SCHEMA, part=part, shard_rows=1) as out:
        for n in rows:
            out.write({"n": n, "text": str(n)})


def test_rows_come_back_and_a_registered_relation_takes_in_more(uri: str, to: Move, tmp_path: Path) -> None:
    folder = to("one")
    with sp.sources.Writer(uri + "/", SCHEMA, shard_rows=2) as out:
        out.write(pa.table({"n": [0, 1, 2], "text": ["a", None, "ü"]}))
        assert objects(uri) == []  # before the end
        assert len(drafts(folder)) == 1
    catalog = sp.connect(str(tmp_path / "catalog"))
    catalog.register("t", sp.Lance(uri), identity="n")
    write(uri, 3)
    changes = catalog.refresh("t").changes

    assert catalog.table("t").to_arrow()["text"].to_pylist() == ["a", None, "ü", "3"]
    assert changes is not None
    assert (len(changes.added), len(changes.removed)) == (1, 0)
    assert unnamed(uri) == set()
    assert drafts(folder) == []


def test_a_block_that_fails_leaves_nothing(uri: str, to: Move) -> None:
    with pytest.raises(SourceError, match="row 2: field 'n' is 'x'"):
        write(uri, 0, 1, "x")

    assert objects(uri) == []
    assert drafts(to("one")) == []


def test_a_part_is_taken_once_by_whoever_is_first(uri: str, to: Move) -> None:
    to("one")
    one = sp.sources.Writer(uri, SCHEMA, part="p")
    one.write({"n": 1, "text": "one"})
    two_drafts = to("two")
    two = sp.sources.Writer(uri, SCHEMA, part="p")
    two.write({"n": 2, "text": "two"})
    one.close()
    with pytest.raises(SourceError, match=r"t\.lance has part 'p' already, so nothing was added"):
        two.close()
    with pytest.raises(SourceError, match=r"has part 'p' already"):
        sp.sources.Writer(uri, SCHEMA, part="p")

    assert numbers(uri) == [1]
    assert unnamed(uri) == set()
    assert drafts(two_drafts) == []


@pytest.mark.parametrize("part", ["p", "q"])
def test_a_publisher_that_was_overtaken_between_its_look_and_its_commit_looks_again(
    uri: str, to: Move, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, taken = targets.append_alone, []

    def overtaken(*args: Any) -> int:
        if not taken:
            taken.append(1)
            to("two")
            write(uri, 1, part=part)
        return commit(*args)

    write(uri, 0)
    monkeypatch.setattr(targets, "append_alone", overtaken)
    if part == "p":
        with pytest.raises(SourceError, match="has part 'p' already"):
            write(uri, 2, part="p")
    else:
        write(uri, 2, part="p")

    assert numbers(uri) == ([0, 1] if part == "p" else [0, 1, 2])
    assert unnamed(uri) == set()


def test_a_commit_whose_answer_was_lost_stands(uri: str, to: Move, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = targets.append_alone

    def lost(*args: Any) -> int:
        commit(*args)
        msg = "no answer"
        raise SourceError(msg)

    monkeypatch.setattr(targets, "append_alone", lost)
    write(uri, 1, 2, part="p")

    assert numbers(uri) == [1, 2]
    assert unnamed(uri) == set()


class Killed(BaseException):
    """Ends a writer as a signal does: nothing is cleaned up."""


def die(*_: Any) -> Any:
    raise Killed


@pytest.mark.parametrize("moment", ["before", "made", "append_alone", "committed"])
def test_whatever_a_publisher_had_done_when_it_died_is_taken_back_or_stands(
    uri: str, to: Move, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = to("one")
    write(uri, 0)
    out = sp.sources.Writer(uri, SCHEMA, part="dead", shard_rows=1)
    out.write(pa.table({"n": [1, 2], "text": ["a", "b"]}))
    late: list[Any] = []
    with monkeypatch.context() as patch:
        patch.setattr(sp.sources.Writer, "abort", lambda _self: None)
        if moment == "before":
            patch.setattr(targets.StoreTarget, "publish", die)
        elif moment == "made":
            patch.setattr(targets, "made", die)
        elif moment == "append_alone":
            patch.setattr(targets, "append_alone", lambda *args: die(late.append(args)))
        else:
            patch.setattr(parts.PartDraft, "drop", die)
        with pytest.raises(Killed):
            out.close()
    end_as_killed(out)
    assert len(unnamed(uri)) == (2 if moment in ("made", "append_alone") else 0)
    write(uri, 3)

    assert numbers(uri) == ([0, 1, 2, 3] if moment == "committed" else [0, 3])
    assert unnamed(uri) == set()
    assert drafts(folder) == []
    for args in late:  # its last request arrives now
        with pytest.raises(SourceError, match="conflict"):
            targets.append_alone(*args)


def test_files_of_a_version_that_is_not_the_newest_are_left_alone(
    uri: str, to: Move, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = sp.sources.Writer(uri, SCHEMA, shard_rows=1)
    out.write(pa.table({"n": [1, 2], "text": ["a", "b"]}))
    with monkeypatch.context() as patch:
        patch.setattr(sp.sources.Writer, "abort", lambda _self: None)
        patch.setattr(parts.PartDraft, "drop", die)
        with pytest.raises(Killed):
            out.close()
    end_as_killed(out)
    version = dataset(uri).version
    dataset(uri).optimize.compact_files()
    write(uri, 3)

    assert dataset(uri, version).to_table()["n"].to_pylist() == [1, 2]
    assert numbers(uri) == [1, 2, 3]


def test_files_that_may_not_be_removed_wait_for_the_next_writer(
    uri: str, to: Move, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_: Any) -> None:
        msg = "may not be deleted"
        raise SourceError(msg)

    folder = to("one")
    write(uri, 0)
    with monkeypatch.context() as patch:
        patch.setattr(targets, "append_alone", denied)
        patch.setattr(type(store_of(uri)[0]), "delete", denied)
        with pytest.warns(sp.SpiralWarning, match="stay for now"), pytest.raises(SourceError, match="may not"):
            write(uri, 1)
        with pytest.warns(sp.SpiralWarning, match="stay for now"):
            write_after = sp.sources.Writer(uri, SCHEMA)
        write_after.abort()
    assert len(unnamed(uri)) == 1
    write(uri, 2)

    assert numbers(uri) == [0, 2]
    assert unnamed(uri) == set()
    assert drafts(folder) == []


@pytest.mark.parametrize("wrong", ["bucket", "endpoint"])
def test_a_store_that_refuses_is_named_without_a_secret(uri: str, s3_endpoint: str, wrong: str, bucket: str) -> None:
    there = f"{bucket}/t.lance" if wrong == "endpoint" else "s3://no-such/t.lance"
    out = sp.sources.Writer(f"{bucket}/t.lance", SCHEMA)
    out.write({"n": 1, "text": ""})
    use_storage("away", prefix=there, **stores.options(s3_endpoint if wrong == "bucket" else "http://127.0.0.1:9"))
    try:
        with pytest.raises(SourceError, match=re.escape(there)) as caught:
            write(there, 1)
        with pytest.raises(SourceError) if wrong == "endpoint" else nullcontext() as closing, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            out.close()
    finally:
        use_storage("away", prefix=there)
    said = f"{caught.value} {closing and closing.value}"
    assert stores.SECRET not in said
    assert stores.KEY_ID not in said


TOGETHER = """
import sys
import pyarrow as pa
import spiral_stream as sp
from spiral_stream.storage.profiles import use_storage
from tests.fixtures import stores

uri, endpoint, first = sys.argv[1:]
use_storage("tests", prefix=uri.rpartition("/")[0], **stores.options(endpoint))
schema = pa.schema([("n", pa.int64()), ("text", pa.utf8())])
print("ready", flush=True)
sys.stdin.readline()
for k, part in enumerate((None, "p", None, "q")):
    n = int(first) + 10 * k
    try:
        with sp.sources.Writer(uri, schema, part=part, shard_rows=1) as out:
            out.write(pa.table({"n": range(n, n + 3), "text": [None] * 3}, schema=schema))
        print(n)
    except sp.errors.SourceError as error:
        print(error)
"""


def test_machines_write_at_the_same_time(uri: str, s3_endpoint: str, to: Move) -> None:
    children = []
    for machine, first in (("one", 100), ("two", 200)):
        to(machine)
        command = [sys.executable, "-c", TOGETHER, uri, s3_endpoint, str(first)]
        children.append(warm.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
    assert [child.stdout.readline() for child in children if child.stdout] == ["ready\n"] * 2
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    said = [line for child in children for line in child.communicate()[0].splitlines()]
    wrote, found = [int(line) for line in said if line.isdigit()], numbers(uri)

    assert {110, 210} - set(wrote) in ({110}, {210})  # of a part, one
    assert {130, 230} - set(wrote) in ({130}, {230})
    assert {100, 120, 200, 220} <= set(wrote)
    assert len([line for line in said if "already" in line]) == 2
    assert sorted(found) == sorted(n for first in wrote for n in range(first, first + 3))
    assert all(found[at : at + 3] == list(range(found[at], found[at] + 3)) for at in range(0, len(found), 3))
    assert unnamed(uri) == set()


WRITES = """
import sys
import pyarrow as pa
import spiral_stream as sp
from spiral_stream.storage.profiles import use_storage
from tests.fixtures import stores

use_storage("tests", prefix=sys.argv[1].rpartition("/")[0], **stores.options(sys.argv[2]))
schema = pa.schema([("n", pa.int64()), ("text", pa.utf8())])
for part in range(int(sys.argv[3]), 1000):
    with sp.sources.Writer(sys.argv[1], schema, part=part, shard_rows=5) as writer:
        for n in range(20):
            writer.write({"n": part, "text": "x" * 1000})
    print(part, flush=True)
"""


@pytest.mark.parametrize("moment", [1, *(pytest.param(k, marks=pytest.mark.slow) for k in range(2, 10))])
def test_a_killed_writer_leaves_whole_parts_and_the_next_one_sweeps(
    uri: str, s3_endpoint: str, to: Move, moment: int
) -> None:
    folder, draw, done = to("one"), random.Random(moment), -1
    for _ in range(1 if moment == 1 else 3):
        command = [sys.executable, "-c", WRITES, uri, s3_endpoint, str(done + 1)]
        with warm.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            said = [int(child.stdout.readline())]
            time.sleep(draw.random() * 0.4)
            child.send_signal(signal.SIGKILL)
            said += [int(line) for line in child.stdout.read().splitlines()]
        found = numbers(uri)
        done = max(found)

        assert sorted(found) == [part for part in range(done + 1) for _ in range(20)]  # whole parts, each once
        assert max(said) in (done, done - 1)  # one may be there that nobody was told of
    write(uri, -1)

    assert unnamed(uri) == set()
    assert drafts(folder) == []
    assert len(numbers(uri)) == 20 * (done + 1) + 1
