"""What a cache no longer needs goes, and nothing that anybody may still read or is writing."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from spiral_stream.cache.store.store import CacheStore
from tests.fixtures import warm
from tests.fixtures.kinds import CASES, SHARDS
from tests.fixtures.kinds import ROWS as TEXTS
from tests.stream.cache.store.test_store import SHARD_ROWS, stored, write
from tests.stream.cache.test_materialize import ROOT

CASE = CASES["tokens"]


def on_disk(store: CacheStore) -> tuple[set[str], set[str], set[str]]:
    """The parts that have files, that the ledger names, and that readers see."""
    data = store.folder / "data.lance" / "data"
    have = {path.name.removesuffix(".lance") for path in data.iterdir()} | {
        p.name for p in (store.folder / "sums").iterdir()
    }
    return have, {entry.stem for entry in store.ledger.entries()}, {Path(file).stem for file in store.visible()}


def drafts(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob(".*") if path.is_file()]


BUILD = """
import sys
from pathlib import Path
import spiral_stream as sp
from spiral_stream.cache import materialize
from spiral_stream.cache.store.store import CacheStore
from tests.fixtures.kinds import CASES

materialize.part_boundaries.UNIT_ROWS = materialize.WRITERS = 1
write, waited = CacheStore.write, False

def waiting(self, key, rows, chunks):
    def waits():
        global waited
        for chunk in chunks:
            yield chunk
            if not waited:
                waited = True
                print("inside", flush=True)
                sys.stdin.readline()
    return write(self, key, rows, waits())

CacheStore.write = waiting
folder = Path(sys.argv[1])
CASES["tokens"].build(sp.connect(str(folder / "catalog")), folder)
print("done", flush=True)
"""


def waiting_build(folder: Path) -> "subprocess.Popen[str]":
    """A build that stops inside its first shard until it is told to go on."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", BUILD, str(folder)]
    return warm.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT)


def test_three_builders_at_once_and_a_killed_one_leave_nothing_double_or_dead(tmp_path: Path) -> None:
    catalog = CASE.catalog(tmp_path)
    store = CASE.store(tmp_path)
    with ExitStack() as running:
        builders = [running.enter_context(waiting_build(tmp_path)) for _ in range(3)]
        for each in builders:
            assert each.stdout is not None
            assert each.stdout.readline() == "inside\n"  # each in a shard of its own
        ours = threading.Thread(target=CASE.build, args=(catalog, tmp_path))  # makes the fourth, and waits
        ours.start()
        while len(store.ledger.files()) < 1:
            time.sleep(0.01)
        killed, *slow = builders
        dead = store.usage().dead_bytes
        killed.send_signal(signal.SIGKILL)
        for each in slow:
            assert each.stdin is not None
            each.stdin.write("go on\n")
            each.stdin.flush()
        assert [each.communicate()[0] for each in slow] == ["done\n"] * 2
        ours.join()
    assert dead > 0  # of those that still wrote: nobody touched it
    assert len(store.ledger.files()) == SHARDS
    (store.folder / "ledger" / f".x.json.{'0' * 32}").write_text("{")
    again = CASE.build(catalog, tmp_path)
    have, named, seen = on_disk(store)

    assert [each.returncode for each in (killed, *slow)] == [-signal.SIGKILL, 0, 0]
    assert again.rows == 0
    assert have == named == seen
    assert sum(int(mask.sum()) for mask in store.covered().values()) == TEXTS
    assert sum(int(entry.mask.sum()) for entry in store.ledger.entries()) == TEXTS  # no row twice
    assert drafts(store.folder) == []
    assert len(list(store.folder.glob("data.lance/_versions/*.manifest"))) == 1
    usage = store.usage()
    assert usage.dead_bytes == 0
    assert usage.live_bytes == sum(p.stat().st_size for p in (store.folder / "data.lance" / "data").rglob("*.*"))
    assert CASE.rows(catalog, tmp_path)[1].source_rows == 0


def test_a_reader_keeps_the_files_of_its_version_until_it_ends(tmp_path: Path) -> None:
    store = CacheStore(tmp_path, {})
    write(store, "a", list(range(10)))
    write(store, "b", list(range(10)))
    store.commit()
    early = store.open()
    assert early is not None
    (entry,) = [each for each in store.ledger.entries() if each.key == "b"]
    entry.path.unlink()  # as `mend` drops a damaged part
    write(store, "b", list(range(SHARD_ROWS)))
    store.commit()
    store.sweep()
    kept = store.usage()
    shard = early.shard("b")  # opened late, of the version that was pinned
    assert shard is not None
    assert len(shard.sizes) == 10
    assert stored(shard, 3)
    del early, shard
    store.sweep()

    assert kept.dead_bytes > 0 == store.usage().dead_bytes
    late = store.open()
    assert late is not None
    assert len(late.shard("b").sizes) == SHARD_ROWS


def test_a_part_that_readers_see_is_never_exchanged_for_its_double(tmp_path: Path) -> None:
    store = CacheStore(tmp_path, {})
    write(store, "a", [0, 1, 2])
    store.commit()
    seen = store.visible()
    for _ in range(8):  # ledger files sort by a random name
        write(store, "a", [0, 1, 2])
        store.commit()
        assert store.visible() == seen
    store.sweep()

    assert {entry.file for entry in store.ledger.entries()} == seen


def test_nothing_goes_where_locks_do_not_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    def none(*_: object) -> None:
        raise OSError(95, os.strerror(95))

    monkeypatch.setattr(fcntl, "flock", none)
    store = CacheStore(tmp_path, {})
    write(store, "a", [0, 1, 2])
    write(store, "a", [0, 1, 2])
    store.commit()
    store.sweep()

    assert len(store.ledger.files()) == 2
    assert store.open() is not None


def test_a_writer_waits_for_one_who_sweeps_and_says_so_when_it_takes_too_long(tmp_path: Path) -> None:
    from spiral_stream.errors import CacheError
    from spiral_stream.integrity.locks import alone, share

    (tmp_path / "writers").touch()
    with alone(tmp_path / "writers") as ours:
        assert ours
        with pytest.raises(CacheError, match=r"writers is locked by a process that removes files.*End it"):
            share(tmp_path / "writers", deadline_s=0.05)
    held = share(tmp_path / "writers", deadline_s=0.05)
    with alone(tmp_path / "writers") as ours:
        assert not ours
    assert held is not None
    held.release()


DRAWN = """
import sys
from pathlib import Path
import spiral_stream as sp
from spiral_stream.cache import materialize
from spiral_stream.derived.work.executors import Executor
from tests.fixtures.kinds import CASES

if __name__ == "__main__":
    materialize.part_boundaries.UNIT_ROWS = 1
    folder, executor = Path(sys.argv[1]), Executor(sys.argv[2], 2)
    print("ready", flush=True)
    sys.stdin.readline()
    CASES["tokens"].build(sp.connect(str(folder / "catalog")), folder, executor=executor)
"""


def kill_one_of_three(folder: Path, executor: str, after_s: float) -> None:
    """Let three builders begin, kill one of them, and check what they and one more build leave."""
    catalog, store = CASE.catalog(folder), CASE.store(folder)
    program = folder / "build.py"
    program.write_text(DRAWN)
    with ExitStack() as running:
        command = [sys.executable, str(program), str(folder), executor]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        builders = [
            running.enter_context(
                warm.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment)
            )
            for _ in range(3)
        ]
        for each in builders:
            assert each.stdout is not None
            assert each.stdout.readline() == "ready\n"
        for each in builders:
            assert each.stdin is not None
            each.stdin.write("go on\n")
            each.stdin.flush()
        time.sleep(after_s)
        builders[0].send_signal(signal.SIGKILL)
        assert [each.wait() for each in builders[1:]] == [0, 0]
    assert CASE.build(catalog, folder).rows == 0  # nothing was lost; what is half written goes
    have, named, seen = on_disk(store)
    assert have == named == seen
    assert len(store.ledger.files()) == SHARDS  # no shard twice
    assert drafts(store.folder) == []
    assert store.usage().dead_bytes == 0


@pytest.mark.slow  # the first test of this file kills one of three builders where it hurts; here the moment is drawn
@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_of_three_builders_one_of_which_is_killed_nothing_stays(tmp_path: Path, executor: str) -> None:
    kill_one_of_three(tmp_path, executor, random.Random(executor).uniform(0.2, 1.2))


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_of_builders_killed_fifty_times_nothing_stays(tmp_path: Path, executor: str) -> None:
    rng = random.Random(f"{executor} often")
    for k in range(25):
        (tmp_path / str(k)).mkdir()
        kill_one_of_three(tmp_path / str(k), executor, rng.uniform(0.0, 3.0))
