"""Calling users' functions: a few samples at a time, on threads, or in processes of the stream.

A call gets at most 256 samples, however many threads there are, so that a function sees the same calls on any machine.
The calls for one window of samples run side by side; a batch's calls run side by side with those of other batches
(`runtime.batches`). Functions with ``workers`` run in `FunctionProcesses`, one pool for the whole stream.
"""

from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Final, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.errors import renumbered
from spiral_stream.plan.kept import function_of
from spiral_stream.plan.nodes import Sampled
from spiral_stream.runtime.function_processes import FunctionProcesses, may_start
from spiral_stream.transforms.python import Function

CALL_ROWS: Final = 256  # most samples of one call


@final
class Calling:
    """Calls the functions of a plan's maps. Thread-safe.

    Args:
        maps: the plan's maps.
        processes: whether functions with ``workers`` may start processes.
    """

    def __init__(self, maps: Sequence[Sampled], *, processes: bool) -> None:
        self.pool: Executor | None = None  # runs the calls for one window; None leaves them to the caller's thread
        found = {at: function_of(step) for at, step in enumerate(maps)}
        elsewhere = {at: each for at, each in found.items() if each is not None and each.workers is not None}
        apart = elsewhere if processes and may_start() else {}
        self.workers = max((each.workers or 0 for each in apart.values()), default=0)
        self._processes = FunctionProcesses(apart, self.workers) if apart else None
        self._apart = frozenset(apart)

    def run(
        self, at: int, function: Function, table: pa.Table, keys: NDArray[np.uint64], refused: NDArray[np.bool_]
    ) -> pa.Array:
        """Call the function of a map for the samples that are not refused. The others get null.

        Args:
            at: number of the map.
            function: its function.
            table: S samples.
            keys: shape [S], uint64: random keys of the samples.
            refused: shape [S]: which samples cannot be read.

        Raises:
            DataError: see `Function.run`; ``row`` counts among all S samples.
            StreamError: a process that ran it ended.
        """
        if not refused.any():
            return self._all(at, function, table, keys)
        if refused.all():
            return pa.nulls(len(table), function.kind)
        good = np.flatnonzero(~refused)
        with renumbered(good):
            values = self._all(at, function, table.take(pa.array(good)), keys[good])
        return values.take(pa.array(np.cumsum(~refused) - 1, mask=refused))

    def _all(self, at: int, function: Function, table: pa.Table, keys: NDArray[np.uint64]) -> pa.Array:
        if len(table) <= CALL_ROWS:
            return self._once(at, function, table, keys)
        begins = range(0, len(table), CALL_ROWS)

        def part(begin: int) -> pa.Array:
            with renumbered(range(begin, len(table))):
                return self._once(at, function, table.slice(begin, CALL_ROWS), keys[begin : begin + CALL_ROWS])

        if self.pool is None:
            return pa.concat_arrays([part(begin) for begin in begins])
        calls = [self.pool.submit(part, begin) for begin in begins]
        try:
            return pa.concat_arrays([call.result() for call in calls])
        finally:
            for call in calls:
                call.cancel()

    def _once(self, at: int, function: Function, table: pa.Table, keys: NDArray[np.uint64]) -> pa.Array:
        if self._processes is not None and at in self._apart:
            return self._processes.run(at, table, keys)
        return function.run(table, keys)

    def close(self) -> None:
        """End the processes."""
        if self._processes is not None:
            self._processes.close()
