"""Where pieces are made: threads of this process, processes of this machine, tasks of a Ray cluster.

The unit of work is the same everywhere: a function that makes the pieces of one chunk of shards and writes them to a
draft that its caller holds. So the pieces are the same bits from each, and only the caller commits.
"""

import multiprocessing
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from types import TracebackType
from typing import Any, Self, final

from spiral_stream.errors import PlanError
from spiral_stream.extras import need
from spiral_stream.threads import Workers, thread_share

EXECUTORS = ("threads", "processes", "ray")


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
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(self.width, mp_context=context, initializer=_end_with_parent)

    def submit(self, work: Callable[..., Any], *args: Any) -> "Future[Any]":
        return self._pool.submit(work, *args)

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


def _end_with_parent() -> None:
    """End this process when the one that started it is killed: it would wait for work for ever."""
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
        workers: tasks at a time; by default the cluster's processors.

    Raises:
        MissingExtraError: Ray is not installed.
    """

    def __init__(self, workers: int | None = None) -> None:
        need("ray", "executor 'ray'", "use executor='processes'")
        import ray

        self._ray = ray
        self._started = not ray.is_initialized()
        if self._started:
            ray.init(address=os.environ.get("RAY_ADDRESS"), log_to_driver=False, include_dashboard=False)
        self.width = workers or max(1, int(ray.cluster_resources().get("CPU", 1)))

    def submit(self, work: Callable[..., Any], *args: Any) -> "Future[Any]":
        found: Future[Any] = self._ray.remote(work).remote(*args).future()
        return found

    def close(self) -> None:
        if self._started:
            self._ray.shutdown()


def executor(name: str, workers: int | None = None) -> Builders:
    """Return the builders of this name.

    Args:
        name: ``threads``, ``processes`` or ``ray``.
        workers: how many work at a time; None leaves it to them.

    Raises:
        PlanError: there is no such executor, or the number is not positive.
        MissingExtraError: it is not installed.
    """
    if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 1):
        msg = f"build: workers is {workers!r}. Give a number of at least 1"
        raise PlanError(msg)
    made: dict[str, Callable[[int | None], Builders]] = {"threads": Threads, "processes": Processes, "ray": RayTasks}
    if name not in made:
        msg = f"build: executor {name!r} is unknown. Give one of {', '.join(EXECUTORS)}"
        raise PlanError(msg)
    return made[name](workers)
