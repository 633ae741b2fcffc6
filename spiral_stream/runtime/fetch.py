"""Two pools of threads: some fetch bytes over a network and only wait, the others decode them.

A thread that decodes never waits for a socket: its part begins when the bytes are there. All pieces of the batches that
are built ahead (``prefetch``) are asked for as soon as their batch is begun, so the requests of several batches are under
way at a time.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from functools import partial
from queue import PriorityQueue
from typing import Any, Final, Protocol, TypeVar, final

from spiral_stream.errors import SourceError, anew
from spiral_stream.planner.columns.payload import Payload
from spiral_stream.runtime.read_ahead import FETCHERS
from spiral_stream.sampling.order import UInt64
from spiral_stream.sources.references.resolve import Resolved
from spiral_stream.storage.counters import Traffic, counted
from spiral_stream.threads import Stopped, StreamThread, Workers, doing, settle, stop_requested

LOOK_S: Final = 0.02  # how often whoever waits for its turn looks
T = TypeVar("T")
Begin = Callable[[], Callable[[], bool]]  # begins what lies around; what it returns says whether that is on its way


class Nearby(Protocol):
    """Fetches what lies around what a pass reads (`runtime.run.fetch_ahead.Near`)."""

    def begin(
        self, stream: int, payload: Payload, rows: UInt64, left: Callable[[UInt64], UInt64]
    ) -> Callable[[], bool]:
        """Fetch what lies around some rows, once; the function returned says whether any of it is on its way."""
        ...

    def stop(self) -> None:
        """Do nothing more than what has begun."""
        ...


@final
class StreamThreads(Executor):
    """The threads of a stream: those that work, and those that wait for a network. Starts none before its first task.

    What was asked for first is worked on first, of all that is there. The first tasks from the batch on that the loop waits
    for, as many as can be under way, ask for their own bytes, and then for what lies around. The others ask for what lies
    around, and wait for it: their bytes are among it.

    Args:
        threads: those that work.
        traffic: where it is counted what any of them asks of stores.
        near: fetches what lies around what is fetched; None fetches nothing more.
    """

    def __init__(self, threads: int, traffic: Traffic | None = None, near: Nearby | None = None) -> None:
        self.near, self._traffic = near, Traffic() if traffic is None else traffic
        self._work = Workers(threads, "spiral-work")
        self._fetch = Workers(FETCHERS, "spiral-fetch")
        self._submitted, self._ready = 0, PriorityQueue[_Ready]()
        self._firsts, self._owed, self._first_due = deque[int](), 0, 0  # the first task of each batch, by number
        self._moved = threading.Condition()

    def begin(self) -> None:
        """Note that what is submitted from now on belongs to the next batch."""
        with self._moved:
            self._firsts.append(self._submitted)
            self._move()

    def want(self) -> None:
        """Note that the loop waits for the next batch."""
        with self._moved:
            self._owed += 1
            self._move()

    def _move(self) -> None:
        while self._owed and self._firsts:
            self._owed -= 1
            self._first_due = self._firsts.popleft()
            self._moved.notify_all()

    @property
    def threads(self) -> Sequence[StreamThread]:
        """The threads that were started."""
        return *self._work.threads, *self._fetch.threads

    def submit(self, work: Callable[..., T], /, *args: Any, **options: Any) -> "Future[T]":
        """Let one of the threads that work do it."""
        return self._work.submit(counted, self._traffic, work, *args, **options)

    def submit_after(
        self, fetch: Callable[[], T], work: Callable[[T], None], near: Begin | None = None
    ) -> "Future[None]":
        """Let one of the threads that wait fetch something, and then one of those that work do the rest.

        Args:
            fetch: what waits.
            work: is given what was fetched.
            near: begins to fetch what lies around it.
        """
        done: Future[None] = Future()
        number, self._submitted = self._submitted, self._submitted + 1  # one thread feeds

        def ready(found: "Future[T]") -> None:
            if done.cancelled() or found.cancelled() or found.exception() is not None:
                _copy(found, done)
            else:
                self._ready.put(_Ready(number, partial(work, found.result()), done))
                self.submit(self._first).add_done_callback(self._dropped)

        run = fetch if near is None else partial(self._in_turn, number, fetch, near)
        self._fetch.submit(counted, self._traffic, run).add_done_callback(ready)
        return done

    def _in_turn(self, number: int, fetch: Callable[[], T], near: Begin) -> T:
        """Fetch something, and what lies around it."""
        if self._due(number):
            found = fetch()
            near()
            return found
        is_on_its_way = near()
        with self._moved, doing("waiting for what lies around"):
            while not self._due(number) and is_on_its_way() and not stop_requested():
                self._moved.wait(LOOK_S)
        return fetch()

    def _due(self, number: int) -> bool:
        """Whether a task is of the batch that the loop waits for, or among the first ones from there on."""
        return not self._firsts or number < max(self._firsts[0], self._first_due + FETCHERS // 2)

    def _first(self) -> None:
        """Do what was asked for first, of what is ready: one thing for each call."""
        each = self._ready.get_nowait()
        if each.done.set_running_or_notify_cancel() and not settle(each.done, each.work):
            raise Stopped

    def _dropped(self, call: "Future[None]") -> None:
        """Cancel something that is ready for a call that will never be."""
        if call.cancelled():
            self._ready.get_nowait().done.cancel()

    def stop(self) -> None:
        """Cancel what has not begun, and end each thread after its present task."""
        if self.near is not None:
            self.near.stop()
        self._fetch.stop()
        self._work.stop()


@final
@dataclass(frozen=True, slots=True, order=True)
class _Ready:
    """Work whose bytes are there."""

    number: int  # in the order in which it was asked for
    work: Callable[[], None] = field(compare=False)
    done: "Future[None]" = field(compare=False)


def _copy(source: "Future[Any]", done: "Future[None]") -> None:
    """End a future as another one ended."""
    if source.cancelled() or not done.set_running_or_notify_cancel():
        done.cancel()
    elif (error := source.exception()) is not None:
        done.set_exception(error)
    else:
        done.set_result(None)


def near_of(pool: Executor) -> Nearby | None:
    """Return who fetches what lies around what a pool fetches; None if nobody does."""
    return pool.near if isinstance(pool, StreamThreads) else None


def submitted(
    pool: Executor, fetch: Callable[[], T] | None, work: Callable[[T | None], None], near: Begin | None = None
) -> "Future[None]":
    """Do work on a pool, after something that it needs was fetched; None fetches nothing. See `StreamThreads.submit_after`."""
    if fetch is None:
        return pool.submit(work, None)
    if isinstance(pool, StreamThreads):
        return pool.submit_after(fetch, work, near)
    return pool.submit(lambda: work(fetch()))


def only_fetched(pool: Executor, fetch: Callable[[], None]) -> "Future[None]":
    """Do on a pool what only waits for a network."""
    return pool.submit_after(fetch, lambda _: None) if isinstance(pool, StreamThreads) else pool.submit(fetch)


def chunks(count: int, rows: int) -> Iterator[tuple[int, int]]:
    """Cut ``count`` rows into pieces: the first row of each, and one past its last."""
    for start in range(0, count, rows):
        yield start, min(start + rows, count)


def need_all(data: Sequence[Resolved]) -> list[memoryview]:
    """Return fetched bytes.

    Raises:
        SourceError: that of the first that could not be read; ``row`` is its place.
    """
    out: list[memoryview] = []
    for row, each in enumerate(data):
        if isinstance(each, SourceError):
            raise anew(each, row=row)
        out.append(each)
    return out
