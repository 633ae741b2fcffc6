"""Threads of the library: what they do is known in words, and they end in time or are left alone."""

import gc
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import spiral_stream as sp
from spiral_stream import threads
from spiral_stream.errors import SpiralWarning
from spiral_stream.runtime.columns import tokens
from spiral_stream.threads import (
    StreamThread,
    ThreadShare,
    WatchedLock,
    Workers,
    doing,
    exit_code,
    sharing,
    thread_share,
)
from tests.fixtures import texts
from tests.fixtures.streams import maker, our_threads
from tests.fixtures.waits import FAR_S, once, until

pytestmark = pytest.mark.usefixtures("no_threads_left")


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What stuck calls wait for; opened at the test's end, when all threads must end."""
    event = threading.Event()
    yield event
    event.set()
    ended()


def ended() -> None:
    """Wait until no thread of ours is left."""
    until(lambda: not our_threads())


def test_a_pool_does_its_tasks_and_passes_on_what_they_raise() -> None:
    with Workers(3, "spiral-test") as pool:
        assert list(pool.map(lambda x: x * x, range(50))) == [x * x for x in range(50)]
        assert {*our_threads()} == {f"spiral-test_{k}" for k in range(3)}
        with pytest.raises(ZeroDivisionError):
            pool.submit(lambda: 1 // 0).result()

    assert our_threads() == []
    assert pool.submit(int).cancelled()


def test_a_pool_that_is_dropped_ends_its_threads() -> None:
    pool = Workers(2, "spiral-test")
    assert pool.submit(lambda: 7).result() == 7
    del pool
    gc.collect()

    ended()


def test_closing_a_pool_has_a_deadline_and_names_who_is_in_which_call(gate: threading.Event) -> None:
    pool = Workers(1, "spiral-test")

    def stuck() -> None:
        with doing("batch 12"), doing("reading file x of relation y"):
            gate.wait()

    stuck_one, never_begun = pool.submit(stuck), pool.submit(int)
    until(lambda: pool.threads[0].calls)
    with pytest.warns(SpiralWarning, match=r"spiral-test_0: batch 12, reading file x of relation y \(for .* s\)"):
        pool.close(0.1)
    pool.close()  # nobody waits for the same thread twice

    assert never_begun.cancelled()
    assert our_threads() == ["spiral-test_0"]
    gate.set()
    with pytest.raises(CancelledError):
        stuck_one.result(FAR_S)


def test_a_thread_that_was_told_to_stop_stops_at_the_end_of_its_call(gate: threading.Event) -> None:
    came: list[str] = []

    def work() -> None:
        with doing("a call"):
            came.append("in")
            gate.wait()
        came.append("after")

    thread = StreamThread(work, "spiral-test")
    thread.start()
    until(lambda: came)
    thread.stop_requested = True
    gate.set()
    thread.join(FAR_S)

    assert came == ["in"]


def test_an_error_of_a_call_is_not_hidden_by_the_stop() -> None:
    heard: list[type[BaseException]] = []

    def work() -> None:
        try:
            with doing("a call"):
                thread.stop_requested = True
                int("no number")
        except BaseException as error:  # noqa: BLE001
            heard.append(type(error))

    thread = StreamThread(work, "spiral-test")
    thread.start()
    thread.join(FAR_S)

    assert heard == [ValueError]


def test_a_task_is_in_the_words_of_who_submitted_it() -> None:
    heard: list[list[str]] = []

    def inner() -> None:
        here: Any = threading.current_thread()
        heard.append([words for words, _ in here.calls])

    def outer(pool: Workers) -> None:
        with doing("batch 3"):
            pool.submit(inner).result()

    with Workers(1, "spiral-test") as pool:
        thread = StreamThread(outer, "spiral-outer", (pool,))
        thread.start()
        thread.join(FAR_S)
        pool.submit(inner).result()

    assert heard == [["batch 3"], []]


def test_a_thread_of_somebody_else_does_without_words() -> None:
    with doing("anything"):
        assert not hasattr(threading.current_thread(), "calls")


def test_who_waits_for_a_lock_is_told_who_holds_it(gate: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "TELL_AFTER_S", 0.05)
    lock, held = WatchedLock("the chapters"), threading.Event()

    def holds() -> None:
        with lock, doing("a user's function, m:f"):
            held.set()
            gate.wait()

    thread = StreamThread(holds, "spiral-test")
    thread.start()
    assert held.wait(FAR_S)
    words = r"the chapters: .* held by spiral-test: a user's function, m:f"
    with pytest.warns(SpiralWarning, match=words) as told, once(lambda: told.list, gate.set), lock, lock:
        pass


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # other libraries warn of forks
def test_in_a_forked_process_a_lock_is_free_whoever_held_it(gate: threading.Event) -> None:
    lock, held = WatchedLock("the chapters"), threading.Event()

    def holds() -> None:
        with lock:
            held.set()
            gate.wait()

    thread = StreamThread(holds, "spiral-test")
    thread.start()
    assert held.wait(FAR_S)
    child = os.fork()
    if child == 0:
        with suppress(BaseException), lock.within(1.0, ""):
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


def test_what_is_open_at_the_exit_is_closed_once(gate: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "CLOSE_TIMEOUT_S", 0.1)
    idle, stuck = Workers(1, "spiral-idle"), Workers(1, "spiral-stuck")
    idle.submit(int).result()
    with doing(""):
        stuck.submit(gate.wait)
    with pytest.warns(SpiralWarning, match=r"exit: \d thread.* spiral-stuck_0"):
        threads.end_at_exit()
    threads.end_at_exit()
    idle.close()
    stuck.close()

    until(lambda: our_threads() == ["spiral-stuck_0"])  # a busy machine ends the other one late


class Paused:
    """A clock of a machine that stands still for an hour between any two looks; at the fifth, what is waited for happens."""

    def __init__(self, happens: Callable[[], object]) -> None:
        self._now, self._looks, self._happens = 0.0, 0, happens

    def __call__(self) -> float:
        self._now, self._looks = self._now + 3_600.0, self._looks + 1
        if self._looks == 5:
            self._happens()
        return self._now


def test_a_thread_that_ends_once_the_machine_goes_on_is_waited_for(
    gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = Workers(1, "spiral-test")
    pool.submit(gate.wait)

    def ends() -> None:
        gate.set()
        pool.threads[0].join()

    monkeypatch.setattr(threads, "monotonic", Paused(ends))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pool.close(0.2)


def test_a_process_that_ends_once_the_machine_goes_on_is_not_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen([sys.executable, "-c", "input(); exit(7)"], stdin=subprocess.PIPE) as process:
        monkeypatch.setattr(threads, "monotonic", Paused(lambda: process.communicate(b"\n")))
        assert exit_code(process, 0.2) == 7


def test_a_process_that_does_not_end_in_time_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert exit_code(process, 0.1) == -signal.SIGKILL


def test_a_forked_process_has_no_threads_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with Workers(1, "spiral-test") as pool:
        pool.submit(int).result()
        monkeypatch.setattr(threads.os, "getpid", lambda: -1)
        assert pool.end(0.0) == []
        threads.end_at_exit()
        monkeypatch.undo()
        assert our_threads() == ["spiral-test_0"]
        pool._over = False


# ---- how many there are


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the threads that were started, on a machine that has eight cores."""
    names: list[str] = []
    start = StreamThread.start

    def named(thread: StreamThread) -> None:
        names.append(thread.name)
        start(thread)

    monkeypatch.setattr(StreamThread, "start", named)
    monkeypatch.setattr(threads, "available_cores", lambda: 8)
    return names


@pytest.fixture
def documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> sp.Catalog:
    """Documents of which few are tokenized in one go, so that a batch keeps many encoders busy; in 12 Parquet files."""
    monkeypatch.setattr(tokens, "TOGETHER", 2)
    catalog = texts.make_catalog(tmp_path, {})
    table = texts.documents("a", 240, shortest=1)
    (tmp_path / "files").mkdir()
    for part in range(12):
        pq.write_table(
            table.slice(part * 20, 20).drop_columns("storage_shard"), tmp_path / "files" / f"{part:02}.parquet"
        )
    catalog.register("docs", sp.Parquet(str(tmp_path / "files")), identity="sample_id")
    return catalog


def text_stream(catalog: sp.Catalog, count: int | None) -> sp.PreparedStream:
    plan = texts.tokenized(catalog.table("docs"), sp.GlobalShuffle(seed=1))
    node = plan.collate(batch_size=24, fields=texts.fields()).to_numpy(prefetch=4).plan
    return sp.PreparedStream(node, catalog, threads=count)


def by_pool(names: list[str]) -> dict[str, int]:
    return dict(Counter(name.split("_")[0] for name in names))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_stream_starts_no_more_threads_than_it_was_given(
    catalog: sp.Catalog, documents: sp.Catalog, started: list[str], count: int
) -> None:
    encoders = {"spiral-encode": count} if count > 1 else {}  # one encoder is the feeder itself
    started.clear()
    with text_stream(documents, count) as stream:
        list(stream)
        found = by_pool(started)
        assert found.pop("spiral-derive", 0) <= count  # makes what the selection and kept columns lack
        assert found.pop("spiral-work", 0) <= count
        assert found == {"spiral-files": count, "spiral-feed": 1, **encoders}
        started.clear()
        stream.materialize(lambda _: None)
        assert by_pool(started)["spiral-build"] <= count
    started.clear()
    with sp.PreparedStream(maker(catalog, batch_size=230)().plan, catalog, threads=count) as stream:
        list(stream)
        found = by_pool(started)
        assert found.pop("spiral-derive", 0) <= count
        assert found == {"spiral-feed": 1, "spiral-work": count}
        started.clear()
        stream.batch(0)
        assert by_pool(started) == {"spiral-batch": count}


@pytest.mark.parametrize(("workers", "most"), [(1, 8), (4, 2), (16, 1)])
def test_workers_of_a_loader_divide_the_cores(
    catalog: sp.Catalog, documents: sp.Catalog, started: list[str], workers: int, most: int
) -> None:
    for stream in (text_stream(documents, None), maker(catalog, batch_size=230)()):
        started.clear()
        with stream:
            list(stream._worker_batches(0, workers))
        pools = by_pool(started)
        assert pools.pop("spiral-feed") == 1
        assert pools
        assert max(pools.values()) <= most


def test_a_share_is_in_force_inside_its_block_and_in_its_thread_only() -> None:
    whole, own = thread_share(), ThreadShare(3)
    with sharing(own):
        assert thread_share() is own
        with Workers(1, "spiral-test") as pool:
            assert pool.submit(thread_share).result() is whole
        with pytest.raises(ZeroDivisionError), sharing(ThreadShare(5)):
            1 // 0  # noqa: B018  it raises
        assert thread_share() is own
    assert thread_share() is whole


@pytest.mark.parametrize(
    ("asked", "processes", "working", "waiting"), [(None, 1, 8, 16), (None, 3, 2, 5), (None, 99, 1, 1), (3, 99, 3, 3)]
)
def test_what_was_asked_for_wins_over_the_cores(
    monkeypatch: pytest.MonkeyPatch, asked: int | None, processes: int, working: int, waiting: int
) -> None:
    monkeypatch.setattr(threads, "available_cores", lambda: 8)
    share = ThreadShare(asked, processes)

    assert (share.working(), share.waiting(16)) == (working, waiting)
