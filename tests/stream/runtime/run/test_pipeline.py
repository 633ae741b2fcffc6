"""A running stream: back-pressure, errors at the right batch, and threads that end."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import spiral_stream as sp
from spiral_stream.derived.kinds.gather import RowCopies
from spiral_stream.runtime.batch.builder import BatchBuilder
from spiral_stream.runtime.batch.pending_batch import Pending
from spiral_stream.runtime.fields.images import ImageFeed
from spiral_stream.runtime.fields.size import OBJECT_BYTES
from tests.fixtures.streams import maker, our_threads, plan
from tests.fixtures.waits import FAR_S, until

pytestmark = [pytest.mark.usefixtures("no_threads_left")]

BATCH_BYTES = 16 * (3 * 16 * 16 + 8 + OBJECT_BYTES + 12 + 4)  # 16 images of 16 x 16, labels, names of 12 letters


class Begun:
    """Counts the batches that builders begin."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        begin = BatchBuilder.begin

        def counting(builder: BatchBuilder, *given: Any) -> Pending:
            self.count += 1
            return begin(builder, *given)

        monkeypatch.setattr(BatchBuilder, "begin", counting)

    def settled(self, least: int) -> int:
        """The count, once it is as high as it should be and has not moved for a while."""
        seen = -1
        until(lambda: self.count >= least)
        while seen != self.count:
            seen = self.count
            time.sleep(0.15)
        return seen


@pytest.mark.parametrize("prefetch", [1, 3])
def test_a_slow_consumer_has_no_more_than_the_depth_ahead(
    catalog: sp.Catalog, monkeypatch: pytest.MonkeyPatch, prefetch: int
) -> None:
    begun = Begun(monkeypatch)
    with maker(catalog, prefetch=prefetch)() as stream:
        for step, _ in enumerate(stream):
            assert begun.settled(step + 1 + prefetch) == step + 1 + prefetch
            if step == 2:
                break
        stream.metrics()

        assert stream.metrics()["peak_queue_bytes"] <= prefetch * BATCH_BYTES


def test_a_budget_in_bytes_bounds_what_is_ahead(catalog: sp.Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = Begun(monkeypatch)
    node = plan(catalog.table("lance")).to_numpy(prefetch=100).plan
    for budget, ahead in ((2 * BATCH_BYTES, 2), (1, 1)):
        begun.count = 0
        with sp.PreparedStream(node, catalog, budget_bytes=budget) as stream:
            run = iter(stream)
            next(run)

            assert begun.settled(1 + ahead) == 1 + ahead
            assert stream.metrics()["peak_queue_bytes"] == ahead * BATCH_BYTES
            run.close()


PAYLOAD = 1_000  # bytes of each row


@pytest.fixture
def payloads(tmp_path: Path, caches: Path) -> sp.Catalog:
    """``rows``: 400 of a payload of bytes, and a list of as many."""
    assert caches
    table = pa.table(
        {
            "sample_id": range(400),
            "pay": [bytes(PAYLOAD)] * 400,
            "numbers": pa.array([[1] * (PAYLOAD // 8)] * 400, pa.list_(pa.int64())),
        }
    )
    catalog = sp.connect(str(tmp_path / "catalog"))
    catalog.register("rows", sp.Arrow(table), identity="sample_id")
    return catalog


@pytest.mark.parametrize("column", ["pay", "numbers", "made"])
def test_bytes_of_lists_count_against_the_budget(
    payloads: sp.Catalog, monkeypatch: pytest.MonkeyPatch, column: str
) -> None:
    begun = Begun(monkeypatch)
    sampled = payloads.table("rows").sample(order=sp.Sequential())
    sampled = sampled.map(lambda pay: pay, columns=["pay"], name="made", returns=pa.binary())
    node = sampled.collate(batch_size=16, fields={"x": sp.List(column)}).to_numpy(prefetch=8).plan
    with sp.PreparedStream(node, payloads, budget_bytes=20_000) as stream:
        run = iter(stream)
        next(run)

        assert begun.settled(2) == 2  # one in hand, one ahead: two of 16 KB are more than 20 KB
        run.close()
        metrics = stream.metrics()
    assert 16 * PAYLOAD < metrics["peak_queue_bytes"] == metrics["peak_batch_bytes"]
    late = 0 if column == "numbers" else 32  # lists of integers are kept
    assert metrics["source_rows"] == late
    assert metrics["source_bytes"] >= late * PAYLOAD


def failing_images(monkeypatch: pytest.MonkeyPatch, error: BaseException, at_call: int) -> None:
    """The ``at_call``-th piece of images fails."""
    render, lock, calls = ImageFeed.render, threading.Lock(), iter(range(10**6))

    def sometimes(feed: ImageFeed, *args: Any) -> None:
        with lock:
            call = next(calls)
        if call == at_call:
            raise error
        render(feed, *args)

    monkeypatch.setattr(ImageFeed, "render", sometimes)


@pytest.mark.parametrize(
    "error", [sp.errors.SourceError("the disk is gone"), MemoryError("no room"), KeyError("a bug")]
)
def test_a_worker_error_comes_at_its_batch(
    catalog: sp.Catalog, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    node = plan(catalog.table("lance")).to_numpy(prefetch=2).plan
    failing_images(monkeypatch, error, at_call=4)
    seen: list[Any] = []
    with sp.PreparedStream(node, catalog, threads=1) as stream:
        run = iter(stream)
        with pytest.raises(type(error)) as caught:
            seen.extend(run)

        assert len(seen) == 4
        assert caught.value is error
        assert our_threads() == []
        assert stream.state_dict()["batch"] == 4
        with pytest.raises(StopIteration):
            next(run)
        assert len(list(stream)) == 15 - 4  # the same place again, now that the fault is over


def test_a_feeder_error_comes_at_its_batch(catalog: sp.Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    fill, calls = RowCopies.fill, iter(range(10**6))

    def sometimes(copies: RowCopies, *where: Any) -> list[Any]:
        if next(calls) == 3:
            msg = "rows cannot be read"
            raise sp.errors.SourceError(msg)
        return fill(copies, *where)

    monkeypatch.setattr(RowCopies, "fill", sometimes)
    with maker(catalog, prefetch=3)() as stream:
        seen = []
        with pytest.raises(sp.errors.SourceError, match="rows cannot be read"):
            seen.extend(stream)
        assert our_threads() == []
        assert len(list(stream)) == 12


def test_an_error_that_the_loop_never_reaches_is_not_raised(
    catalog: sp.Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = plan(catalog.table("lance")).to_numpy(prefetch=3).plan
    failing_images(monkeypatch, sp.errors.SourceError("too far ahead"), at_call=2)
    with sp.PreparedStream(node, catalog, threads=1) as stream:
        run = iter(stream)
        next(run)
        run.close()

        assert our_threads() == []


def slowed_images(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """No piece of images ends before the event is set."""
    render, gate = ImageFeed.render, threading.Event()

    def waits(feed: ImageFeed, *args: Any) -> None:
        gate.wait()
        render(feed, *args)

    monkeypatch.setattr(ImageFeed, "render", waits)
    return gate


def all_told_to_stop() -> bool:
    return all(getattr(each, "stop_requested", True) for each in threading.enumerate())


def test_closing_from_another_thread_ends_a_waiting_loop(catalog: sp.Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = slowed_images(monkeypatch)
    node = plan(catalog.table("lance"), batch_size=80).to_numpy(prefetch=3).plan
    stream = sp.PreparedStream(node, catalog, threads=1)  # of the batch waited for, one piece has not begun
    heard: list[Any] = []

    def loop() -> None:
        try:
            heard.extend(stream)
        except sp.errors.StreamError as error:
            heard.append(str(error))

    consumer = threading.Thread(target=loop)
    consumer.start()
    until(lambda: stream.metrics()["queued"] >= 2)
    closer = threading.Thread(target=stream.close)
    closer.start()
    until(all_told_to_stop)
    gate.set()
    for thread in (closer, consumer):
        thread.join(FAR_S)
        assert not thread.is_alive()

    assert isinstance(heard[-1], str)
    assert "closed while it was read" in heard[-1]


def test_leaving_a_loop_waits_for_pieces_that_have_begun(catalog: sp.Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    busy, most, render = [0], [0], ImageFeed.render

    def counted(feed: ImageFeed, *args: Any) -> None:
        busy[0] += 1
        most[0] = max(most[0], busy[0])
        time.sleep(0.05)
        try:
            render(feed, *args)
        finally:
            busy[0] -= 1

    monkeypatch.setattr(ImageFeed, "render", counted)
    with maker(catalog, prefetch=6)() as stream:
        run = iter(stream)
        next(run)
        run.close()

        assert busy == [0]
        assert most[0] >= 1


def test_an_iterator_in_a_cycle_is_closed_by_the_collector(catalog: sp.Catalog) -> None:
    import gc

    class Holder:
        def __init__(self, run: Iterator[Any]) -> None:
            self.run, self.me = run, self

    stream = maker(catalog, prefetch=3)()
    holder = Holder(iter(stream))
    next(holder.run)
    assert "spiral-feed" in our_threads()
    del holder
    gc.collect()

    assert our_threads() == []
    assert stream.state_dict()["batch"] == 1
    stream.close()


def test_decoding_uses_the_threads_it_was_given(catalog: sp.Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    names: set[str] = set()
    render = ImageFeed.render

    def named(feed: ImageFeed, *args: Any) -> None:
        names.add(threading.current_thread().name)
        until(lambda: len(names) == 3)  # each has begun a piece
        render(feed, *args)

    monkeypatch.setattr(ImageFeed, "render", named)
    node = plan(catalog.table("lance")).to_numpy(prefetch=6).plan
    with sp.PreparedStream(node, catalog, threads=3) as stream:
        list(stream)

    assert names == {f"spiral-work_{k}" for k in range(3)}


def test_any_number_of_threads_gives_the_same_bytes(catalog: sp.Catalog) -> None:
    node = plan(catalog.table("lance"), batch_size=100).to_numpy(prefetch=3).plan
    digests = []
    for threads in (1, 2, 5):
        with sp.PreparedStream(node, catalog, threads=threads) as stream:
            digests.append([np.array(batch["image"]).tobytes() for batch in stream])

    assert digests[0] == digests[1] == digests[2]
