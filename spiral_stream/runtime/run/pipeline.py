"""The pipeline of a stream: a feeder thread, worker threads, one bounded queue.

The feeder walks the plan's batch numbers, reserves room, decides which samples form each batch, and starts the batch's
pieces on the workers. The consumer takes batches in the plan's order. One object owns the threads and ends them.

A loop that takes narrow batches as fast as they come would wait for the feeder at each, and a handover costs as much as such
a batch: two threads are woken, and share one interpreter. So where batches are built quicker than `QUICK_S` and the loop is
back within `BACK_S`, it builds the next one itself, in its own thread, and the feeder rests. Whoever builds has the turn, so the
order of batches is one.

Nobody waits forever or silently. After a minute, a warning tells the consumer what its batch waits for. Closing has a
deadline, after which it names the threads whose calls do not return and leaves them alone (`threads`).
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError
from contextlib import ExitStack
from functools import partial
from math import inf
from operator import attrgetter
from time import perf_counter
from typing import Final, final

from spiral_stream.errors import StreamError, warn
from spiral_stream.runtime.batch.builder import BatchBuilder
from spiral_stream.runtime.batch.pending_batch import Batch, Pending
from spiral_stream.runtime.fetch import Nearby, StreamThreads
from spiral_stream.runtime.metrics import Metrics
from spiral_stream.runtime.run.queue import CLOSED, BoundedQueue
from spiral_stream.storage.counters import counted
from spiral_stream.threads import (
    CLOSE_TIMEOUT_S,
    TELL_AFTER_S,
    Owner,
    Stopwatch,
    StreamThread,
    doing,
    end_daemon_at_exit,
    named,
    warn_left_alone,
)

_SIZE_POLL_S: Final = 0.05
QUICK_S: Final = 0.002  # of building a batch
BACK_S: Final = 0.0002  # of a loop with its batch: nothing worth a handover is done meanwhile
POLL_S: Final = 0.5  # how often a waiting consumer looks whether another thread has closed the stream


@final
class Pipeline(Owner):
    """Builds the batches of one rank, in order and ahead of the consumer. Start it, and close it.

    Args:
        builder: builds a batch.
        epoch: the epoch whose order is drawn.
        numbers: global batch numbers of each step, in runs (`Steps.due`).
        then: called by the feeder once the last batch is begun.
        prefetch: most batches built ahead.
        budget_bytes: most bytes of batches built ahead; one batch is always built.
        threads: worker threads.
        metrics: where time is counted.
        near: fetches what lies around what batches read; stopped with the pipeline.
    """

    def __init__(
        self,
        builder: BatchBuilder,
        epoch: int,
        numbers: Iterable[Sequence[range]],
        then: Callable[[], None],
        prefetch: int,
        budget_bytes: int,
        threads: int,
        metrics: Metrics,
        near: Nearby | None = None,
    ) -> None:
        self._builder = builder
        self._epoch = epoch
        self._numbers, self._then = iter(numbers), then
        self._run: deque[range] = deque()  # steps whose batches are formed
        self._turn = threading.Lock()  # of whoever builds
        self._built_s = self._back_s = inf  # of building the last batch, and of the loop with its batches
        self._metrics = metrics
        self._largest = 0  # bytes of the largest batch so far
        self._got = perf_counter()  # when the last batch was there
        self._taken: deque[int] = (
            deque()
        )  # samples of the batches that the loop was not given yet, though they were taken
        self.begun = 0  # steps
        self.begun_samples = 0
        self._recorded_s = 0.0  # of the feeder's waiting
        self._waited_s = 0.0  # by the loop, since the last batch that it was given
        self._queue: BoundedQueue[Pending] = BoundedQueue(prefetch, budget_bytes)
        self._pool = StreamThreads(threads, metrics.network, near)
        self._feeder = StreamThread(partial(counted, metrics.network, self._feed), "spiral-feed")
        super().__init__()

    def start(self) -> None:
        """Begin to build batches. Whoever calls this closes the pipeline, also where an interrupt comes meanwhile."""
        if not self._over:
            self._feeder.start()

    def _feed(self) -> None:
        try:
            while self._begin():
                pass
        except BaseException as error:  # noqa: BLE001
            self._queue.fail(error)

    def _begin(self) -> bool:
        """Begin a batch, as soon as there is room; False after the last one, and if the queue was closed meanwhile."""
        with self._turn:
            if not self._is_due():
                return False
        reserved = self._largest or self._builder.batch_bytes
        if not self._queue.reserve(reserved):
            return False
        with self._turn, ExitStack() as given_up:
            pending = self._build()  # the loop leaves the last one
            given_up.callback(pending.cancel)
            nbytes, known = self._learn(pending)
            if not self._queue.put(pending, nbytes if known else max(reserved, nbytes), reserved):
                return False
            given_up.pop_all()  # the consumer has it
        if not self._largest:
            self._size(pending)
        return True

    def _is_due(self) -> bool:
        """Whether there is a batch to begin; at the end, says that there is none. For the feeder, when it has the turn."""
        if not self._run:
            with doing(f"which batch of epoch {self._epoch} is next"):
                self._run.extend(next(self._numbers, ()))
        if self._run:
            return True
        with doing(f"what comes after epoch {self._epoch}"):
            self._then()
        self._queue.end()
        return False

    def _build(self) -> Pending:
        """Begin the next batch; for whoever has the turn."""
        begun, numbers = perf_counter(), self._run.popleft()
        self._pool.begin()
        pending: Pending | None = None
        try:
            with doing(f"batch {numbers.start:,} of epoch {self._epoch}"):  # whose end stops a thread that was told to
                pending = self._builder.begin(self._epoch, numbers, self._pool, self._run)
            self.begun += 1
            self.begun_samples += pending.samples
            built_s = perf_counter() - begun if pending.done else inf
            self._built_s = built_s if self._built_s == inf else (self._built_s + built_s) / 2
        except BaseException:
            if pending is not None:
                pending.cancel()
            raise
        return pending

    def _built_here(self, now: float) -> Pending | None:
        """Build the next batch in the loop's thread, where that costs less than to wait for it; None to wait."""
        self._back_s = now - self._got if self._back_s == inf else (self._back_s + now - self._got) / 2
        if self._built_s > QUICK_S or self._back_s > BACK_S or not self._queue.silent:
            return None
        if not self._turn.acquire(blocking=False):  # the feeder builds; then it rests
            self._queue.let_rest(built=False)
            return None
        try:
            if len(self._run) <= 1 or not self._queue.silent:  # the feeder looks what comes after the last one
                return None
            pending = self._build()
        finally:
            self._turn.release()
        self._queue.let_rest(built=True)
        return pending

    def _size(self, pending: Pending) -> None:
        """Wait for the size of the first batch, so that the next ones are reserved for: a function may make lists of any size."""
        while not pending.size()[1] and not pending.wait(_SIZE_POLL_S):
            if self._queue.closed:
                return
        self._learn(pending)

    def _learn(self, pending: Pending) -> tuple[int, bool]:
        """Note the size of the largest batch so far; as much is reserved for the next ones. Returns `Pending.size`."""
        nbytes, known = pending.size()
        if known:
            self._largest = max(self._largest, nbytes)
        return nbytes, known

    @property
    def threads(self) -> Sequence[StreamThread]:
        """The feeder and the workers."""
        return self._feeder, *self._pool.threads

    @property
    def ready(self) -> int:
        """Batches that were begun and not taken."""
        return len(self._queue)

    def get(self) -> Batch | None:
        """Return the next batch; None after the last."""
        begun = perf_counter()
        self._pool.want()
        try:
            pending = self._built_here(begun) or self._queue.get(self._tell, TELL_AFTER_S)
            if pending is None:
                return None
            try:
                if not pending.done:
                    self._wait(pending)
                batch = pending.result()
            except BaseException:
                pending.cancel()  # the wait may have been interrupted
                raise
        except CancelledError as error:
            end_daemon_at_exit()
            raise StreamError(CLOSED) from error
        except StreamError:
            end_daemon_at_exit()
            raise
        self._learn(pending)
        self._taken.append(batch.samples)
        self._got = perf_counter()
        self._waited_s += self._got - begun
        return batch

    def at_once(self) -> bool:
        """Whether `get` returns without waiting."""
        return self._queue.at_once(attrgetter("done"))

    def handed_over(self) -> None:
        """Count a batch that the loop is given, and the time since it was there: it went into copying it to a device."""
        samples = self._taken.popleft() if self._taken else 0
        self._metrics.handed_over(perf_counter() - self._got, self._waited_s, samples)
        self._waited_s = 0.0

    def _wait(self, pending: Pending) -> None:
        """Wait for a batch's pieces; warn now and then, and stop when another thread closes the stream."""
        watch, after_s = Stopwatch(POLL_S), TELL_AFTER_S
        while not pending.wait(POLL_S):
            if self._queue.closed:
                raise StreamError(CLOSED)
            if (waited := watch.seconds()) >= after_s:
                self._tell(waited)
                after_s *= 2

    def _tell(self, waited_s: float) -> None:
        busy = [thread for thread in self.threads if thread.calls]
        warn(
            f"iter: waited {waited_s:,.0f} s for the next batch so far. {named(busy) or 'No thread works on it'}. "
            "To end the wait, leave the loop or press Ctrl-C; either takes a few seconds at most"
        )

    def stop(self) -> None:
        """Wake the feeder, and drop the batches that are begun."""
        for pending in self._queue.close():
            pending.cancel()
        self._pool.stop()

    def close(self, timeout_s: float | None = None) -> bool:
        """Stop and join every thread; prefetched batches are dropped.

        Args:
            timeout_s: how long to wait for calls that do not return; None takes `CLOSE_TIMEOUT_S`.

        Returns:
            Whether a thread still runs. A warning has named it; do not wait for anything that it may hold.
        """
        if self._over:
            return False
        timeout_s = CLOSE_TIMEOUT_S if timeout_s is None else timeout_s
        left = self.end(timeout_s)
        self.record()
        warn_left_alone("close", left, timeout_s)
        return bool(left)

    def record(self) -> None:
        """Copy the queue's totals into the metrics."""
        with self._metrics.locked() as totals:
            waited_s = self._queue.put_wait_s
            totals.feeder_waited_s += waited_s - self._recorded_s
            self._recorded_s = waited_s
            ready = self._queue.count(attrgetter("done"))
            totals.queued = len(self._queue)
            totals.ready_depth, totals.raw_depth = ready, max(0, totals.queued - ready)
            totals.peak_queue_bytes = max(totals.peak_queue_bytes, self._queue.peak_bytes)
            totals.peak_batch_bytes = max(totals.peak_batch_bytes, self._largest)
