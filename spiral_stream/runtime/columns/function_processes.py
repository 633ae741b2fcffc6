"""Functions with ``workers``: processes that run them, so that Python that holds the GIL uses several cores.

One pool of fresh interpreters belongs to a stream. A process is started when all others are busy, up to the number that
the plan asks for. A call sends its samples as an Arrow stream through a pipe, and waits for the answer: at most one call
per process is under way, so memory is bounded. The functions themselves travel once, by name.

A process that ends by itself is an error that says how it ended. Processes end with the stream, and with the process that
started them. Processes that may have no children (workers of a DataLoader) run the functions themselves.
"""

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.spawn import get_preparation_data, prepare
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.errors import SourceError, StreamError, anew
from spiral_stream.threads import (
    CLOSE_TIMEOUT_S,
    Stopped,
    Stopwatch,
    doing,
    exit_code,
    starting_processes,
    stop_requested,
    take_interrupts,
)
from spiral_stream.transforms.python import INDEX, Function

_KEYS: Final = "\0keys"  # no column begins with NUL
_VALUES: Final = "values"
_READY, _FAILED = "ready", "failed"
_POLL_S: Final = 0.2
_BRIEF_S: Final = 2.0  # how long a process whose pipe is closed may take to end
_MAIN: Final = b"__main__"  # in a pickled name: the function is of the script that runs
_PROGRAM: Final = (
    "import sys; from multiprocessing.connection import Connection; "
    "from spiral_stream.runtime.columns.function_processes import serve; serve(Connection(int(sys.argv[1])))"
)
_GUARD: Final = (
    "A function of the script itself is found by importing the script again, which needs "
    '`if __name__ == "__main__":` around what it does; or define the function in a module'
)


def may_start() -> bool:
    """Return whether this process may have children: a DataLoader's worker may not."""
    return not multiprocessing.current_process().daemon


@final
class _Process:
    """One process, and this side of its pipe."""

    def __init__(self, functions: bytes) -> None:
        self.pipe, theirs = multiprocessing.Pipe()
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)  # noqa: PTH109
        with starting_processes():
            self.process = subprocess.Popen(  # noqa: S603  ourselves
                [sys.executable, "-P", "-c", _PROGRAM, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": path},
                pass_fds=[theirs.fileno()],
            )
        theirs.close()
        main = None
        if _MAIN in functions:
            main = {name: value for name, value in get_preparation_data("main").items() if name != "authkey"}
        self.pipe.send((main, functions))
        self.ready = False

    def need_ready(self) -> None:
        """Wait until it has the functions.

        Raises:
            EOFError: it ended.
            StreamError: it cannot find them.
        """
        if not self.ready:
            self._await()
            kind, what = self.pipe.recv()
            if kind == _FAILED:
                raise StreamError(str(what))
            self.ready = True

    def _await(self) -> None:
        """Wait for an answer; a thread that was told to stop waits no longer than a process may take to end."""
        waited: Stopwatch | None = None
        while not self.pipe.poll(_POLL_S):
            if waited is None and stop_requested():
                waited = Stopwatch(_POLL_S)
            if waited is not None and waited.seconds() >= _BRIEF_S:
                raise Stopped

    def call(self, at: int, table: pa.Table) -> Any:
        """Return what a function gives for some samples, or the error that it raises."""
        self.pipe.send(at)
        self.pipe.send_bytes(_packed(table))
        self._await()
        answer = self.pipe.recv_bytes()
        if answer[:1] == b"E":
            return pickle.loads(answer[1:])  # noqa: S301  from the process that we started
        found = pa.ipc.open_stream(pa.py_buffer(answer)).read_all().column(0).combine_chunks()
        return found if isinstance(found, pa.Array) else found.chunk(0)

    def end(self, within_s: float = _BRIEF_S) -> int:
        """End it; returns its exit code."""
        self.pipe.close()
        return exit_code(self.process, within_s)


@final
class FunctionProcesses:
    """Processes that run the functions of one stream. Thread-safe.

    Args:
        functions: by the number of their map.
        count: the most processes.
    """

    def __init__(self, functions: Mapping[int, Function], count: int) -> None:
        self._functions, self._count = dict(functions), count
        self._pid = os.getpid()
        self._change = threading.Condition()
        self._all: list[_Process] = []
        self._idle: list[_Process] = []
        self._closed = False

    def run(self, at: int, table: pa.Table, keys: NDArray[np.uint64]) -> pa.Array:
        """Call a function; arguments and errors as for `Function.run`.

        Raises:
            DataError: as for `Function.run`.
            StreamError: the process ended, or the stream was closed.
        """
        function = self._functions[at]
        names = dict.fromkeys((*function.columns, *([INDEX] if function.with_index else [])))
        given = table.select(list(names)).append_column(_KEYS, pa.array(keys))
        with doing("waiting for a process"):
            process = self._taken()
        try:
            process.need_ready()
            found = process.call(at, given)
        except (EOFError, OSError, pa.ArrowInvalid) as error:
            raise self._ended(process, function, len(table)) from error
        except BaseException:
            self._drop(process)
            raise
        with self._change:
            self._idle.append(process)
            self._change.notify()
        if isinstance(found, SourceError):
            raise anew(found)
        return found

    def _taken(self) -> _Process:
        """Wait for a process that has nothing to do; start one if there may be more."""
        with self._change:
            while True:
                if self._closed:
                    raise _closed()
                if self._idle:
                    return self._idle.pop()
                if len(self._all) < self._count:
                    self._all.append(_Process(pickle.dumps(self._functions)))
                    return self._all[-1]
                if stop_requested():
                    raise Stopped
                self._change.wait(_POLL_S)

    def _drop(self, process: _Process, within_s: float = _BRIEF_S) -> int:
        with self._change:
            if process in self._all:
                self._all.remove(process)
            self._change.notify()  # whoever waits may start another
        return process.end(within_s)

    def _ended(self, process: _Process, function: Function, rows: int) -> StreamError:
        was_ready = process.ready
        code = self._drop(process, CLOSE_TIMEOUT_S)  # it ends by itself, and a busy machine takes its time
        if self._closed:
            return _closed()
        if not was_ready:
            return StreamError(
                f"map ({function.name}): a process for workers={self._count} ended before it was ready, with exit code {code}; "
                f"its output says why. {_GUARD}"
            )
        how = f"exit code {code}" if code >= 0 else f"signal {-code} ({_signal(-code)})"
        return StreamError(
            f"map ({function.name}): the process that ran it on {rows:,} samples ended with {how}: it was killed, perhaps for "
            "want of memory, or the function ended it. Give fewer workers=, or mend the function"
        )

    def close(self) -> None:
        """End the processes; calls under way fail."""
        if self._pid != os.getpid():
            return
        with self._change:
            self._closed = True
            processes, self._all, self._idle = self._all, [], []
            self._change.notify_all()
        for process in processes:
            process.process.kill()  # a call under way has nobody who waits for it; SIGTERM may be ignored, by inheritance
        for process in processes:
            process.end()


def _closed() -> StreamError:
    return StreamError("the stream is closed, and the processes of its functions with it. Make a new one from its plan")


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


def _packed(table: pa.Table) -> Any:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return memoryview(sink.getvalue())


def serve(pipe: "Connection[Any, Any]") -> None:
    """In a process of the pool: run functions until the pipe ends."""
    take_interrupts(signal.SIG_IGN)  # Ctrl-C reaches all processes; this one ends with its pipe
    pa.set_cpu_count(1)
    try:
        main, data = pipe.recv()
        if main is not None:
            prepare(main)  # imports the script, as `multiprocessing` does
        functions: dict[int, Function] = pickle.loads(data)  # noqa: S301  from the process that started us
    except EOFError:
        return
    except Exception as error:  # noqa: BLE001  whatever the import of the user's module raises
        msg = (
            f"map: a process for workers= cannot find the functions ({type(error).__name__}: {error}). Define them at the top "
            "level of a module that can be imported, not in a notebook or at a prompt"
        )
        with suppress(OSError):  # nobody asks any more
            pipe.send((_FAILED, msg))
        return
    try:
        pipe.send((_READY, None))
        while True:
            at = pipe.recv()
            pipe.send_bytes(_answered(functions[at], pipe.recv_bytes()))
    except (EOFError, OSError):
        return  # the stream is closed


def _answered(function: Function, data: bytes) -> Any:
    table = pa.ipc.open_stream(pa.py_buffer(data)).read_all()
    keys = table.column(_KEYS).to_numpy()
    try:
        values = function.run(table, keys)
    except SourceError as error:
        return b"E" + _pickled(error)
    return _packed(pa.table([values], schema=pa.schema([pa.field(_VALUES, values.type)])))


def _pickled(error: SourceError) -> bytes:
    """The error alone: what caused it may be of a class that only this process has."""
    out = type(error)(str(error), row=error.row)
    return pickle.dumps(out)
