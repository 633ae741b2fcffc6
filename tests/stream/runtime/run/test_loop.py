"""One loop at a time reads a stream, one thread an iterator; what `close` takes."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import spiral_stream as sp
from spiral_stream.errors import StreamError
from spiral_stream.runtime.run.loop import Pass
from tests.fixtures.waits import FAR_S

PROGRAM = """
import threading
import spiral_stream as sp

stream = sp.open_stream("rows", epoch=0)
first = threading.Event()


def read():
    while True:
        for batch in stream:
            first.set()


threading.Thread(target=read, daemon=True).start()
first.wait()
"""


@pytest.fixture
def stream(tmp_path: Path) -> Iterator[sp.PreparedStream]:
    catalog = sp.connect(str(tmp_path / "catalog"))
    rows = pa.table({"id": list(map(str, range(2_000))), "x": range(2_000)})
    catalog.register("rows", sp.Arrow(rows), identity="id")
    plan = catalog.table("rows").sample(order=sp.GlobalShuffle(seed=1))
    with plan.collate(batch_size=4, fields={"x": sp.Stack("x")}).to_numpy(prefetch=2) as made:
        catalog.save_stream("rows", made)
        yield made


def test_a_second_thread_inside_one_iterator_is_refused_and_the_first_goes_on() -> None:
    inside, gate, had = threading.Event(), threading.Event(), []

    def batches() -> Any:
        inside.set()
        assert gate.wait(FAR_S)
        yield from range(3)

    run = Pass(batches())
    first = threading.Thread(target=lambda: had.extend(run))
    first.start()
    assert inside.wait(FAR_S)
    for refused in (run.__next__, run.close):
        with pytest.raises(
            StreamError, match=r"an iterator belongs to one thread\. Call next\(\) under a lock, or give each"
        ):
            refused()
    gate.set()
    first.join(FAR_S)

    assert had == [0, 1, 2]


def test_the_errors_of_a_pass_come_through_as_they_are() -> None:
    def batches() -> Any:
        yield 0
        message = "of a function of the user"
        raise ValueError(message)

    run = Pass(batches())

    assert next(run) == 0
    with pytest.raises(ValueError, match="of a function of the user"):
        next(run)
    assert list(run) == []


def test_threads_that_take_turns_under_a_lock_share_one_iterator(stream: sp.PreparedStream) -> None:
    expected = [batch["x"].tolist() for batch in stream]
    run, lock, had = iter(stream), threading.Lock(), []

    def read() -> None:
        while True:
            with lock:
                batch = next(run, None)
                if batch is None:
                    return
                had.append(len(batch["x"]))

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(FAR_S)

    assert had == list(map(len, expected))


@pytest.mark.parametrize("seconds", ["x", -1, True, float("nan"), float("inf"), [1]])
def test_a_deadline_that_is_no_number_of_seconds_is_refused_and_closes_nothing(
    stream: sp.PreparedStream, seconds: Any
) -> None:
    run = iter(stream)
    next(run)

    with pytest.raises(ValueError, match=r"close: timeout_s=.*\. Give a number of seconds from 0 up, or None for 5"):
        stream.close(seconds)
    next(run)
    stream.close(0.5)


@pytest.mark.parametrize("verb", ["materialize", "verify"])
def test_a_report_that_cannot_be_called_is_refused(stream: sp.PreparedStream, verb: str) -> None:
    with pytest.raises(
        ValueError, match=rf"{verb}: report=3 cannot be called\. Give a function that takes the progress"
    ):
        getattr(stream, verb)(3)


@pytest.mark.usefixtures("stream")
def test_a_daemon_thread_that_reads_at_exit_ends_without_a_word(tmp_path: Path) -> None:
    for _ in range(3):
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                PROGRAM.replace('open_stream("rows"', f'connect("{tmp_path}/catalog").open_stream("rows"'),
            ],
            capture_output=True,
            text=True,
            timeout=FAR_S,
            check=False,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("name", ["spiral-feed", "spiral-derive_0"])
@pytest.mark.parametrize("after", [True, False])
def test_an_interrupt_while_a_pass_begins_ends_its_threads(
    stream: sp.PreparedStream, monkeypatch: pytest.MonkeyPatch, after: bool, name: str
) -> None:
    start, begun = threading.Thread.start, list[threading.Thread]()

    def interrupted(thread: threading.Thread) -> None:
        ours = thread.name == name
        if ours:
            begun.append(thread)
        if after or not ours:
            start(thread)
        if ours:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt) as raised:
            next(iter(stream))

    assert raised.traceback is not None  # which holds the iterator: nothing waits for the collector
    assert begun
    assert [thread.name for thread in begun if thread.is_alive()] == []
    assert sum(len(batch["x"]) for batch in stream) == 2_000


@pytest.mark.parametrize("found", [True, False])
@pytest.mark.parametrize("batches", [5, 6])
def test_a_loop_that_is_left_at_its_last_batch_is_followed_by_the_next_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batches: int, found: bool
) -> None:
    """Also where other ranks have one more step, and whether the feeder has found the epoch's end by then or not."""
    if not found:
        monkeypatch.setattr("spiral_stream.runtime.numbering.steps.Steps.ended", lambda *_: False)
    catalog = sp.connect(str(tmp_path / "catalog"))
    catalog.register("rows", sp.Arrow(pa.table({"id": range(batches)})), identity="id")
    sampled = catalog.table("rows").sample(order=sp.Sequential())
    made = sampled.collate(batch_size=1, fields={"id": sp.Stack("id")}, last=sp.KeepPartial)
    for rank in range(4):
        mine = list(range(rank, batches, 4))
        with made.to_numpy().bind(rank=rank, world_size=4) as stream:
            for _ in range(3):
                found_ids = [int(batch["id"][0]) for batch in islice(stream, len(mine))]
                assert found_ids == mine
