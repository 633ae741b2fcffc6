"""Streams that wait: each wait has a deadline or a word, and no end leaves a thread, a lock or half a state behind."""

import gc
import os
import re
import signal
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream import threads
from spiral_stream.cache.store.reader import CachedShard
from spiral_stream.catalog.relation.reader import OpenRelation
from spiral_stream.errors import SpiralWarning, StreamError
from spiral_stream.runtime.run import loop as passes
from spiral_stream.runtime.run import pipeline
from spiral_stream.testing import same
from tests.fixtures.examples import few
from tests.fixtures.inner import stages_of
from tests.fixtures.streams import maker, our_threads, plan
from tests.fixtures.waits import FAR_S, once, until

pytestmark = pytest.mark.usefixtures("no_threads_left")

DEADLINE_S = 0.4


class Gate:
    """Calls that pass through it get stuck once it is shut, until it is opened. Closing is in a hurry meanwhile."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stuck = threading.Event()  # somebody is
        self._left = 1 << 60
        self._open = threading.Event()
        self._monkeypatch = monkeypatch
        self._deadline(FAR_S)  # a busy machine ends threads late

    def shut(self, after: int = 0) -> None:
        """Let so many more calls through."""
        self._deadline(DEADLINE_S)
        self._left = after

    def open(self) -> None:
        self._deadline(FAR_S)
        self._open.set()

    def _deadline(self, timeout_s: float) -> None:
        for room in (threads, pipeline):
            self._monkeypatch.setattr(room, "CLOSE_TIMEOUT_S", timeout_s)

    def pass_through(self) -> None:
        self._left -= 1
        if self._left < 0 and not self._open.is_set():
            self.stuck.set()
            self._open.wait()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    made = Gate(monkeypatch)
    yield made
    made.open()
    ended()


def ended() -> None:
    """Wait until no thread of ours is left."""
    until(lambda: not our_threads())


def reads_through(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Storage answers while the gate is open."""
    fetch = OpenRelation.fetch

    def gated(relation: OpenRelation, ordinals: Any, columns: Any) -> pa.Table:
        gate.pass_through()
        return fetch(relation, ordinals, columns)

    monkeypatch.setattr(OpenRelation, "fetch", gated)


def mapped(catalog: sp.Catalog, gate: Gate, *, formed: bool = False, prefetch: int = 2) -> sp.PreparedStream:
    """A stream whose function goes through the gate; it decides who shares a batch, or makes a column."""

    def patient(label: pa.Array) -> pa.Array:
        gate.pass_through()
        return pa.array(np.ones(len(label), dtype=bool)) if formed else label

    patient.__spiral_version__ = "1"  # type: ignore[attr-defined]  # a gate has no content to fingerprint
    sampled = catalog.table("lance").sample(order=sp.GlobalShuffle(seed=2))
    if formed:
        sampled = sampled.filter(patient, columns=["label_id"])
    else:
        sampled = sampled.map(patient, columns=["label_id"], name="made", returns=pa.int64())
    formation = sp.WindowedBucket(window_size=16, keys=[sp.BucketKey("label_id")]) if formed else None
    fields = {"label": sp.Stack("label_id" if formed else "made"), "id": sp.List("sample_id")}
    return sampled.collate(batch_size=8, formation=formation, fields=fields).to_numpy(prefetch=prefetch)


FUNCTION = r"a user's function, tests.stream.test_waiting:mapped.<locals>.patient"
WAITS: dict[str, tuple[Callable[..., Any], str]] = {
    "a read": (
        lambda catalog, _: sp.PreparedStream(
            plan(catalog.table("lance")).to_numpy(prefetch=2).plan, catalog, threads=1
        ),
        r"spiral-work_0: batch \d+ of epoch 0, field 'image', reading column image_ref of relation lance \(for .* s\)",
    ),
    "a function": (mapped, r"spiral-work_\d: batch \d+ of epoch 0, " + FUNCTION),
    "a function that forms": (
        lambda catalog, gate: mapped(catalog, gate, formed=True),
        r"forming chapter 0 of lane 0, " + FUNCTION,
    ),
}


@pytest.mark.crossed
@pytest.mark.parametrize("what", WAITS)
@pytest.mark.parametrize("end", ["close", "leave"])
def test_an_end_during_a_call_that_does_not_return_is_in_time_and_names_it(
    catalog: sp.Catalog, caches: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch, what: str, end: str
) -> None:
    make, words = WAITS[what]
    if what == "a read":
        reads_through(gate, monkeypatch)
    with make(catalog, gate) as whole:
        expected = list(whole)
    stream = make(catalog, gate)
    gate.shut(after=1 if "forms" in what else 2)
    run = iter(stream)
    next(run)
    assert gate.stuck.wait(FAR_S)

    with pytest.warns(SpiralWarning, match=r"close: \d thread.*" + words):
        stream.close() if end == "close" else run.close()

    until(lambda: len(our_threads()) == 1)  # a busy machine ends the others late
    if end == "leave":  # the stream goes on where it stood, with other threads and locks
        state = stream.state_dict()
        assert state["batch"] == 1
        gate.open()
        assert all(same(a, b) for a, b in zip(stream, expected[1:], strict=True))
    stream.close()


def test_a_loop_in_another_thread_ends_when_the_stream_is_closed_during_a_read(
    catalog: sp.Catalog, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "POLL_S", 0.02)
    reads_through(gate, monkeypatch)
    stream = maker(catalog)()
    heard: list[Any] = []

    def loop() -> None:
        try:
            heard.extend(stream)
        except sp.errors.StreamError as error:
            heard.append(str(error))

    assert stages_of(stream)  # reads narrow columns, once
    gate.shut()
    consumer = threading.Thread(target=loop)
    consumer.start()
    assert gate.stuck.wait(FAR_S)
    with pytest.warns(SpiralWarning, match="reading column image_ref"):  # noqa: PT031  whoever closes first warns
        stream.close()
        consumer.join(FAR_S)

    assert not consumer.is_alive()
    assert "closed while it was read" in heard[-1]


def test_a_loop_in_another_thread_ends_when_the_stream_is_closed_while_the_pass_begins(
    catalog: sp.Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, closed = threading.Event(), threading.Event()

    def slow_to_begin(*args: Any) -> pipeline.Pipeline:
        made = pipeline.Pipeline(*args)
        begun.set()
        assert closed.wait(FAR_S)
        return made

    monkeypatch.setattr(passes, "Pipeline", slow_to_begin)
    stream = maker(catalog)()
    heard: list[Any] = []

    def loop() -> None:
        with pytest.raises(sp.errors.StreamError, match="closed while it was read"):
            heard.extend(stream)
        heard.append("ended")

    consumer = threading.Thread(target=loop)
    consumer.start()
    assert begun.wait(FAR_S)
    stream.close()
    closed.set()
    consumer.join(FAR_S)

    assert heard == ["ended"]


def test_memory_lives_as_long_as_a_thread_that_was_left_alone(
    own: sp.Catalog, caches: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards: list[weakref.ref[CachedShard]] = []
    locate = CachedShard.locate

    def located(shard: CachedShard, at: Any) -> Any:
        shards.append(weakref.ref(shard))
        gate.pass_through()
        return locate(shard, at)

    node = plan(own.table("lance"), profile=sp.Raw()).to_numpy(prefetch=2).plan
    with sp.PreparedStream(node, own) as stream:
        stream.materialize(lambda _: None)
    monkeypatch.setattr(CachedShard, "locate", located)
    stream = sp.PreparedStream(node, own, threads=1)
    run = iter(stream)
    gate.shut(after=1)
    next(run)
    assert gate.stuck.wait(FAR_S)
    with pytest.warns(SpiralWarning, match="field 'image'"):
        stream.close()
    held = shards[-1]
    del run, stream
    gc.collect()
    assert held() is not None  # its pixels are about to be read

    gate.open()
    ended()
    gc.collect()
    assert held() is None


@pytest.mark.parametrize("what", WAITS)
def test_a_loop_that_waits_long_is_told_for_what(
    catalog: sp.Catalog, caches: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    for room in (pipeline, threads):
        monkeypatch.setattr(room, "TELL_AFTER_S", 0.05)
    monkeypatch.setattr(pipeline, "POLL_S", 0.02)
    make, words = WAITS[what]
    if what == "a read":
        reads_through(gate, monkeypatch)
    with make(catalog, gate) as stream:
        assert stages_of(stream)  # reads narrow columns, once
        gate.shut()
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")

            def told() -> bool:
                said = [str(each.message) for each in found if each.category is SpiralWarning]
                return any(re.match(r"iter: waited .* s for the next batch so far\. .*" + words, each) for each in said)

            with once(told, gate.open):
                next(iter(stream))


def test_a_place_asked_for_while_batches_are_formed_comes_or_says_whom_it_waited_for(
    catalog: sp.Catalog, caches: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "POSITION_TIMEOUT_S", 0.2)
    with mapped(catalog, gate, formed=True, prefetch=16) as stream:
        gate.shut(
            after=2
        )  # windows that are formed: the first batches come, and the thread that forms gets stuck behind
        run = iter(stream)
        first = next(run)["id"]
        assert gate.stuck.wait(FAR_S)
        for ask in (stream.state_dict, lambda: stream.set_epoch(3)):
            with pytest.raises(StreamError, match="spiral-feed: .*" + FUNCTION + ".* Leave the loop"):
                ask()
        with pytest.warns(SpiralWarning, match=r"close: \d thread"):
            run.close()
        state = stream.state_dict()  # of another book: the thread that hangs may keep the lock
    gate.open()

    with mapped(catalog, gate, formed=True) as resumed:
        resumed.load_state_dict(state)
        assert resumed.ledger(0) == first
        assert resumed.ledger(1) == next(iter(resumed))["id"]


def test_of_several_threads_that_begin_a_loop_one_reads_all_and_the_others_are_refused(
    catalog: sp.Catalog, caches: Path
) -> None:
    together, ends = threading.Barrier(3), []

    def read(stream: sp.PreparedStream) -> None:
        together.wait(FAR_S)
        try:
            ends.append(sum(1 for _ in stream))
        except StreamError as error:
            ends.append(str(error))

    with maker(catalog, transforms=(), batch_size=1)() as stream:
        readers = [threading.Thread(target=read, args=(stream,)) for _ in range(3)]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        whole = stream.count()
    assert ends.count(whole) + sum("being read already" in str(each) for each in ends) == 3
    assert whole in ends


# ---- every way to drop an iterator


def drop(run: Any, stream: Any, how: str) -> None:
    if how == "close":
        run.close()
    elif how == "the stream's close":
        stream.close()
    elif how == "cycle":
        holder: dict[str, Any] = {"run": run}
        holder["me"] = holder
    elif how == "exception":
        with pytest.raises(KeyError, match="the loop's own"):
            run.throw(KeyError("the loop's own"))


@few(8, 15)
@given(
    taken=st.integers(0, 15),
    how=st.sampled_from(["del", "close", "the stream's close", "cycle", "exception"]),
    prefetch=st.integers(1, 8),
    workers=st.integers(1, 3),
)
def test_an_iterator_dropped_anywhere_leaves_no_thread(
    catalog: sp.Catalog, taken: int, how: str, prefetch: int, workers: int
) -> None:
    node = plan(catalog.table("lance"), batch_size=16).to_numpy(prefetch=prefetch).plan
    stream = sp.PreparedStream(node, catalog, threads=workers)
    run = iter(stream)
    for _ in range(taken):
        next(run)
    drop(run, stream, how)
    del run
    gc.collect()

    assert [name for name in our_threads() if not name.startswith("spiral-encode")] == []
    stream.close()
    assert our_threads() == []


# ---- real processes

PROGRAM = """
import os, signal, sys, time, threading
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job starts with it ignored
import numpy as np, pyarrow as pa
import spiral_stream as sp
from spiral_stream import threads

catalog = sp.connect(sys.argv[1])
"""


def started(catalog: sp.Catalog, body: str, tmp_path: Path) -> "subprocess.Popen[str]":
    """A process that runs ``PROGRAM`` and then this."""
    file = tmp_path / "program.py"
    file.write_text(PROGRAM + body)
    env = {**os.environ, "SPIRAL_CACHE": str(tmp_path / "prepared")}
    command = [sys.executable, str(file), str(catalog.root)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


OPEN_EVERYWHERE = """
import lance
def opened(name, field):
    sampled = catalog.table(name).sample(order=sp.GlobalShuffle(seed=1))
    return sampled.collate(batch_size=4, fields={"x": field}).to_numpy(prefetch=500)
folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "wide.lance")
lance.write_dataset(pa.table({"sample_id": range(4_000), "pay": [bytes(1_000)] * 4_000}), folder, max_rows_per_file=500)
catalog = sp.connect(folder + ".catalog")
catalog.register("wide", sp.Lance(folder), identity="sample_id")
images = sp.connect(sys.argv[1]).table("parquet")
class Holder: pass
streams = [opened("wide", sp.List("pay")) for _ in range(3)]
image = sp.Stack("image_ref", decode="jpeg", transforms=[sp.transforms.Resize(16), sp.transforms.CenterCrop(16)])
streams.append(images.sample(order=sp.Sequential()).collate(batch_size=4, fields={"x": image}).to_numpy(prefetch=500))
Holder.run = iter(streams[0]); next(Holder.run)
here = Holder(); here.me, here.run = here, iter(streams[1]); next(here.run); del here
runs = [iter(each) for each in streams[2:]]
for each in runs: next(each)
had = iter(opened("wide", sp.Stack("sample_id")))
for _ in range(1_000): next(had)  # all there are
import gc, warnings
warnings.filterwarnings("ignore", message="(?i)lance.* fork")
warnings.filterwarnings("ignore", message=".*use of fork", category=DeprecationWarning)  # since CPython 3.12
if (child := os.fork()) == 0:  # it drops what it never started; LanceDB itself hangs at a child's ordinary exit
    del runs, Holder.run
    gc.collect()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""
ENDS = {"the end": ("", 0), "sys.exit": ("sys.exit(3)", 3), "an exception": ("raise KeyError('mine')", 1)}


@pytest.mark.parametrize(
    "end", [pytest.param(each, marks=[] if each == "sys.exit" else [pytest.mark.slow]) for each in ENDS]
)
def test_streams_left_open_at_the_interpreters_exit_end_without_a_word(
    catalog: sp.Catalog, tmp_path: Path, end: str
) -> None:
    last, code = ENDS[end]
    with started(catalog, OPEN_EVERYWHERE + last, tmp_path) as process:
        out, err = process.communicate(timeout=FAR_S)

    assert process.returncode == code, err
    assert (out, re.sub(r"(?s)^Traceback.*KeyError: 'mine'\n$", "", err)) == ("", "")


def test_an_exit_during_a_call_that_does_not_return_is_in_time(catalog: sp.Catalog, tmp_path: Path) -> None:
    body = """
threads.CLOSE_TIMEOUT_S = 0.2
stuck = threading.Event()
def waits(label):
    stuck.set()
    threading.Event().wait()
sampled = catalog.table("lance").sample(order=sp.Sequential())
sampled = sampled.map(waits, columns=["label_id"], name="y", returns=pa.int64(), version="1")
run = iter(sampled.collate(batch_size=4, fields={"y": sp.Stack("y")}).to_numpy())
threading.Thread(target=next, args=(run,), daemon=True).start()
assert stuck.wait(100)
"""
    with started(catalog, body, tmp_path) as process:
        out, err = process.communicate(timeout=FAR_S)

    assert process.returncode == 0, err
    assert out == ""
    assert re.search(r"SpiralWarning: exit: \d thread\(s\) still run 0.2 s", err)
    assert "a user's function, __main__:waits" in err


def test_ctrl_c_ends_a_waiting_loop_when_the_running_call_does(catalog: sp.Catalog, tmp_path: Path) -> None:
    body = """
def slow(label):
    print("calling", flush=True)
    while not threads.stop_requested():
        time.sleep(0.01)
    sys.stdout.write("returned\\n")
    return label
sampled = catalog.table("lance").sample(order=sp.Sequential()).map(slow, columns=["label_id"], name="y", returns=pa.int64())
stream = sampled.collate(batch_size=4, fields={"y": sp.Stack("y")}).to_numpy()
try:
    for batch in stream:
        pass
finally:
    left = [each.name for each in threading.enumerate() if "spiral" in each.name]
    words = ["ended", stream.state_dict()["batch"], *left]
    sys.stdout.write(" ".join(map(str, words)) + "\\n")  # in one piece: the call of another thread writes too
"""
    with started(catalog, body, tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "calling\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=FAR_S)

    assert process.returncode == -signal.SIGINT, err
    assert err.rstrip().endswith("KeyboardInterrupt")
    assert out.splitlines() == ["returned", "ended 0"]  # no second call, and no thread; the place
