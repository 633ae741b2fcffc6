"""Copies of batches to a device that run ahead of the loop, in order; each batch keeps its host memory until it has arrived.

A copy begins when the loop asks for a batch, and ends while the loop works on it. ``ahead`` batches lie on the device
before the loop has them. The loop waits for the host only if none is there. No host memory is given back while a copy
reads it, however a pass ends.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, final

from spiral_stream.runtime.batch.pending_batch import Batch
from spiral_stream.runtime.delivery import Feed


class Copy(ABC):
    """One batch on its way to a device."""

    @abstractmethod
    def done(self) -> bool:
        """Whether the host's memory is needed no more."""

    @abstractmethod
    def wait(self) -> None:
        """Wait until it is `done`."""

    @abstractmethod
    def hand_over(self) -> Any:
        """Return the batch on the device. What the loop does with it there begins after the copy."""


@final
class CopiesAhead:
    """Copies batches to a device ahead of the loop.

    Args:
        begin: begins the copy of a batch.
        ahead: how many batches lie on the device before the loop has them; at least 1.
    """

    def __init__(self, begin: Callable[[Batch], Copy], ahead: int) -> None:
        self._begin, self._ahead = begin, ahead
        self._under_way: deque[tuple[Copy, Batch]] = deque()  # the oldest first; a batch keeps its host memory

    def run(self, feed: Feed) -> Iterator[Any]:
        """Yield the batches in order.

        An error of the host is raised after the batches before it.
        """
        ready: deque[Copy] = deque()
        failure: Exception | None = None
        ended = False
        try:
            while True:
                while not ended and len(ready) < self._ahead and (not ready or feed.at_once()):
                    try:
                        copy = self._next(feed)
                    except Exception as error:  # noqa: BLE001  raised below, after the batches before it
                        failure, copy = error, None
                    if copy is None:
                        ended = True
                    else:
                        ready.append(copy)
                if not ready:
                    break
                yield ready.popleft().hand_over()
            if failure is not None:
                raise failure
        finally:
            self._let_go(0)
            del failure  # it keeps this frame

    def _next(self, feed: Feed) -> Copy | None:
        self._let_go(self._ahead)
        batch = feed.get()
        if batch is None:
            return None
        copy = self._begin(batch)
        self._under_way.append((copy, batch))
        return copy

    def _let_go(self, most: int) -> None:
        """Give back the host memory of finished copies; wait for the oldest until ``most`` are under way."""
        while self._under_way and (len(self._under_way) > most or self._under_way[0][0].done()):
            self._under_way[0][0].wait()
            self._under_way.popleft()
