"""The bounded queue: order, room, waiting, and what each side learns when the other stops."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spiral_stream.errors import StreamError
from spiral_stream.runtime.run.queue import BoundedQueue
from tests.fixtures.waits import FAR_S, until


def started(target: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=target, name="test-side")
    thread.start()
    return thread


@settings(max_examples=30)
@given(
    sizes=st.lists(st.integers(1, 50), max_size=30),
    depth=st.integers(1, 5),
    budget=st.integers(1, 120),
)
def test_items_come_in_order_within_depth_and_budget(sizes: list[int], depth: int, budget: int) -> None:
    queue: BoundedQueue[int] = BoundedQueue(depth, budget)
    begun: list[int] = []
    in_flight: list[tuple[int, int]] = []
    taken: list[int] = []

    def produce() -> None:
        for at, size in enumerate(sizes):
            assert queue.reserve(size)
            begun.append(at)
            ahead = range(len(taken), len(begun))
            in_flight.append((len(ahead), sum(sizes[k] for k in ahead)))
            queue.put(at, size)
        queue.end()

    producer = started(produce)
    while (item := queue.get()) is not None:
        taken.append(item)
    producer.join(FAR_S)

    assert not producer.is_alive()
    assert taken == list(range(len(sizes)))
    assert queue.get() is None
    assert queue.peak_bytes <= max([budget, *sizes])
    # The consumer notes what it took after the queue let go of it, so the producer may count one item too many.
    for count, _ in in_flight:
        assert count <= depth + 1


def test_a_producer_waits_until_there_is_room() -> None:
    queue: BoundedQueue[str] = BoundedQueue(2, 100)
    third = threading.Event()

    def produce() -> None:
        for name in "abc":
            assert queue.reserve(10)
            if name == "c":
                third.set()
            queue.put(name, 10)

    producer = started(produce)
    until(lambda: len(queue) == 2)
    assert not third.is_set()
    assert queue.get() == "a"
    assert third.wait(FAR_S)
    producer.join(FAR_S)

    assert [queue.get(), queue.get()] == ["b", "c"]
    assert queue.put_wait_s > 0


def test_bytes_bound_the_queue_but_one_item_always_fits() -> None:
    queue: BoundedQueue[str] = BoundedQueue(10, 100)
    assert queue.reserve(1_000)
    queue.put("larger than the budget", 1_000)
    waiting = started(lambda: queue.reserve(1))
    assert waiting.is_alive()
    assert queue.get() == "larger than the budget"
    waiting.join(FAR_S)

    assert not waiting.is_alive()
    assert queue.peak_bytes == 1_000


def test_a_failure_comes_after_the_items_before_it_and_stays() -> None:
    queue: BoundedQueue[int] = BoundedQueue(3, 100)
    queue.reserve(1)
    queue.put(1, 1)
    queue.fail(OSError("the disk is gone"))

    assert queue.get() == 1
    for _ in range(2):
        with pytest.raises(OSError, match="the disk is gone"):
            queue.get()


@pytest.mark.parametrize("stop", ["end", "fail", "close"])
def test_a_waiting_consumer_learns_that_there_is_no_more(stop: str) -> None:
    queue: BoundedQueue[int] = BoundedQueue(3, 100)
    heard: list[Any] = []

    def consume() -> None:
        try:
            heard.append(queue.get())
        except (StreamError, OSError) as error:
            heard.append(type(error))

    consumer = started(consume)
    {"end": queue.end, "fail": lambda: queue.fail(OSError()), "close": queue.close}[stop]()
    consumer.join(FAR_S)

    assert heard == [{"end": None, "fail": OSError, "close": StreamError}[stop]]


def test_closing_wakes_a_waiting_producer_and_gives_back_what_is_left() -> None:
    queue: BoundedQueue[str] = BoundedQueue(1, 100)
    heard: list[bool] = []
    queue.reserve(1)
    queue.put("left", 1)
    producer = started(lambda: heard.append(queue.reserve(1)))

    assert queue.close() == ["left"]
    producer.join(FAR_S)
    assert heard == [False]
    assert queue.close() == []
    with pytest.raises(StreamError, match=r"closed while it was read. Make a new one from its plan"):
        queue.get()


def test_what_is_put_into_a_closed_queue_stays_the_producers() -> None:
    queue: BoundedQueue[str] = BoundedQueue(2, 100)
    assert queue.reserve(1)
    assert queue.put("taken", 1)
    assert queue.reserve(1)
    assert queue.close() == ["taken"]

    assert not queue.put("late", 1)
    assert queue.close() == []
