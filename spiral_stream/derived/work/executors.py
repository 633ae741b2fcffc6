"""Where pieces are made: threads of this process, processes of this machine, tasks of a Ray cluster.

The unit of work is the same everywhere: a function that makes the pieces of one chunk of shards and writes them to a
draft that its caller holds. So the pieces are the same bits from each, and only the caller commits.
"""

import multiprocessing
import os
import pickle
import signal
import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing.connection import wait as wait_for_processes
from multiprocessing.context import SpawnContext, SpawnProcess
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar, final

from spiral_stream.arguments import check, integer, is_number
from spiral_stream.errors import PlanError, shown, warn
from spiral_stream.extras import need
from spiral_stream.threads import Workers, starting_processes, take_interrupts, thread_share

EXECUTORS: Final = ("threads", "processes", "ray")
_OPEN: Final = 4  # shared values of one process, those used last

T = TypeVar("T")


@final
class Shared(Generic[T]):
    """A value that many pieces of work need: it is made once in each process that does some of them.

    Args:
        value: it is given to threads as it is, and pickled for others.
    """

    def __init__(self, value: T) -> None:
        self._made: tuple[T] | None = (value,)
        self._data = b""

    def __getstate__(self) -> bytes:
        assert self._data or self._made is not None
        self._data = self._data or pickle.dumps(self._made)
        return self._data

    def __setstate__(self, data: bytes) -> None:
        self._made, self._data = None, data  # made later, so that an error is that of the work

    def value(self) -> T:
        """Return the value, or that of this process."""
        if self._made is None:
            self._made = _made(self._data)
        return self._made[0]


@lru_cache(_OPEN)
def _made(data: bytes) -> tuple[Any]:
    made: tuple[Any] = pickle.loads(data)  # noqa: S301  from the process that started this one
    return made


class Builders(ABC):
    """Runs work that makes pieces. Use as a context manager."""

    width: int  # pieces of work that run at a time

    @abstractmethod
    def submit(self, work: Callable[..., Any], *args: Any) -> "Future[Any]":
        """Let somebody do the work."""

    @abstractmethod
    def close(self) -> None:
        """Stop; work that has not begun is dropped."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@final
class Threads(Builders):
    """Threads of this process.

    Args:
        workers: how many; by default the thread share in force.
    """

    def __init__(self, workers: int | None = None) -> None:
        self.width = workers or thread_share().working()
        self._pool = Workers(self.width, "spiral-derive")

    def submit(self, work: Callable[..., Any], *args: Any) -> "Future[Any]":
        return self._pool.submit(work, *args)

    def close(self) -> None:
        self._pool.close(where="build")


@final
class Processes(Builders):
    """New processes of this machine; each opens the sources itself.

    Args:
        workers: how many; by default the thread share in force.
    """

    def __init__(self, workers: int | None = None) -> None:
        self.width = workers or thread_share().working()
        self._started = _Started()
        self._pool = ProcessPoolExecutor(self.width, mp_context=self._started, initializer=_begin)

    def submit(self, work: Callable[..., Any], *args: Any) -> "Future[Any]":
        with starting_processes(multiprocessing=True):  # the pool starts them when they are needed
            return self._pool.submit(work, *args)

    def close(self) -> None:
        self._started.end_if_one_died()
        self._pool.shutdown(wait=True, cancel_futures=True)


@final
class _Started(SpawnContext):
    """Starts the processes of a pool, and kills them where the pool would wait for ever.

    When one of them dies the pool sends SIGTERM to the others and waits. They ignore it if this process does, as it may in a
    background job of a shell: SIGINT is ignored there, and Dagster treats SIGTERM as SIGINT.
    """

    def __init__(self) -> None:
        self._all: list[SpawnProcess] = []

    def Process(self, *args: Any, **options: Any) -> SpawnProcess:  # type: ignore[override]  # noqa: N802  a name of Python
        """Return a process of the pool."""
        self._all.append(SpawnProcess(*args, **options))
        return self._all[-1]

    def end_if_one_died(self) -> None:
        """Kill all of them if one ended: before the pool is told to stop, none does.

        The sentinels say so. An exit code does not: while the pool's own thread waits for the process, it is unknown here.
        """
        started = [each for each in self._all if each.pid is not None]
        if wait_for_processes([each.sentinel for each in started], timeout=0):
            for each in started:
                each.kill()


def _begin() -> None:
    """End this process by Ctrl-C, without a word, and when the one that started it is killed: it would wait for ever."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # it may be ignored, by inheritance
    take_interrupts(lambda *_: os._exit(128 + signal.SIGINT))
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, name="spiral-parent", daemon=True).start()


@final
class RayTasks(Builders):
    """Tasks of a Ray cluster whose nodes see the same folders; a local one is started if none is connected.

    Args:
        workers: tasks at a time; by default as many as the cluster has processors for, or GPUs.
        gpus: of each task, if the cluster has any; a fraction lets tasks share one. None asks for none.

    Raises:
        MissingExtraError: Ray is not installed.

    Warns:
        SpiralWarning: GPUs are asked for, and the cluster has none.
    """

    def __init__(self, workers: int | None = None, gpus: float | None = None) -> None:
        need("ray", "executor 'ray'", "use executor='processes'")
        import ray

        self._ray = ray
        self._started = not ray.is_initialized()
        if self._started:
            with warnings.catch_warnings():
                warnings.filterwarnings(
                    "ignore", "lance is not fork-safe"
                )  # Ray's children become other programs at once
                ray.init(address=os.environ.get("RAY_ADDRESS"), log_to_driver=False, include_dashboard=False)
        there = ray.cluster_resources()
        self._gpus = gpus if gpus is not None and there.get("GPU", 0) >= gpus else None
        if gpus is not None and self._gpus is None:
            warn(
                f"materialize: gpus={gpus:g}, and the Ray cluster has {there.get('GPU', 0):g}, so its processors do the work. "
                "Connect to a cluster with GPUs, or leave gpus out"
            )
        most = there.get("CPU", 1) if self._gpus is None else there["GPU"] / self._gpus
        self.width = workers or max(1, int(most))
        self._tasks: dict[Callable[..., Any], Any] = {}

    def submit(self, work: Callable[..., Any], *args: Any) -> "Future[Any]":
        if work not in self._tasks:  # a new one is sent to every node
            # by default Ray ends a process after each task that has a GPU, and with it the model that was loaded there
            with_gpus = (
                self._ray.remote(num_gpus=self._gpus, max_calls=0) if self._gpus is not None else self._ray.remote
            )
            self._tasks[work] = with_gpus(work)
        found: Future[Any] = Future()
        found.set_running_or_notify_cancel()  # a task that was sent runs
        self._tasks[work].remote(*args).future().add_done_callback(lambda done: _settle(found, done))
        return found

    def close(self) -> None:
        if self._started:
            self._ray.shutdown()


def _settle(found: "Future[Any]", done: "Future[Any]") -> None:
    """Give a task's result or error on, as a thread would."""
    from ray.exceptions import RayTaskError

    error = done.exception()
    if error is None:
        found.set_result(done.result())
    elif isinstance(error, RayTaskError):
        found.set_exception(getattr(error, "cause", None) or error)
    else:  # its process or its node ended
        ended = BrokenExecutor(str(error))
        ended.__cause__ = error
        found.set_exception(ended)


@final
@dataclass(frozen=True, slots=True)
class Executor:
    """Which builders do the work.

    Args:
        name: ``threads``, ``processes`` or ``ray``.
        workers: how many work at a time; None leaves it to them.
        gpus: of each task of Ray, if the cluster has any; None asks for none.

    Raises:
        PlanError: there is no such executor, or a number is not positive.
        MissingExtraError: it is not installed.
    """

    name: str = "threads"
    workers: int | None = None
    gpus: float | None = None

    def __post_init__(self) -> None:
        check(self, "build", " is ", workers=integer(1, None, "a number of at least 1", none=True))
        if self.gpus is not None and (not is_number(self.gpus) or self.gpus <= 0 or self.name != "ray"):
            found = f"gpus={shown(self.gpus)} with executor={self.name!r}"
            msg = f"build: {found}. Give a number above 0 with executor='ray', or None"
            raise PlanError(msg)
        if self.name not in EXECUTORS:
            msg = f"build: executor {self.name!r} is unknown. Give one of {', '.join(EXECUTORS)}"
            raise PlanError(msg)
        if self.name == "ray":
            need("ray", "executor 'ray'", "use executor='processes'")

    def start(self) -> Builders:
        """Start the builders."""
        if self.name == "ray":
            return RayTasks(self.workers, self.gpus)
        return Threads(self.workers) if self.name == "threads" else Processes(self.workers)


@final
class _Lent(Builders):
    """Builders that several builds use one after another; who closes them waits for what it gave them."""

    def __init__(self, builders: Builders) -> None:
        self.width, self._builders = builders.width, builders
        self._given: list[Future[Any]] = []

    def submit(self, work: Callable[..., Any], *args: Any) -> "Future[Any]":
        self._given = [each for each in self._given if not each.done()]
        future = self._builders.submit(work, *args)
        self._given.append(future)
        return future

    def close(self) -> None:
        for each in self._given:
            each.cancel()
        wait(self._given)


_IN_FORCE: Final[ContextVar[Callable[[], Builders]]] = ContextVar("builders", default=Threads)


def builders_in_force() -> Builders:
    """Return the builders that `building_with` chose; threads of this process outside of it."""
    return _IN_FORCE.get()()


def is_explicit() -> bool:
    """Whether somebody asked for what is built now, so that nobody has to be told."""
    return _IN_FORCE.get() is not Threads


@contextmanager
def building_with(executor: Executor) -> Iterator[None]:
    """Let everything that is built inside the block, by this thread, use one executor, which starts at its first use."""
    started: list[Builders] = []

    def lend() -> Builders:
        if not started:
            started.append(executor.start())
        return _Lent(started[0])

    token = _IN_FORCE.set(lend)
    try:
        yield
    finally:
        _IN_FORCE.reset(token)
        for each in started:
            each.close()
