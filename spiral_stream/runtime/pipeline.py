"""The moving parts of a stream: a feeder thread, worker threads, one bounded queue.

The feeder walks the plan's batch numbers, reserves room, settles each batch's
membership and starts its pieces on the workers; the consumer takes batches in the
plan's order. One object owns the threads and ends them.

Nobody waits without end or without a word. A consumer that has waited for a minute is told what its batch waits for; closing
has a deadline, after which threads whose calls do not return are named and left alone (`threads`).
"""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from time import monotonic
from typing import Final, final

from spiral_stream.errors import SpiralWarning, StreamError
from spiral_stream.runtime.batches import Batch, BatchBuilder, Pending
from spiral_stream.runtime.metrics import Metrics
from spiral_stream.runtime.queue import CLOSED, BoundedQueue
from spiral_stream.threads import (
    CLOSE_TIMEOUT_S,
    TELL_AFTER_S,
    Owner,
    OwnThread,
    Workers,
    doing,
    named,
    warn_left_alone,
)

POLL_S: Final = 0.5  # after so long a waiting consumer looks whether another thread has closed the stream


@final
class Pipeline(Owner):
    """Batches of one rank in order, built ahead of the consumer. Close it."""

    def __init__(
        self,
        builder: BatchBuilder,
        epoch: int,
        numbers: Iterable[range],
        prefetch: int,
        budget_bytes: int,
        threads: int,
        metrics: Metrics,
    ) -> None:
        self._builder = builder
        self._epoch = epoch
        self._numbers = numbers
        self._metrics = metrics
        self._largest = 0  # bytes of the largest batch so far
        self._queue: BoundedQueue[Pending] = BoundedQueue(prefetch, budget_bytes)
        self._pool = Workers(threads, "spiral-work")
        self._feeder = OwnThread(self._feed, "spiral-feed")
        super().__init__()
        self._feeder.start()

    def _feed(self) -> None:
        try:
            numbers = iter(self._numbers)
            while (each := self._next(numbers)) is not None:
                reserved = self._largest or self._builder.batch_bytes
                if not self._queue.reserve(reserved):
                    return
                with doing(f"batch {each.start:,} of epoch {self._epoch}"):
                    pending = self._builder.begin(self._epoch, each, self._pool)
                self._learn(pending)
                self._queue.put(pending, pending.nbytes if pending.settled else max(reserved, pending.nbytes), reserved)
            self._queue.end()
        except BaseException as error:  # noqa: BLE001
            self._queue.fail(error)

    def _next(self, numbers: Iterator[range]) -> range | None:
        with doing(f"which batch of epoch {self._epoch} is next"):
            return next(numbers, None)

    def _learn(self, pending: Pending) -> None:
        """Reserve as much for the next batches as the largest so far has."""
        if pending.settled:
            self._largest = max(self._largest, pending.nbytes)

    @property
    def threads(self) -> Sequence[OwnThread]:
        """The feeder and the workers."""
        return self._feeder, *self._pool.threads

    @property
    def ready(self) -> int:
        """Batches begun and not taken."""
        return len(self._queue)

    def get(self) -> Batch | None:
        """The next batch, or None after the last."""
        pending = self._queue.get(self._tell, TELL_AFTER_S)
        if pending is None:
            return None
        try:
            with self._metrics.timed("consumer_waited_s"):
                self._wait(pending)
                batch = pending.result()
        except CancelledError as error:
            raise StreamError(CLOSED) from error
        self._learn(pending)
        return batch

    def _wait(self, pending: Pending) -> None:
        """Wait for a batch's pieces; a word now and then, and an end when another thread closes."""
        begun, after_s = monotonic(), TELL_AFTER_S
        while not pending.wait(POLL_S):
            if self._queue.closed:
                raise StreamError(CLOSED)
            if (waited := monotonic() - begun) >= after_s:
                self._tell(waited)
                after_s *= 2

    def _tell(self, waited_s: float) -> None:
        busy = [thread for thread in self.threads if thread.calls]
        warnings.warn(
            f"iter: the next batch has been waited for {waited_s:,.0f} s. {named(busy) or 'No thread is at work on it'}. "
            "Waiting goes on; to end it, leave the loop or press Ctrl-C, either of which takes a few seconds at most",
            SpiralWarning,
            stacklevel=2,
        )

    def stop(self) -> None:
        """Wake the feeder, and drop what is begun."""
        for pending in self._queue.close():
            pending.cancel()
        self._pool.stop()

    def close(self, timeout_s: float | None = None) -> bool:
        """Stop and join every thread; prefetched batches are dropped.

        Args:
            timeout_s: how long it waits for calls that do not return; None takes `CLOSE_TIMEOUT_S`.

        Returns:
            whether a thread still runs. It was named in a warning, and what it uses must not be waited for.
        """
        if self._over:
            return False
        timeout_s = CLOSE_TIMEOUT_S if timeout_s is None else timeout_s
        left = self.end(timeout_s)
        self.record()
        warn_left_alone("close", left, timeout_s)
        return bool(left)

    def record(self) -> None:
        """Bring the queue's own totals into the metrics."""
        with self._metrics.locked() as totals:
            totals.feeder_waited_s = self._queue.put_wait_s
            totals.queued = len(self._queue)
            totals.peak_queue_bytes = max(totals.peak_queue_bytes, self._queue.peak_bytes)
            totals.peak_batch_bytes = max(totals.peak_batch_bytes, self._largest)
