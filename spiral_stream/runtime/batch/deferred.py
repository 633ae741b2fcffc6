"""Columns of a batch that the stream's threads compute, a few samples at a time: users' functions, and reads on request.

The feeder goes on with the next batch meanwhile. The piece that is done last fills the fields.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, Final, TypeVar, final

import numpy as np

from spiral_stream.planner.columns.lineage import Key, Lineage, Made
from spiral_stream.planner.stages import Stages
from spiral_stream.runtime.columns.error_sample import blaming
from spiral_stream.runtime.columns.samples import SampleReader, Samples, calls_function
from spiral_stream.threads import Stopped, settle

TASK_SAMPLES: Final = 64  # one call of a function: what it costs to begin one is shared by as many

T = TypeVar("T")


def calls_of(stages: Stages, lineage: Lineage, keys: Sequence[Key]) -> bool:
    """Whether a user's function has to be called for some columns."""
    made = [key for key in lineage.rests_on(keys) if isinstance(key, Made) and key not in lineage.cached]
    return any(calls_function(stages.maps[key.at]) for key in made)


@final
class Deferred:
    """Some columns of one batch, in the making.

    Args:
        reader: computes columns.
        stages: of the stream.
        epoch: the epoch.
        samples: of the batch; they get the columns.
        keys: the columns.
        fill: called once they are there, by the thread that made the last of them.
        piece: how many samples at a time.
        skippable: whether ``on_error="skip"`` would let the plan go on without a sample that fails.
    """

    def __init__(
        self,
        reader: SampleReader,
        stages: Stages,
        epoch: int,
        samples: Samples,
        keys: Sequence[Key],
        fill: Callable[[], None],
        task_samples: int = TASK_SAMPLES,
        *,
        skippable: bool,
    ) -> None:
        self._reader, self._stages, self._epoch = reader, stages, epoch
        self._samples, self._keys, self._fill, self._skippable = samples, keys, fill, skippable
        self._begins = range(0, len(samples), task_samples)
        self._done: dict[int, Samples] = {}
        self._lock = threading.Lock()

    def start(self, pool: Executor) -> list[Future[None]]:
        """Start the pieces."""
        return [pool.submit(self._part, begin) for begin in self._begins]

    def _part(self, begin: int) -> None:
        samples = self._samples.take(np.arange(begin, min(begin + self._begins.step, len(self._samples))))
        with blaming(self._stages, samples, skippable=self._skippable):
            self._reader.need(self._epoch, samples, self._keys)
        with self._lock:
            self._done[begin] = samples
            last = len(self._done) == len(self._begins)
        if last:
            whole = Samples.concat([self._done.pop(begin) for begin in self._begins])
            self._samples.columns.update(whole.columns)
            self._fill()


@final
class Here(Executor):
    """Runs what it is given at once, on the thread that gives it."""

    def submit(self, work: Callable[..., T], /, *args: Any, **options: Any) -> "Future[T]":
        future: Future[T] = Future()
        if not settle(future, partial(work, *args, **options)):
            raise Stopped
        return future
