"""Call users' functions: a few samples at a time, on threads, or in processes of the stream.

A call gets at most 256 samples, or as many as the function says, however many threads there are, so that a function sees the
same calls on any machine. The calls for one window of samples run side by side; a batch's calls run side by side with those of
other batches (`runtime.batch.builder`). Functions with ``workers`` run in `FunctionProcesses`, one pool for the whole stream.

A user's assembler is created and called here, too. A function is named in every error that it raises.
"""

import inspect
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.dialects.offsets import unsliced_table
from spiral_stream.errors import DataError, PlanError, renumbered
from spiral_stream.plan.functions.cached_functions import function_of
from spiral_stream.plan.functions.context import Context
from spiral_stream.plan.nodes import Sampled
from spiral_stream.plan.verbs.maps import SampleAssembly
from spiral_stream.runtime.columns.function_processes import FunctionProcesses, may_start
from spiral_stream.sources.arrow.table import no_rows
from spiral_stream.transforms.python import Function, is_of_the_row

CALL_ROWS: Final = 256  # most samples of one call, where the function does not say


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
        most = function.call_rows or CALL_ROWS
        if len(table) <= most:
            return self._sparing(at, function, table, keys, 0, reasons)
        begins = range(0, len(table), most)

        def part(begin: int) -> pa.Array:
            with renumbered(range(begin, len(table))):
                some, part_keys = table.slice(begin, most), keys[begin : begin + most]
                return self._sparing(at, function, some, part_keys, begin, reasons)

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


def called(function: Function) -> str:
    """Return a user's function in words, for messages to those who wait for it."""
    module = getattr(function.function, "__module__", None)
    return f"a user's function, {module}:{function.name}"


def assembler(step: SampleAssembly, context: Context) -> Any:
    """Create the assembler of a chapter.

    Raises:
        DataError: the user's factory fails, or returns something without ``push`` and ``finish``.
        PlanError: it asks the context for what belongs to a process.
    """
    name = step.function.name
    try:
        made = step.function.function(context)
    except PlanError:
        raise
    except Exception as error:
        msg = f"assemble ({name}): {type(error).__name__}: {error}; it is called with a context (epoch, lane, chapter)"
        raise DataError(msg) from error
    if not (callable(getattr(made, "push", None)) and callable(getattr(made, "finish", None))):
        msg = f"assemble ({name}): gave a {type(made).__name__}. Give it push(table) and finish(), which return a table or None"
        raise DataError(msg)
    return made


def pushed(step: SampleAssembly, made: Any, samples: pa.Table, refused: dict[int, str] | None = None) -> pa.Table:
    """Return what an assembler makes of some more samples.

    Args:
        step: the map.
        made: the assembler.
        samples: the samples.
        refused: if given, samples in it are not pushed; those that it fails on, one at a time, are added with the reason.
    """
    if step.function.batched:
        return _assembled(step, made.push, samples)
    rows = list(enumerate(samples.to_pylist()))

    def push() -> list[Any]:
        out = []
        for at, row in rows:
            if refused is not None and at in refused:
                continue
            try:
                out += list(made.push(row) or ())
            except Exception as error:
                if refused is None or isinstance(error, PlanError) or not is_of_the_row(error):
                    raise
                refused[at] = f"assemble ({step.function.name}): push failed: {type(error).__name__}: {error}"
        return out

    return _assembled(step, push)


def finished(step: SampleAssembly, made: Any) -> pa.Table:
    """Return what an assembler makes of the samples that it still holds."""
    if "drop_last" in inspect.signature(made.finish).parameters:
        return _assembled(step, lambda: made.finish(drop_last=step.drop_last))
    return no_rows(step.schema()) if step.drop_last else _assembled(step, made.finish)


def _assembled(step: SampleAssembly, call: Callable[..., Any], *given: pa.Table) -> pa.Table:
    """Return the samples that an assembler's method returns, with the plan's columns and types.

    Raises:
        DataError: the method fails, or returns something else.
        PlanError: it asks the context for what belongs to a process.
    """
    name, schema, tables = step.function.name, step.schema(), step.function.batched
    try:
        found = call(*given)
        if found is None:
            return no_rows(schema)
        made = found if tables else pa.Table.from_pylist(list(found), schema)
        return unsliced_table(made.select(schema.names).cast(schema))
    except PlanError:
        raise
    except Exception as error:
        what = f"a table with {', '.join(schema.names)}" if tables else f"dicts with {', '.join(schema.names)}"
        msg = f"assemble ({name}): {type(error).__name__}: {error}; push and finish return {what}"
        raise DataError(msg) from error
