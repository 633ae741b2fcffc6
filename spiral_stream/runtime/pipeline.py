"""The moving parts of a stream: a feeder thread, worker threads, one bounded queue.

The feeder walks the plan's batch numbers, reserves room, settles each batch's
membership and starts its pieces on the workers; the consumer takes batches in the
plan's order. One object owns the threads and joins them.
"""

import threading
from collections.abc import Iterable
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import Final, final

from spiral_stream.errors import StreamError
from spiral_stream.runtime.batches import Batch, BatchBuilder, Pending
from spiral_stream.runtime.metrics import Metrics
from spiral_stream.runtime.queue import CLOSED, BoundedQueue

JOIN_TIMEOUT_S: Final = 60.0


@final
class Pipeline:
    """Batches of one rank in order, built ahead of the consumer. Close it, or use ``with``."""

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
        self._queue: BoundedQueue[Pending] = BoundedQueue(prefetch, budget_bytes)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="spiral-work")
        self._feeder = threading.Thread(target=self._feed, name="spiral-feed", daemon=True)
        self._feeder.start()

    def _feed(self) -> None:
        try:
            for numbers in self._numbers:
                if not self._queue.reserve(self._builder.batch_bytes):
                    return
                pending = self._builder.begin(self._epoch, numbers, self._pool)
                self._queue.put(pending, self._builder.batch_bytes)
            self._queue.end()
        except BaseException as error:  # noqa: BLE001
            self._queue.fail(error)

    @property
    def ready(self) -> int:
        """Batches begun and not taken."""
        return len(self._queue)

    def get(self) -> Batch | None:
        """The next batch, or None after the last."""
        pending = self._queue.get()
        if pending is None:
            return None
        try:
            with self._metrics.timed("consumer_waited_s"):
                return pending.result()
        except CancelledError as error:
            raise StreamError(CLOSED) from error

    def close(self) -> None:
        """Stop and join every thread; prefetched batches are dropped."""
        left = self._queue.close()
        for pending in left:
            pending.cancel()
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._feeder.join(JOIN_TIMEOUT_S)
        if self._feeder.is_alive():
            msg = f"close: the feeder did not stop within {JOIN_TIMEOUT_S:.0f} s; it is reading storage that does not answer"
            raise StreamError(msg)
        self.record()

    def record(self) -> None:
        """Bring the queue's own totals into the metrics."""
        with self._metrics.locked() as totals:
            totals.feeder_waited_s = self._queue.put_wait_s
            totals.queued = len(self._queue)
            totals.peak_queue_bytes = max(totals.peak_queue_bytes, self._queue.peak_bytes)
