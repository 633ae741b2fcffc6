"""Calling users' functions: a few samples at a time, on threads, or in processes of the stream.

A call gets at most 256 samples, however many threads there are, so that a function sees the same calls on any machine.
The calls for one window of samples run side by side; a batch's calls run side by side with those of other batches
(`runtime.batch.builder`). Functions with ``workers`` run in `FunctionProcesses`, one pool for the whole stream.
"""

from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Final, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.errors import DataError, renumbered
from spiral_stream.plan.functions.cached_functions import function_of
from spiral_stream.plan.nodes import Sampled
from spiral_stream.runtime.columns.function_processes import FunctionProcesses, may_start
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
        self,
        at: int,
        function: Function,
        table: pa.Table,
        keys: NDArray[np.uint64],
        refused: NDArray[np.bool_],
        reasons: dict[int, str] | None = None,
    ) -> pa.Array:
        """Call the function of a map for the samples that are not refused. The others get null.

        Args:
            at: number of the map.
            function: its function.
            table: S samples.
            keys: shape [S], uint64: random keys of the samples.
            refused: shape [S]: which samples cannot be read.
            reasons: if given, samples for which the function fails get null, and the reason is put here, by place.

        Raises:
            DataError: see `Function.run`; ``row`` counts among all S samples.
            StreamError: a process that ran it ended.
        """
        if not refused.any():
            return self._all(at, function, table, keys, reasons)
        if refused.all():
            return pa.nulls(len(table), function.kind)
        good = np.flatnonzero(~refused)
        found: dict[int, str] | None = None if reasons is None else {}
        with renumbered(good):
            values = self._all(at, function, table.take(pa.array(good)), keys[good], found)
        if reasons is not None and found:
            reasons.update({int(good[row]): why for row, why in found.items()})
        return values.take(pa.array(np.cumsum(~refused) - 1, mask=refused))

    def _all(
        self, at: int, function: Function, table: pa.Table, keys: NDArray[np.uint64], reasons: dict[int, str] | None
    ) -> pa.Array:
        if len(table) <= CALL_ROWS:
            return self._sparing(at, function, table, keys, 0, reasons)
        begins = range(0, len(table), CALL_ROWS)

        def part(begin: int) -> pa.Array:
            with renumbered(range(begin, len(table))):
                some, own = table.slice(begin, CALL_ROWS), keys[begin : begin + CALL_ROWS]
                return self._sparing(at, function, some, own, begin, reasons)

        if self.pool is None:
            return pa.concat_arrays([part(begin) for begin in begins])
        calls = [self.pool.submit(part, begin) for begin in begins]
        try:
            return pa.concat_arrays([call.result() for call in calls])
        finally:
            for call in calls:
                call.cancel()

    def _sparing(
        self,
        at: int,
        function: Function,
        table: pa.Table,
        keys: NDArray[np.uint64],
        first: int,
        reasons: dict[int, str] | None,
    ) -> pa.Array:
        """Call a function in runs that leave out the samples for which it fails: 2 k + 1 calls for k of them.

        Args:
            at: number of the map.
            function: its function.
            table: at most `CALL_ROWS` samples.
            keys: their random keys.
            first: the place of the first of them among all samples.
            reasons: where reasons are put; None lets the error pass.
        """
        if reasons is None:
            return self._once(at, function, table, keys)
        todo, out = [(0, len(table))], list[tuple[int, pa.Array]]()
        while todo:
            begin, end = todo.pop()
            try:
                out.append((begin, self._once(at, function, table.slice(begin, end - begin), keys[begin:end])))
            except DataError as error:
                if error.row is None and end - begin > 1:  # the halves will show which row it is
                    middle = (begin + end) // 2
                    todo += [(middle, end), (begin, middle)]
                    continue
                bad = begin if error.row is None else begin + error.row
                reasons[first + bad] = str(error)
                out.append((bad, pa.nulls(1, function.kind)))
                todo += [(a, b) for a, b in ((bad + 1, end), (begin, bad)) if a < b]
        if len(out) == 1:
            return out[0][1]
        return pa.concat_arrays([values for _, values in sorted(out, key=lambda each: each[0])])

    def _once(self, at: int, function: Function, table: pa.Table, keys: NDArray[np.uint64]) -> pa.Array:
        if self._processes is not None and at in self._apart:
            return self._processes.run(at, table, keys)
        return function.run(table, keys)

    def close(self) -> None:
        """End the processes."""
        if self._processes is not None:
            self._processes.close()
