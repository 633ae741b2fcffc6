"""Kill the training process once, in the middle of its run."""

import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

EVERY_S: Final = 0.02
AFTER: Final = 0.6  # share of the run's steps: at least one epoch is done and one is left


class Killer:
    """Watches the ledger of a run and sends SIGKILL to the process that writes it.

    Args:
        ledger: one line per delivered batch; it may not exist yet.
        say: is called with a line that names the killed process.
    """

    def __init__(self, ledger: Path, say: Callable[[str], None] = lambda _: None) -> None:
        self._say = say
        self.killed: dict[str, Any] | None = None  # the last ledger line of the killed process
        self._ledger = ledger
        self._stopped = threading.Event()

    def watch(self) -> None:
        """Wait until the run is past its middle, then kill its process. Return after the kill, or when stopped."""
        while not self._stopped.wait(EVERY_S):
            line = self._last()
            if line is not None and line["step"] > AFTER * line["steps"]:
                os.kill(line["pid"], signal.SIGKILL)
                self.killed = line
                self._say(f"SIGKILL to process {line['pid']} after epoch {line['epoch']}, batch {line['batch']}")
                return

    def stop(self) -> None:
        """Stop waiting."""
        self._stopped.set()

    def _last(self) -> dict[str, Any] | None:
        """Return the last whole line; a kill may leave half a line after it."""
        if not self._ledger.exists():
            return None
        lines = self._ledger.read_bytes().rpartition(b"\n")[0]
        line: dict[str, Any] | None = json.loads(lines.rpartition(b"\n")[2]) if lines else None
        return line
