"""Threads, processes and Ray tasks make the same pieces, bit for bit, whatever their number."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spiral_stream.derived import build as room
from spiral_stream.derived.build import build
from spiral_stream.derived.index import RosterFile
from spiral_stream.derived.kinds.column import Column
from spiral_stream.derived.work.executors import (
    Builders,
    Executor,
    Processes,
    RayTasks,
    Shared,
    Threads,
    builders_in_force,
    building_with,
)
from spiral_stream.errors import CacheError, MissingExtraError, PlanError, SourceError
from tests.fixtures.named_shards import Shards, content, need_tidy, one_thread, pieces_of
from tests.fixtures.waits import until

ROOT = Path(__file__).parents[4]
ROWS = 40
TABLE = pa.table(
    {
        "number": pa.array([None if k % 7 == 3 else k * k for k in range(ROWS)], pa.int16()),
        "text": [None if k % 5 == 1 else "t" * (k % 4) for k in range(ROWS)],
        "list": pa.array([None if k % 9 == 2 else [k] * (k % 3) for k in range(ROWS)], pa.list_(pa.int64())),
    }
)
COLUMNS = [Column(name, TABLE.schema.field(name).type) for name in TABLE.column_names]
SOURCE = Shards(TABLE, (0, 7, 13, 0, 19, 1))


def made(folder: Path, builders: Callable[[], Builders]) -> list[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(room, "CHUNK_ROWS", 9)
        build(SOURCE, COLUMNS, folder, builders)
    for column in COLUMNS:
        need_tidy(RosterFile(folder, column))
    return [content(pieces_of(SOURCE, column, folder, never)) for column in COLUMNS]


def never() -> Builders:
    raise AssertionError("nothing is missing")


@pytest.mark.parametrize("workers", [2, 5])
def test_threads_make_the_same_pieces_whatever_their_number(tmp_path: Path, workers: int) -> None:
    assert made(tmp_path / "one", one_thread) == made(tmp_path / "some", partial(Threads, workers))


def test_processes_make_the_same_pieces_as_threads(tmp_path: Path) -> None:
    assert made(tmp_path / "threads", one_thread) == made(tmp_path / "processes", partial(Processes, 2))


RAY = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed"),
    pytest.mark.filterwarnings(
        "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"
    ),  # it forks
]


class TestRay:
    pytestmark = RAY

    def test_ray_tasks_make_the_same_pieces_as_threads(self, tmp_path: Path) -> None:
        assert made(tmp_path / "threads", one_thread) == made(tmp_path / "ray", partial(RayTasks, 2))

    def test_an_error_in_a_ray_task_is_the_error_of_the_build(self, tmp_path: Path) -> None:
        broken = Shards(TABLE, (ROWS,), fails=SourceError("unit 3 is gone"))

        with pytest.raises(SourceError, match=r"^unit 3 is gone$") as raised:
            build(broken, COLUMNS, tmp_path, partial(RayTasks, 1))
        assert type(raised.value) is SourceError

    def test_a_ray_task_that_is_killed_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(CacheError, match=r"was ended from outside.*build the rest with fewer workers"):
            build(Deadly(TABLE, (ROWS,)), COLUMNS[:1], tmp_path, partial(RayTasks, 1))


@pytest.mark.skipif(find_spec("ray") is not None, reason="Ray is installed")
def test_ray_that_is_not_installed_is_asked_for() -> None:
    with pytest.raises(MissingExtraError, match="executor='processes'"):
        Executor("ray")


def test_an_error_in_another_process_is_the_error_of_the_build(tmp_path: Path) -> None:
    broken = Shards(TABLE, (ROWS,), fails=SourceError("unit 3 is gone"))

    with pytest.raises(SourceError, match="unit 3 is gone"):
        build(broken, COLUMNS, tmp_path, partial(Processes, 1))


class Deadly(Shards):
    """A source that ends the process that reads it, as a kernel without memory does."""

    def scan(self, *_: Any, **__: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_that_is_killed_is_named_and_nothing_of_it_stays(tmp_path: Path) -> None:
    with pytest.raises(CacheError, match=r"was ended from outside.*build the rest with fewer workers"):
        build(Deadly(TABLE, (ROWS,)), COLUMNS[:1], tmp_path, partial(Processes, 1))

    assert list(RosterFile(tmp_path, COLUMNS[0]).parts.iterdir()) == []
    build(Shards(TABLE, (ROWS,)), COLUMNS[:1], tmp_path, one_thread)


KILLED = """
import os, sys, time
from spiral_stream.derived.work.executors import Processes
pool = Processes(1)
print(pool.submit(os.getpid).result(), flush=True)
time.sleep(60)
"""


def alive(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().split()[2] not in {"Z", "X"}
    return False


def test_processes_end_with_the_one_that_started_them(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", KILLED], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        assert alive(worker)
        parent.kill()
        parent.wait()
        until(lambda: not alive(worker))


def test_the_default_number_is_the_share_of_threads() -> None:
    with Threads() as pool:
        assert pool.width >= 1
        assert pool.submit(sum, [1, 2]).result() == 3


def test_builds_inside_a_block_share_the_executor_that_was_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    start = Executor.start
    monkeypatch.setattr(Executor, "start", lambda self: (started.append(self.name), start(self))[1])
    with building_with(Executor("processes", 1)):
        assert started == []  # nothing was built yet
        pids = []
        for _ in range(2):
            with builders_in_force() as pool:
                pids.append(pool.submit(os.getpid).result())
    with builders_in_force() as pool:
        pids.append(pool.submit(os.getpid).result())

    assert started == ["processes"]
    assert pids[0] == pids[1] != os.getpid()
    assert pids[2] == os.getpid()


OPENED: list[int] = []


class Opened:
    """Says when it is made."""

    def __init__(self, broken: bool = False) -> None:
        self.broken = broken
        if broken:
            raise SourceError("it cannot be opened")
        OPENED.append(os.getpid())

    def __reduce__(self) -> Any:
        return Opened, (os.environ.get("BROKEN") == "1",)


def times(shared: Shared[Opened]) -> int:
    assert not shared.value().broken
    return len(OPENED)


def test_a_shared_value_is_made_once_in_each_process(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = Shared(Opened())
    with Processes(1) as pool:
        assert [pool.submit(times, shared).result() for _ in range(4)] == [1] * 4
        monkeypatch.setenv("BROKEN", "1")
        with pytest.raises(SourceError, match="cannot be opened"):
            pool.submit(times, Shared(shared.value())).result()
        assert pool.submit(times, shared).result() == 1  # the process did not end of it
    assert shared.value() is shared.value()


def test_names_give_executors() -> None:
    with Executor("threads", 3).start() as threads, Executor("processes", 1).start() as processes:
        assert (type(threads), threads.width) == (Threads, 3)
        assert (type(processes), processes.width) == (Processes, 1)


@pytest.mark.parametrize("workers", [0, -1, True, 1.5, "2"])
def test_a_number_of_workers_that_is_none_is_refused(workers: Any) -> None:
    with pytest.raises(PlanError, match="Give a number of at least 1"):
        Executor("threads", workers)


def test_an_unknown_executor_is_refused() -> None:
    with pytest.raises(PlanError, match=r"'dask' is unknown. Give one of threads, processes, ray"):
        Executor("dask")


DIES = """
import os, signal, sys, time
from concurrent.futures import BrokenExecutor
from spiral_stream.derived.work.executors import Processes

pool = Processes(2)
first, second = pool.submit(os.getpid), pool.submit(time.sleep, 600)
if sys.argv[1] == "busy":
    pid = first.result()
    pool.submit(time.sleep, 600)
else:  # the others are still starting
    while not (pids := [each.pid for each in pool._started._all if each.pid]):
        time.sleep(0.01)
    pid = pids[0]
os.kill(pid, signal.SIGKILL)
try:
    second.result()
except BrokenExecutor:
    print("broken", flush=True)
pool.close()
print("closed", flush=True)
"""


@pytest.mark.parametrize("when", ["busy", "starting"])
def test_a_pool_of_which_one_died_closes_where_signals_are_ignored(tmp_path: Path, when: str) -> None:
    done = subprocess.run(
        ["sh", "-c", "trap '' INT TERM; exec \"$@\"", "sh", sys.executable, "-c", DIES, when],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False, timeout=280,
    )  # fmt: skip

    assert done.stdout.split() == ["broken", "closed"], done.stderr
