"""How many batches are built ahead: the queue between the feeder and the consumer, bounded in batches and bytes.

The number is the plan's ``prefetch`` (`plan.nodes.Deliver`), within ``budget_bytes`` (`runtime.read_ahead`). On CUDA,
`adapters.torch` keeps as many again on their way to the device.

Space is reserved before a batch is begun, so a slow consumer never makes memory grow. The size of a batch is known once it
is begun; until then the size of the largest batch so far is reserved. Waiting is timed here and nowhere else. Every wait
ends when the other side closes or fails, so nothing hangs.

A consumer that builds batches itself (`runtime.run.pipeline`) lets the producer rest: it goes on when the consumer waits for
an item, or has built none for a while.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar, final

from spiral_stream.errors import StreamError, without_values

T = TypeVar("T")

_REST_S: Final = 0.005  # how soon a producer that rests looks whether the consumer still builds its items itself
_LONGEST_REST_S: Final = 0.02  # and how late, once it has looked some times

CLOSED: Final = "the stream was closed while it was read. Make a new one from its plan and load the last state_dict()"


@final
class BoundedQueue(Generic[T]):
    """First in, first out: at most ``depth`` items and ``budget_bytes`` bytes; one item always fits."""

    def __init__(self, depth: int, budget_bytes: int) -> None:
        self.depth = depth
        self.budget_bytes = budget_bytes
        self.put_wait_s = 0.0
        self.get_wait_s = 0.0
        self.peak_bytes = 0
        self._items: deque[tuple[T, int]] = deque()
        self._reserved = 0
        self._bytes = 0
        self._ended = False
        self._closed = False
        self._failure: BaseException | None = None
        self._resting, self._rests = False, False  # whether the producer is to rest, and whether it does
        self._wanted = False  # an item, while it rests
        self._built = 0  # items that the consumer built itself
        self._changed = threading.Condition()

    def reserve(self, nbytes: int) -> bool:
        """Wait until there is room for one item. Return False if the queue was closed meanwhile."""
        with self._changed:
            while not self._closed:
                if self._reserved and self._full(nbytes):
                    begun = time.perf_counter()
                    self._changed.wait()
                    self.put_wait_s += time.perf_counter() - begun
                elif not self._resting or self._rest():
                    break
            if self._closed:
                return False
            self._reserved += 1
            self._bytes += nbytes
            self.peak_bytes = max(self.peak_bytes, self._bytes)
            return True

    def _full(self, nbytes: int) -> bool:
        return self._reserved >= self.depth or self._bytes + nbytes > self.budget_bytes

    def _rest(self) -> bool:
        """Wait until the consumer wants an item, or has built none itself for a while. Return whether it wants one."""
        rest_s, self._rests, self._wanted = _REST_S, True, False
        built = self._built
        while self._resting and not self._wanted and not self._closed:
            if not self._changed.wait(rest_s):  # nobody said anything
                self._resting, built = built != self._built, self._built
                rest_s = min(2 * rest_s, _LONGEST_REST_S)
        self._rests = False
        return self._wanted

    def let_rest(self, *, built: bool) -> None:
        """For the consumer: it builds items itself for now.

        Args:
            built: whether it has built one.
        """
        with self._changed:
            self._resting = True
            self._built += built

    def put(self, item: T, nbytes: int, reserved: int | None = None) -> bool:
        """Hand over an item. Return False if the queue was closed meanwhile: the item is still the caller's.

        Args:
            item: the item.
            nbytes: its bytes.
            reserved: the bytes that were reserved for it; None means ``nbytes``.
        """
        with self._changed:
            if self._closed:
                return False
            self._items.append((item, nbytes))
            self._bytes += nbytes - (nbytes if reserved is None else reserved)
            self.peak_bytes = max(self.peak_bytes, self._bytes)
            self._changed.notify_all()
            return True

    def get(self, tell: Callable[[float], None] | None = None, after_s: float = 0.0) -> T | None:
        """Return the next item; None after the last.

        Args:
            tell: called with the seconds waited, after ``after_s`` of them and then at each doubling.
            after_s: seconds until ``tell`` is called first.

        Raises:
            StreamError: the queue was closed.
            BaseException: the producer's error, after the items before it.
        """
        begun = time.perf_counter()
        with self._changed:
            while not self._has_news():
                if self._rests:
                    self._wanted = True
                    self._changed.notify_all()
                if not self._changed.wait(after_s if tell else None) and tell:
                    tell(time.perf_counter() - begun)
                    after_s *= 2
            self.get_wait_s += time.perf_counter() - begun
            if self._closed:
                raise StreamError(CLOSED)
            if self._items:
                item, nbytes = self._items.popleft()
                self._reserved -= 1
                self._bytes -= nbytes
                self._changed.notify_all()
                return item
            if self._failure is not None:
                raise without_values(self._failure)  # of its last raise
            return None

    def _has_news(self) -> bool:
        return bool(self._items or self._ended or self._closed or self._failure is not None)

    @property
    def silent(self) -> bool:
        """Whether a consumer that asks for an item would wait."""
        return not self._has_news()

    def at_once(self, usable: Callable[[T], bool]) -> bool:
        """Return whether `get` returns at once, and what it returns is usable."""
        with self._changed:
            if self._items and not self._closed:
                return usable(self._items[0][0])
            return self._ended or self._closed or self._failure is not None

    def count(self, usable: Callable[[T], bool]) -> int:
        """Return how many of the items are usable."""
        with self._changed:
            return sum(usable(item) for item, _ in self._items)

    def __len__(self) -> int:
        return len(self._items)

    @property
    def closed(self) -> bool:
        """Whether the consumer closed the queue."""
        return self._closed

    def end(self) -> None:
        """For the producer: say that no more items will come."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """For the producer: let the consumer get this error, after the items before it. Nobody gets it after `close`."""
        with self._changed:
            self._failure = None if self._closed else without_values(error)
            self._changed.notify_all()

    def close(self) -> list[T]:
        """For the consumer: stop, and wake everybody who waits. Return the items that were not taken."""
        with self._changed:
            self._closed = True
            self._failure = None
            left = [item for item, _ in self._items]
            self._items.clear()
            self._changed.notify_all()
            return left
