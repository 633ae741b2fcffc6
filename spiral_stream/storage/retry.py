"""Retries: which failures of a store are transient, and how long they are waited for.

Requests that read are repeated here and not by the client: a body that ends early or a connection that breaks inside of one
counts as any other failure, and every repetition is counted. The pause doubles, and is drawn (full jitter), so that many
processes do not come back together.

Whoever waits for long is told so, also where the client repeats requests by itself (`telling`). While this process is
stopped, or its machine stands still, no time passes: the store had no chance to answer.
"""

import random
import re
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from time import monotonic
from typing import Final, TypeVar, final

from spiral_stream.errors import SourceError, is_failure, warn
from spiral_stream.storage.counters import count
from spiral_stream.storage.faults import PLAIN_HTTP, fault
from spiral_stream.storage.uri import parse_uri
from spiral_stream.threads import PATIENT_LOOKS, Stopwatch

FIRST_PAUSE_S: Final = 0.1
MOST_PAUSE_S: Final = 15.0
TELL_AFTER_S: Final = 10.0
_LEAST_TICK_S: Final = 0.01
_TELL_EVERY_S: Final = 60.0
_WARNED: Final[dict[str, float]] = {}  # root -> when
_PASSING: Final = frozenset(("408", "429", "500", "502", "503", "504"))
_STATUS: Final = re.compile(r"status code: (\d{3})")
_ON_THE_WAY: Final = ("HTTP error", "error sending request", "timed out", "Timeout", "body error", "connection")
T = TypeVar("T")


class ShortError(Exception):
    """A body ended early."""


@final
@dataclass(frozen=True, slots=True)
class Patience:
    """How often, and for how long, a request is repeated.

    Args:
        retries: most repetitions.
        timeout_s: from the first request on; then it has failed.
    """

    retries: int = 10
    timeout_s: float = 180.0

    async def tried(self, ask: Callable[[], Awaitable[T]], uri: str, doing: str) -> T:
        """Ask until there is an answer.

        Args:
            ask: sends the request.
            uri: of the object.
            doing: what is asked of the store, such as ``"read"``.

        Raises:
            SourceError: it failed for good, or for too long.
        """
        import asyncio

        failed = 0
        ticks = _Ticks(uri, self.timeout_s)
        try:
            while True:
                try:
                    async with asyncio.timeout(None) as ticks.under_way:
                        return await ask()
                except SourceError:
                    raise
                except BaseException as error:
                    if not is_failure(error):
                        raise
                    error.__traceback__ = (
                        None  # the client drops the error in its next call only, and whatever it leads to
                    )
                    pause_s = random.random() * min(MOST_PAUSE_S, FIRST_PAUSE_S * 2**failed)  # noqa: S311
                    if not passes(error) or failed >= self.retries or pause_s >= ticks.left_s():
                        raise fault(uri, error, doing) from None
                finally:
                    ticks.under_way = None
                failed += 1
                count(retries=1)
                await asyncio.sleep(pause_s)
        finally:
            ticks.end()

    @contextmanager
    def telling(self, uri: str) -> Iterator[Callable[[], None]]:
        """While the client waits without a word: warn when it takes long. Costs a thread, 0.4 ms of CPU.

        Args:
            uri: of the object.

        Yields:
            What to call when the store has answered something, and the wait begins anew.
        """
        look_s = TELL_AFTER_S / PATIENT_LOOKS
        ended, waited = threading.Event(), [Stopwatch(look_s)]

        def watch() -> None:
            while not ended.wait(look_s):
                if waited[0].seconds() >= TELL_AFTER_S:
                    _tell(uri, self.timeout_s)
                    return

        teller = threading.Thread(target=watch, name="spiral-teller", daemon=True)
        teller.start()
        try:
            yield lambda: waited.__setitem__(0, Stopwatch(look_s))
        finally:
            ended.set()
            teller.join()


@final
class _Ticks:
    """The time of a request and of its repetitions, in the running event loop: warns, and ends the try under way.

    Args:
        uri: of the object.
        timeout_s: after which the try under way ends.
    """

    def __init__(self, uri: str, timeout_s: float) -> None:
        import asyncio

        self._uri, self._timeout_s, self._loop = uri, timeout_s, asyncio.get_running_loop()
        self._tick_s = max(_LEAST_TICK_S, min(TELL_AFTER_S, timeout_s) / PATIENT_LOOKS)
        self._waited, self._told = Stopwatch(self._tick_s), False
        self.under_way: asyncio.Timeout | None = None
        self._next = self._loop.call_later(self._tick_s, self._tick)

    def left_s(self) -> float:
        """Return the seconds until the deadline."""
        return self._timeout_s - self._waited.seconds()

    def _tick(self) -> None:
        self._next = self._loop.call_later(self._tick_s, self._tick)
        waited = self._waited.seconds()
        if waited >= self._timeout_s and self.under_way is not None:
            self.under_way.reschedule(self._loop.time())
            self.under_way = None
        if waited >= TELL_AFTER_S and not self._told:
            self._told = True
            _tell(self._uri, self._timeout_s)

    def end(self) -> None:
        self._next.cancel()


def _tell(uri: str, timeout_s: float) -> None:
    """Warn that a store is slow, or away: once a minute for each store."""
    root, now = parse_uri(uri).root, monotonic()
    if now < _WARNED.get(root, -inf) + _TELL_EVERY_S:
        return
    _WARNED[root] = now
    warn(
        f"{root} has not answered a request for {TELL_AFTER_S:g} s. It is asked for up to {timeout_s:g} s "
        "(client_retry_timeout in its profile); Ctrl-C ends the wait"
    )


def passes(error: BaseException) -> bool:
    """Whether the same request may succeed later."""
    if isinstance(error, FileNotFoundError):
        return False
    if isinstance(error, ShortError | TimeoutError):
        return True
    text = str(error)
    status = _STATUS.search(text)
    if status:
        return status[1] in _PASSING
    return PLAIN_HTTP not in text and any(each in text for each in _ON_THE_WAY)
