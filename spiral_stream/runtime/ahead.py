"""Work in two parts: bytes are fetched over a network first, by threads that only wait; then they are decoded.

A thread that decodes never waits for a socket: its part begins when the bytes are there. All pieces of the batches that
are built ahead (``prefetch``) are asked for as soon as their batch is begun, so the requests of several batches are under
way at a time.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from typing import Any, Final, TypeVar, final

import numpy as np
import pyarrow as pa

from spiral_stream.errors import SourceError
from spiral_stream.sources.reach import Reach
from spiral_stream.sources.reference import resolve
from spiral_stream.threads import OwnThread, Workers

FETCHERS: Final = 8  # threads, each with up to 32 requests under way
T = TypeVar("T")
Fetched = memoryview | SourceError  # what a reference names, or why it cannot be read


@final
class StreamThreads(Executor):
    """The threads of a stream: those that work, and those that wait for a network. Starts none before its first task."""

    def __init__(self, threads: int) -> None:
        self._work = Workers(threads, "spiral-work")
        self._fetch = Workers(FETCHERS, "spiral-fetch")

    @property
    def threads(self) -> Sequence[OwnThread]:
        """The threads that were started."""
        return *self._work.threads, *self._fetch.threads

    def submit(self, work: Callable[..., T], /, *args: Any, **options: Any) -> "Future[T]":
        """Let one of the threads that work do it."""
        return self._work.submit(work, *args, **options)

    def submit_after(self, fetch: Callable[[], T], work: Callable[[T], None]) -> "Future[None]":
        """Let one of the threads that wait fetch something, and then one of those that work do the rest."""
        done: Future[None] = Future()

        def worked(inner: "Future[None]") -> None:
            _copy(inner, done)

        def ready(found: "Future[T]") -> None:
            if done.cancelled() or found.cancelled() or found.exception() is not None:
                _copy(found, done)
            else:
                self._work.submit(work, found.result()).add_done_callback(worked)

        self._fetch.submit(fetch).add_done_callback(ready)
        return done

    def stop(self) -> None:
        """Cancel what has not begun, and end each thread after its present task."""
        self._fetch.stop()
        self._work.stop()


def _copy(source: "Future[Any]", done: "Future[None]") -> None:
    """End a future as another one ended."""
    if source.cancelled() or not done.set_running_or_notify_cancel():
        done.cancel()
    elif (error := source.exception()) is not None:
        done.set_exception(error)
    else:
        done.set_result(None)


def submitted(pool: Executor, fetch: Callable[[], T] | None, work: Callable[[T | None], None]) -> "Future[None]":
    """Do work on a pool, after something that it needs was fetched; None fetches nothing."""
    if fetch is None:
        return pool.submit(work, None)
    if isinstance(pool, StreamThreads):
        return pool.submit_after(fetch, work)
    return pool.submit(lambda: work(fetch()))


def only_fetched(pool: Executor, fetch: Callable[[], None]) -> "Future[None]":
    """Do on a pool what only waits for a network."""
    return pool.submit_after(fetch, lambda _: None) if isinstance(pool, StreamThreads) else pool.submit(fetch)


def pieces(count: int, rows: int) -> Iterator[tuple[int, int]]:
    """Cut ``count`` rows into pieces: the first row of each, and one past its last."""
    for start in range(0, count, rows):
        yield start, min(start + rows, count)


def fetched(references: pa.Array | pa.ChunkedArray, reach: Reach, most_bytes: int | None) -> list[Fetched]:
    """Return what each reference names, or the error that says why it cannot be read.

    One bad reference costs one more call for the others: they are asked for again, without it.
    """
    found: list[Fetched | None] = [None] * len(references)
    left = np.arange(len(references))
    while len(left):
        some = references if len(left) == len(references) else references.take(pa.array(left))
        try:
            data = resolve(some, reach, most_bytes)
        except SourceError as error:
            if error.row is None:
                raise
            found[int(left[error.row])] = error
            left = np.delete(left, error.row)
            continue
        for at, each in zip(left.tolist(), data, strict=True):
            found[at] = each
        break
    return [each for each in found if each is not None]


def need_all(data: Sequence[Fetched]) -> list[memoryview]:
    """Return fetched bytes.

    Raises:
        SourceError: that of the first that could not be read; ``row`` is its place.
    """
    out: list[memoryview] = []
    for row, each in enumerate(data):
        if isinstance(each, SourceError):
            each.row = row
            raise each
        out.append(each)
    return out
