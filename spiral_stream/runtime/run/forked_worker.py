"""Reading in a forked DataLoader worker, through an interpreter of its own.

Lance runs threads that a forked child does not have. Its next call in the child ends in a segmentation fault:
with pylance 14, 0 to 5 of 10 children of a process that had read Lance survived 20 takes. Before CPython 3.14, Linux forks
DataLoader workers by default. A forked worker therefore starts a fresh interpreter once, sends it the stream at the start
of each pass, and receives the batches through a pipe.
"""

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import IO, Any, Final, final

from spiral_stream.errors import SpiralError, StreamError
from spiral_stream.threads import CLOSE_TIMEOUT_S, exit_code, starting_processes, take_interrupts

_BATCH, _END, _ERROR = "batch", "end", "error"
_PROGRAM: Final = "from spiral_stream.runtime.run.forked_worker import serve; serve()"


@final
class SubprocessReader:
    """Starts a fresh interpreter that reads streams for this process. It ends with this process, or with a pass left early."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def batches(self, stream: Any, worker: int, workers: int) -> Iterator[tuple[dict[str, Any], Any]]:
        """Yield every ``workers``-th batch of a stream from the ``worker``-th on.

        Args:
            stream: has ``_worker_batches(worker, workers)``.
            worker: number of the first batch, from where the pass begins.
            workers: how many workers read.

        Returns:
            What ``_worker_batches`` yields: arrays and lists, and where the batch stands.

        Raises:
            SpiralError: what the stream raised in the other interpreter.
            StreamError: the interpreter ended, or the plan holds something that only this process has.
        """
        try:
            request = pickle.dumps((stream, worker, workers))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            msg = (
                f"worker {worker}: the plan holds something that no other process can find ({error}). Define it with `def` at "
                "the top level of a module, or read without workers: num_workers=0"
            )
            raise StreamError(msg) from error
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        ended = False
        try:
            process.stdin.write(request)
            process.stdin.flush()
            while True:
                kind, value = pickle.load(process.stdout)  # noqa: S301  written by our own child
                if kind == _BATCH:
                    yield value
                    continue
                ended = True
                if kind == _ERROR:
                    try:
                        raise value
                    finally:
                        del value  # the error keeps this frame
                return
        except (EOFError, OSError, pickle.UnpicklingError) as error:
            code = exit_code(process, CLOSE_TIMEOUT_S)
            msg = (
                f"worker {worker}: its reading process ended with exit code {code}; its output says why. "
                'Workers started by DataLoader(..., multiprocessing_context="spawn") need no such process'
            )
            raise StreamError(msg) from error
        finally:
            if not ended:
                self.close()

    def _started(self) -> "subprocess.Popen[bytes]":
        if self._process is None:
            path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)  # noqa: PTH109
            with starting_processes():
                self._process = subprocess.Popen(  # noqa: S603  ourselves
                    [sys.executable, "-P", "-c", _PROGRAM],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    env={**os.environ, "PYTHONPATH": path},
                )
        return self._process

    def close(self) -> None:
        """End the interpreter, and wait until it has ended."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()


def serve() -> None:
    """In the fresh interpreter: take streams from stdin and write their batches to stdout, until stdin ends."""
    take_interrupts(signal.SIG_IGN)  # Ctrl-C reaches all processes; this one ends with the worker's pipes
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what anybody prints must not get between the batches
    try:
        while _answer(answers):
            pass
    except BrokenPipeError:
        os._exit(0)  # the worker is gone; what is left in the buffer has no reader


def _answer(answers: IO[bytes]) -> bool:
    """Read one pass of one stream; return False when there are no more."""
    try:
        stream, worker, workers = pickle.load(sys.stdin.buffer)  # noqa: S301  written by our own parent
    except EOFError:
        return False
    except (AttributeError, ImportError) as error:
        msg = (
            f"worker: a fresh interpreter cannot import something that the plan holds ({error}). Put it into a module, "
            'or use DataLoader(..., multiprocessing_context="spawn")'
        )
        _send(answers, _ERROR, StreamError(msg))
        return True
    try:
        with stream:
            for batch in stream._worker_batches(worker, workers):  # noqa: SLF001  the stream in another process
                _send(answers, _BATCH, batch)
    except (SpiralError, BrokenPipeError) as error:
        _send(answers, _ERROR, error)
    except Exception as error:  # noqa: BLE001  crosses a process border, which not every exception survives
        _send(answers, _ERROR, StreamError(f"worker {worker}: {type(error).__name__}: {error}"))
    else:
        _send(answers, _END, None)
    return True


def _send(answers: IO[bytes], kind: str, value: Any) -> None:
    pickle.dump((kind, value), answers, protocol=5)
    answers.flush()
