"""Threads of this library: what each one does, how it ends, and what becomes of one that does not.

Every thread is a daemon, has a name and an owner, and knows in words what it is doing. An owner that closes tells its
threads to stop. A thread stops at the end of the call that it is in: `doing` raises there. The owner waits for that
until a deadline and then leaves the thread alone, with all that it was given: its memory stays alive as long as the
thread does, and what it returns is dropped.

Owners that are still open when the interpreter exits are closed before daemon threads are killed. A thread that comes
back from Lance after that would end the process with SIGABRT.
"""

import atexit
import os
import threading
import warnings
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Executor, Future
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, Final, TypeVar, final

from spiral_stream.errors import SpiralWarning, StreamError

CLOSE_TIMEOUT_S: Final = 5.0  # that closing waits for threads whose calls do not return
TELL_AFTER_S: Final = 60.0  # of waiting
PLACE_TIMEOUT_S: Final = 600.0  # that asking for a stream's place waits for the thread that forms batches
_SHOWN: Final = 3  # threads that a message names
_OWNERS: "Final[weakref.WeakSet[Owner]]" = weakref.WeakSet()  # open ones, which the interpreter's exit closes
_HOOKED: Final[set[int]] = set()  # processes that close them at exit

T = TypeVar("T")


def available_cores() -> int:
    """Cores that this process may use; all of the machine's where the system keeps no such list (macOS)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Stopped(BaseException):
    """Ends a thread that was told to stop."""


@final
class OwnThread(threading.Thread):
    """A daemon that knows what it is doing, and that it was told to stop."""

    def __init__(self, target: Callable[..., None], name: str, args: tuple[Any, ...] = ()) -> None:
        super().__init__(target=target, name=name, args=args, daemon=True)
        self.told_to_stop = False
        self.left_alone = False  # its owner waited in vain; nobody waits for it again
        self.calls: list[tuple[str, float]] = []  # what it is doing, the outermost first, and since when

    def run(self) -> None:
        """What it was made for, until it is told to stop."""
        with suppress(Stopped):
            super().run()

    def activity(self) -> str:
        """Its name, and what it is doing."""
        calls = list(self.calls)
        if not calls:
            return f"{self.name}: between two calls"
        return f"{self.name}: {', '.join(words for words, _ in calls)} (for {monotonic() - calls[-1][1]:.1f} s)"


@final
class doing:  # noqa: N801  read as a word: ``with doing("reading x"):``
    """Says what this thread does while the block runs, and ends it there if it was told to stop. Costs 0.5 us.

    Does nothing in a thread that is not ours.
    """

    __slots__ = ("_thread", "_words")

    def __init__(self, words: str) -> None:
        self._words = words

    def __enter__(self) -> None:
        thread = threading.current_thread()
        self._thread = thread if isinstance(thread, OwnThread) else None
        if self._thread is not None:
            if self._thread.told_to_stop:
                raise Stopped
            self._thread.calls.append((self._words, monotonic()))

    def __exit__(self, kind: object, *_: object) -> None:
        if self._thread is not None:
            self._thread.calls.pop()
            if kind is None and self._thread.told_to_stop:
                raise Stopped


@final
class ToldLock:
    """A re-entrant lock. Whoever waits for it long is told what its holder is doing. In a forked process nobody holds it.

    Args:
        name: of what it guards.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock, self._pid = threading.RLock(), os.getpid()
        self._holder: threading.Thread | None = None

    def _acquire(self, timeout_s: float) -> bool:
        if self._pid != os.getpid():
            self._pid = os.getpid()
            if self._holder is not threading.current_thread():  # but a thread of the parent, which does not exist here
                self._lock = threading.RLock()
        return self._lock.acquire(timeout=timeout_s)

    def __enter__(self) -> None:
        waited_s, after_s = 0.0, TELL_AFTER_S
        while not self._acquire(after_s):
            waited_s, after_s = waited_s + after_s, 2 * after_s
            warnings.warn(self._waited(waited_s) + "Ctrl-C ends the wait", SpiralWarning, stacklevel=2)
        self._holder = threading.current_thread()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    @contextmanager
    def within(self, timeout_s: float, way_out: str) -> Iterator[None]:
        """Hold it, or give up at the deadline.

        Raises:
            StreamError: another thread held it all the time; says what that is doing, and the way out.
        """
        if not self._acquire(timeout_s):
            raise StreamError(self._waited(timeout_s) + way_out)
        self._holder = threading.current_thread()
        try:
            yield
        finally:
            self._lock.release()

    def _waited(self, waited_s: float) -> str:
        holder = self._holder
        doing_what = holder.activity() if isinstance(holder, OwnThread) else getattr(holder, "name", "nobody known")
        return f"{self._name}: has been waited for {waited_s:,.0f} s. It is held by {doing_what}. "


class Owner(ABC):
    """Has threads, and ends them; the interpreter's exit does so where nobody did."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._over = False  # closed, or in a forked process, which has none of the threads
        _OWNERS.add(self)
        if self._pid not in _HOOKED:
            _HOOKED.add(self._pid)
            atexit.register(_end_at_exit)

    @property
    def over(self) -> bool:
        """Whether it was ended, by its user or by the interpreter's exit."""
        return self._over

    @property
    @abstractmethod
    def threads(self) -> Sequence[OwnThread]:
        """Those that were started."""

    @abstractmethod
    def stop(self) -> None:
        """Wake the threads that wait for something of the owner's, so that they end. Does not wait; may be called again."""

    def end(self, timeout_s: float) -> list[OwnThread]:
        """Stop the threads and wait for them.

        Args:
            timeout_s: how long, for all of them together.

        Returns:
            those that still run then, and that nobody waited for before.
        """
        if (
            self._over
        ):  # nothing is looked at: the interpreter may be half gone, or a lock held by a thread of the parent
            return []
        if self._pid != os.getpid():
            self._over = True
            return []
        tell(self)
        left = joined(self.threads, timeout_s)
        self._over = True
        return left


def tell(owner: Owner) -> None:
    """Tell an owner's threads to stop."""
    for thread in owner.threads:
        thread.told_to_stop = True
    owner.stop()


def joined(threads: Iterable[OwnThread], timeout_s: float) -> list[OwnThread]:
    """Wait for threads; those that do not end are left alone and returned."""
    deadline, here, left = monotonic() + timeout_s, threading.current_thread(), []
    for thread in threads:
        if thread is here or thread.left_alone:  # the collector may close an owner in a thread of its own
            continue
        thread.join(max(0.0, deadline - monotonic()))
        if thread.is_alive() and not thread.left_alone:  # somebody else may have waited at the same time
            thread.left_alone = True
            left.append(thread)
    return left


def named(threads: Sequence[OwnThread]) -> str:
    """What some threads are doing, in one line."""
    shown = "; ".join(thread.activity() for thread in threads[:_SHOWN])
    return shown + (f"; and {len(threads) - _SHOWN} more" if len(threads) > _SHOWN else "")


def warn_left_alone(where: str, threads: Sequence[OwnThread], timeout_s: float) -> None:
    """Say which threads did not end within the deadline; nothing where all did."""
    if threads:
        warnings.warn(
            f"{where}: {len(threads)} thread(s) still run {timeout_s:g} s after they were told to stop. {named(threads)}. "
            "All is closed, they are waited for no longer, and what they return is dropped. Look at what does not answer, "
            "or wait longer with close(timeout_s=...)",
            SpiralWarning,
            stacklevel=2,
        )


def _end_at_exit() -> None:
    """Close what is open. Runs before daemon threads are killed, and after the other threads have ended."""
    here = os.getpid()
    owners = [owner for owner in list(_OWNERS) if not owner._over]  # noqa: SLF001  of this room
    mine = [owner for owner in owners if owner._pid == here]  # noqa: SLF001  likewise
    for owner in mine:
        tell(owner)
    left = joined([thread for owner in mine for thread in owner.threads], CLOSE_TIMEOUT_S)
    for owner in owners:
        owner._over = True  # noqa: SLF001  likewise
    warn_left_alone("exit", left, CLOSE_TIMEOUT_S)


_Task = tuple["Future[Any]", Callable[..., Any], tuple[Any, ...], dict[str, Any], list[tuple[str, float]]]


@final
class Workers(Owner, Executor):
    """A pool of our threads. A task is in the words of the thread that submitted it; `close` has a deadline.

    Unlike `ThreadPoolExecutor`, whose threads the interpreter joins without end before it exits.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._count, self._name = threads, name
        self._threads: list[OwnThread] = []  # started with the first tasks
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._lock = threading.RLock()  # the collector may close a pool from inside `submit`
        self._stopped = False
        super().__init__()

    @property
    def threads(self) -> Sequence[OwnThread]:
        """Those that were started."""
        return tuple(self._threads)

    def submit(self, work: Callable[..., T], /, *args: Any, **options: Any) -> "Future[T]":
        """Have work done by one of the threads; once the pool is closed, the future is a cancelled one."""
        future: Future[T] = Future()
        here = threading.current_thread()
        words = list(here.calls) if isinstance(here, OwnThread) else []
        with self._lock:
            if self._stopped:
                future.cancel()
                return future
            self._tasks.put((future, work, args, options, words))
            if len(self._threads) < self._count:
                thread = OwnThread(_work, f"{self._name}_{len(self._threads)}", (self._tasks,))
                self._threads.append(thread)
                thread.start()
        return future

    def stop(self) -> None:
        """Cancel what has not begun, and end the threads once they are done with what has."""
        with self._lock:
            self._stopped = True
            while not self._tasks.empty():
                try:
                    task = self._tasks.get_nowait()
                except Empty:  # a thread took it
                    break
                if task is not None:
                    task[0].cancel()
            for _ in self._threads:
                self._tasks.put(None)

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S, where: str = "close") -> None:
        """End the threads; warns of those that do not end within the deadline."""
        warn_left_alone(where, self.end(timeout_s), timeout_s)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """What ``with`` does at its end: `close`."""
        del wait, cancel_futures
        self.close()

    def __del__(self) -> None:
        for _ in self._threads:  # nobody closed it: the threads end once they are done
            self._tasks.put(None)


def _work(tasks: "SimpleQueue[_Task | None]") -> None:
    thread = threading.current_thread()
    assert isinstance(thread, OwnThread)
    while (task := tasks.get()) is not None:
        future, work, args, options, words = task
        if future.set_running_or_notify_cancel():
            thread.calls[:] = words
            try:
                future.set_result(work(*args, **options))
            except Stopped:
                future.set_exception(CancelledError())
            except BaseException as error:  # noqa: BLE001  whoever asks for the result meets it
                future.set_exception(error)
            thread.calls.clear()
        del task, future, work, args, options, words  # nothing is held while there is nothing to do
