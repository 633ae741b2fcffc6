"""What a job says: lines of Dagster Pipes in a file that both see, each reported once, however often a step attaches.

    messages.jsonl   written by the job
    output.log       what it prints, where it runs on this machine
    *.position       bytes that were reported

One step at a time reports, the holder of a lock. It stores the position before it reports a line, so a step that is killed in
between leaves one line unreported, and none twice; the line is still in the file. Results (metadata, checks) are not reported
line by line: each step that follows a job reads them all, and returns them when the job has ended.
"""

import fcntl
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, Final, cast, final

import dagster as dg

from spiral_assets.launching.waiting import Waited

MESSAGES: Final = "messages.jsonl"
OUTPUT: Final = "output.log"
REPORTING: Final = "reporting.lock"  # held by the step that follows a job and reports
TAKE_S: Final = 1.0
OBSERVED: Final = "spiral/observed"  # key of a custom message whose value is metadata of an observation
_LOGGED: Final = {"log", "log_external_stream"}
_RESULTS: Final = {"opened", "closed", "report_asset_materialization", "report_asset_check", "report_custom_message"}


@final
class JobMessages(dg.PipesMessageReader):
    """Reads what a job says, when it is asked to: no thread, so nothing is reported after the step has ended.

    Args:
        folder: of the job.
        context: of the step.
    """

    def __init__(self, folder: Path, context: dg.AssetExecutionContext) -> None:
        self._folder, self._context = folder, context
        self._handler: Any = None
        self._stack = ExitStack()
        self._results_at = 0
        self._lock: IO[str] | None = None
        self._logs = _Reported(folder / MESSAGES)
        self._output = _Reported(folder / OUTPUT)

    @contextmanager
    def read_messages(self, handler: Any) -> Iterator[dict[str, str]]:
        """Yield where the job writes. `take` gives what it wrote to the handler."""
        self._handler = handler
        with self._stack:
            yield {"path": str(self._folder / MESSAGES)}

    def no_messages_debug_text(self) -> str:
        """Say where messages are looked for."""
        return (
            f"Looked for messages in {self._folder / MESSAGES}. The job must see this folder under the same path, and open "
            "dagster_pipes.open_dagster_pipes()."
        )

    def take(self, within_s: float = TAKE_S) -> None:
        """Report what the job said since, and read its results.

        Args:
            within_s: seconds after which the rest is left to the next time: a job may say more than Dagster's storage takes.
        """
        if self._reports():
            self._logs.take(self._log, within_s, lines=True)
            self._output.take(_print, within_s, lines=False)
        path = self._folder / MESSAGES
        if not path.exists():
            return
        with path.open("rb") as file:
            file.seek(self._results_at)
            for line in file:
                if not line.endswith(b"\n"):
                    break  # it is being written
                self._results_at += len(line)
                message = _message(line)
                if message is not None and message["method"] in _RESULTS and not _observed(message):
                    self._handler.handle_message(message)

    def _log(self, line: bytes) -> None:
        message = _message(line)
        if message is None:
            return
        said = message["params"] or {}
        if message["method"] == "log":
            self._context.log.log(said.get("level", "info").upper(), said["message"])
        elif message["method"] == "log_external_stream":
            _print(said["text"].encode(), sys.stdout if said["stream"] == "stdout" else sys.stderr)
        elif metadata := _observed(message):
            self._context.log_event(dg.AssetObservation(self._context.asset_key, metadata=metadata))

    def _reports(self) -> bool:
        """Whether this step is the one that reports; the next one does as soon as this one has ended."""
        if self._lock is not None:
            return True
        file = (self._folder / REPORTING).open("a")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return False
        self._lock = self._stack.enter_context(file)
        return True


@final
class _Reported:
    """A file, and how much of it was reported."""

    def __init__(self, path: Path) -> None:
        self._path, self._mark = path, path.with_suffix(".position")

    def take(self, report: Callable[[bytes], None], within_s: float, *, lines: bool) -> None:
        """Report what is new, line by line or in large parts, until there is no more or the time is over."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            at = int(self._mark.read_text() or 0) if self._mark.exists() else 0
            file.seek(at)
            waited = Waited()
            for part in file if lines else iter(lambda: file.read(1 << 20), b""):
                if lines and not part.endswith(b"\n"):
                    break
                at += len(part)
                self._store(at)
                report(part)
                if waited.seconds() > within_s:
                    break

    def _store(self, at: int) -> None:
        draft = self._mark.with_name(f".{self._mark.name}.{os.getpid()}")
        draft.write_text(str(at))
        draft.replace(self._mark)


def _message(line: bytes) -> dict[str, Any] | None:
    """Return a message; None for half of one, which a killed job left."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return cast("dict[str, Any]", found) if isinstance(found, dict) and "method" in found else None


def _observed(message: dict[str, Any]) -> dict[str, Any] | None:
    payload = (message["params"] or {}).get("payload") if message["method"] == "report_custom_message" else None
    return cast("dict[str, Any]", payload[OBSERVED]) if isinstance(payload, dict) and OBSERVED in payload else None


def _print(text: bytes, to: IO[str] | None = None) -> None:
    (to or sys.stdout).write(text.decode(errors="replace"))
