"""Threads of this library: how many there are, what each one does, and how it ends.

How many: `ThreadShare` decides, for every pool of threads; who asks `waiting` says how many help at most. A stream puts its
own share in force with `sharing` while it opens files; rooms below ask `thread_share`.

What it does: every thread is a daemon, has a name and an owner, and says what it is doing (`doing`).

How it ends: an owner that closes tells its threads to stop. A thread stops at the end of its present call, where `doing`
raises. The owner waits for that until a deadline. Then it leaves the thread alone, together with everything the thread was
given: that memory stays alive as long as the thread, and the thread's result is dropped.

How long somebody waited: deadlines are kept by a `Stopwatch`, which does not count that the machine stood still.

Owners that are still open when the interpreter exits are closed before daemon threads are killed. A thread that returned
from Lance later would end the process with SIGABRT.
"""

import atexit
import os
import signal
import subprocess
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Executor, Future
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from multiprocessing import resource_tracker
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, Final, TypeVar, final

from spiral_stream.errors import StreamError, warn, without_values

CLOSE_TIMEOUT_S: Final = 5.0  # how long closing waits for threads whose calls do not return
TELL_AFTER_S: Final = 60.0  # of waiting, then a warning says for what
PATIENT_LOOKS: Final = 10  # at least so many within a deadline, however long the machine stands still
POSITION_TIMEOUT_S: Final = 600.0  # how long asking for a stream's place waits for the thread that forms batches
_SHOWN: Final = 3  # threads that a message names
_OWNERS: "Final[weakref.WeakSet[Owner]]" = weakref.WeakSet()  # those to close when the interpreter exits
_HOOKED: Final[set[int]] = set()  # process ids that registered the exit hook
_EXITING: Final[set[int]] = set()  # process ids whose interpreter exits

T = TypeVar("T")


def available_cores() -> int:
    """Cores that this process may use; all of the machine's where the system keeps no such list (macOS)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@final
class Stopwatch:
    """Counts seconds between looks, of each pause at most some: while a machine stands still, nobody has waited for others.

    A paused virtual machine and a laptop that slept go on past every deadline; those who are waited for need their time then.

    Args:
        most_s: of a pause between two looks, what counts. Look more often.
    """

    def __init__(self, most_s: float) -> None:
        self._most_s, self._counted_s, self._looked = most_s, 0.0, monotonic()

    def seconds(self) -> float:
        """Look, and return what was counted so far."""
        now = monotonic()
        self._counted_s += min(now - self._looked, self._most_s)
        self._looked = now
        return self._counted_s


@final
class ThreadShare:
    """How many threads each pool of this process may have.

    Args:
        stated: the number the user gave; None divides the cores that this process may use.
        processes: how many processes read one stream together and divide the cores.
        read_batch_size: rows of payload that a task of a pool reads; None leaves it to the pool's owner.
    """

    def __init__(self, stated: int | None = None, processes: int = 1, read_batch_size: int | None = None) -> None:
        self.stated, self.processes, self.read_batch_size = stated, processes, read_batch_size
        self.in_worker = False  # whether this process is one of several that read, and starts none of its own

    def working(self) -> int:
        """Return the size of a pool whose threads decode, encode or build."""
        return self.stated or max(1, available_cores() // self.processes)

    def waiting(self, most: int) -> int:
        """Return the size of a pool whose threads mostly wait for storage: ``most``, or less where that was asked for."""
        return min(most, self.stated or max(1, most // self.processes))


_SHARE: Final = ContextVar("thread_share", default=ThreadShare())  # noqa: B039  never changed


def thread_share() -> ThreadShare:
    """Return the share in force: that of the stream that calls, else the whole process's."""
    return _SHARE.get()


@contextmanager
def sharing(share: ThreadShare) -> Iterator[None]:
    """Put a share in force for the pools that are made inside the block, by this thread."""
    token = _SHARE.set(share)
    try:
        yield
    finally:
        _SHARE.reset(token)


@contextmanager
def starting_processes(*, multiprocessing: bool = False) -> Iterator[None]:
    """Hold Ctrl-C back while processes start inside the block, from them for good: an interrupted start prints a traceback.

    Processes inherit the mask; one that shall see the signal calls `take_interrupts`. Here the signal takes effect after the
    block, in whichever thread it arrives.

    Args:
        multiprocessing: whether that module starts them. Its tracker of resources, which starts with the first, unblocks the
            signal, and so is started before the block.
    """
    if multiprocessing:
        resource_tracker.ensure_running()
    arrived: list[tuple[Any, ...]] = []
    handler = signal.getsignal(signal.SIGINT)
    held = callable(handler) and threading.current_thread() is threading.main_thread()
    if held:
        signal.signal(signal.SIGINT, lambda *told: arrived.append(told))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if held:
            signal.signal(signal.SIGINT, handler)
        if arrived and callable(handler):
            handler(*arrived[0])


def take_interrupts(handler: Any) -> None:
    """In a process that was started inside `starting_processes`: let SIGINT through.

    Args:
        handler: what it does from now on, as `signal.signal` takes it.
    """
    signal.signal(signal.SIGINT, handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def exit_code(process: "subprocess.Popen[Any]", timeout_s: float) -> int:
    """Wait for a process that ends by itself, kill it if it does not in time, and return its exit code."""
    slice_s = timeout_s / PATIENT_LOOKS
    waited = Stopwatch(slice_s)
    while (rest_s := timeout_s - waited.seconds()) > 0:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(min(rest_s, slice_s))
    process.kill()
    return process.wait()


class Stopped(BaseException):
    """Ends a thread that was told to stop."""


@final
class StreamThread(threading.Thread):
    """A daemon thread that records what it is doing, and whether it was told to stop."""

    def __init__(self, target: Callable[..., None], name: str, args: tuple[Any, ...] = ()) -> None:
        super().__init__(target=target, name=name, args=args, daemon=True)
        self.stop_requested = False
        self.left_alone = False  # its owner waited until the deadline; nobody waits again
        self.calls: list[tuple[str, float]] = []  # what it is doing and since when, outermost call first

    def run(self) -> None:
        """Run the target, until it ends or the thread is told to stop."""
        with suppress(Stopped):
            super().run()

    def activity(self) -> str:
        """Return its name and what it is doing."""
        calls = list(self.calls)
        if not calls:
            return f"{self.name}: between two calls"
        return f"{self.name}: {', '.join(words for words, _ in calls)} (for {monotonic() - calls[-1][1]:.1f} s)"


@final
class doing:  # noqa: N801  read as a word: ``with doing("reading x"):``
    """Record what this thread does while the block runs; end the thread here if it was told to stop. Costs 0.5 us.

    Does nothing in a thread of somebody else.
    """

    __slots__ = ("_thread", "_words")

    def __init__(self, words: str) -> None:
        self._words = words

    def __enter__(self) -> None:
        thread = threading.current_thread()
        self._thread = thread if isinstance(thread, StreamThread) else None
        if self._thread is not None:
            if self._thread.stop_requested:
                raise Stopped
            self._thread.calls.append((self._words, monotonic()))

    def __exit__(self, kind: object, *_: object) -> None:
        if self._thread is not None:
            self._thread.calls.pop()
            if kind is None and self._thread.stop_requested:
                raise Stopped


def stop_requested() -> bool:
    """Return whether the calling thread is one of ours that was told to stop."""
    return getattr(threading.current_thread(), "stop_requested", False)


@final
class WatchedLock:
    """A re-entrant lock that warns whoever waits for long, with what its holder is doing. A forked process holds no lock.

    Args:
        name: what it guards, as the warning names it.
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
            warn(self._waited(waited_s) + "Ctrl-C ends the wait")
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
        doing_what = holder.activity() if isinstance(holder, StreamThread) else getattr(holder, "name", "nobody known")
        return f"{self._name}: has been waited for {waited_s:,.0f} s. It is held by {doing_what}. "


class Owner(ABC):
    """Owns threads and ends them. The interpreter's exit ends those of owners that nobody closed."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._over = False  # closed; or this is a forked process, which has none of the threads
        _OWNERS.add(self)
        if self._pid not in _HOOKED:
            _HOOKED.add(self._pid)
            atexit.register(end_at_exit)

    @property
    def over(self) -> bool:
        """Whether its threads were ended, by its user or by the interpreter's exit."""
        return self._over

    @property
    @abstractmethod
    def threads(self) -> Sequence[StreamThread]:
        """The threads that were started."""

    @abstractmethod
    def stop(self) -> None:
        """Wake the threads that wait for this owner, so that they end. Returns at once; may be called again."""

    def end(self, timeout_s: float) -> list[StreamThread]:
        """Stop the threads and wait for them.

        Args:
            timeout_s: how long to wait, for all of them together.

        Returns:
            The threads that still run then and were not left alone before.
        """
        if self._over:  # touch nothing: the interpreter may be half gone, or a thread of the parent may hold a lock
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
        thread.stop_requested = True
    owner.stop()


def joined(threads: Iterable[StreamThread], timeout_s: float) -> list[StreamThread]:
    """Wait for threads. Those that do not end in time are left alone and returned."""
    slice_s = timeout_s / PATIENT_LOOKS
    waited, here, left = Stopwatch(slice_s), threading.current_thread(), []
    dying = _is_dying()
    for thread in threads:
        if thread is here or thread.left_alone:  # the collector may close an owner in a thread of its own
            continue
        if thread.ident is None:  # an interrupt came before it was started
            continue
        while thread.is_alive() and (rest_s := timeout_s - waited.seconds()) > 0:
            thread.join(min(rest_s, slice_s))
        if thread.is_alive() and (dying or not thread.left_alone):  # somebody else may have waited at the same time
            thread.left_alone = thread.left_alone or not dying
            left.append(thread)
    return left


def named(threads: Sequence[StreamThread]) -> str:
    """Describe what some threads are doing, in one line."""
    shown = "; ".join(thread.activity() for thread in threads[:_SHOWN])
    return shown + (f"; and {len(threads) - _SHOWN} more" if len(threads) > _SHOWN else "")


def warn_left_alone(where: str, threads: Sequence[StreamThread], timeout_s: float) -> None:
    """Warn of threads that did not end within the deadline, if there are any.

    A daemon says nothing while the interpreter exits: it may be killed before the words are out, so `end_at_exit` says them.
    """
    if threads and not _is_dying():
        warn(
            f"{where}: {len(threads)} thread(s) still run {timeout_s:g} s after they were told to stop. {named(threads)}. "
            "Everything else is closed, and the results of these threads are dropped. Look at the call that does not return, "
            "or wait longer with close(timeout_s=...)"
        )


def end_at_exit() -> None:
    """Close the open owners. Runs after other threads have ended and before daemon threads are killed."""
    here = os.getpid()
    _EXITING.add(here)
    owners = [owner for owner in list(_OWNERS) if not owner._over]  # noqa: SLF001  of this room
    mine = [owner for owner in owners if owner._pid == here]  # noqa: SLF001  likewise
    for owner in mine:
        tell(owner)
    left = joined([thread for owner in mine for thread in owner.threads], CLOSE_TIMEOUT_S)
    for owner in owners:
        owner._over = True  # noqa: SLF001  likewise
    warn_left_alone("exit", left, CLOSE_TIMEOUT_S)


def end_daemon_at_exit() -> None:
    """End the calling thread without a word if it is a daemon and the interpreter exits.

    Only daemon threads still run then. Their reader can neither go on nor be told why: an error would print a traceback.
    """
    if _is_dying():
        raise SystemExit  # `threading` prints nothing for it


def _is_dying() -> bool:
    """Whether the interpreter exits, and the calling thread is a daemon, which ends with it."""
    return os.getpid() in _EXITING and threading.current_thread().daemon


_Task = tuple["Future[Any]", Callable[..., Any], tuple[Any, ...], dict[str, Any], list[tuple[str, float]]]


@final
class Workers(Owner, Executor):
    """A pool of threads whose `close` has a deadline. A task inherits the words of the thread that submitted it.

    The interpreter joins the threads of a `ThreadPoolExecutor` without a deadline before it exits; not these.

    Args:
        threads: the most threads to start; see `ThreadShare`.
        name: what the threads' names begin with.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._count, self._name = threads, name
        self._threads: list[StreamThread] = []  # one is started with each of the first tasks
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._lock = threading.RLock()  # the collector may close a pool from inside `submit`
        self._stopped = False
        super().__init__()

    @property
    def threads(self) -> Sequence[StreamThread]:
        """The threads that were started."""
        return tuple(self._threads)

    def submit(self, work: Callable[..., T], /, *args: Any, **options: Any) -> "Future[T]":
        """Let one of the threads do the work. Once the pool is closed, the future returned is cancelled."""
        future: Future[T] = Future()
        here = threading.current_thread()
        words = list(here.calls) if isinstance(here, StreamThread) else []
        with self._lock:
            if self._stopped:
                future.cancel()
                return future
            self._tasks.put((future, work, args, options, words))
            if len(self._threads) < self._count:
                thread = StreamThread(_work, f"{self._name}_{len(self._threads)}", (self._tasks,))
                self._threads.append(thread)
                thread.start()
        return future

    def stop(self) -> None:
        """Cancel the tasks that have not begun, and end each thread after its present task."""
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
        """End the threads, and warn of those that do not end within the deadline."""
        warn_left_alone(where, self.end(timeout_s), timeout_s)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Close the pool; called at the end of ``with``."""
        del wait, cancel_futures
        self.close()

    def __del__(self) -> None:
        for _ in self._threads:  # nobody closed it: each thread ends after its present task
            self._tasks.put(None)


def settle(future: "Future[T]", work: Callable[[], T]) -> bool:
    """Do the work and give a future what comes of it. Return False if the thread was told to stop meanwhile."""
    try:
        future.set_result(work())
    except Stopped:
        future.set_exception(CancelledError())
        return False
    except BaseException as error:  # noqa: BLE001  raised again by `Future.result`
        future.set_exception(without_values(error))
    finally:
        del future, work  # the error keeps this frame
    return True


def _work(tasks: "SimpleQueue[_Task | None]") -> None:
    thread = threading.current_thread()
    assert isinstance(thread, StreamThread)
    while (task := tasks.get()) is not None:
        future, work, args, options, words = task
        if future.set_running_or_notify_cancel():
            thread.calls[:] = words
            settle(future, partial(work, *args, **options))
            thread.calls.clear()
        del task, future, work, args, options, words  # hold no memory while waiting for the next task
