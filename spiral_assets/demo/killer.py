"""Kills the training process once, in the middle of its run."""

import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

EVERY_S: Final = 0.02
AFTER: Final = 0.6  # of the run's steps: a resume has epochs behind it, and one before it


class Killer:
    """Watches the ledger of a run and sends SIGKILL to the process that writes it.

    Args:
        ledger: a line a delivered batch; need not be there yet.
        say: told what was done to whom.
    """

    def __init__(self, ledger: Path, say: Callable[[str], None] = lambda _: None) -> None:
        self._say = say
        self.killed: dict[str, Any] | None = None  # the last line that the process wrote
        self._ledger = ledger
        self._stopped = threading.Event()

    def watch(self) -> None:
        """Wait until the run is a little past its middle, then kill; returns after that, or when stopped."""
        while not self._stopped.wait(EVERY_S):
            line = self._last()
            if line is not None and line["step"] > AFTER * line["steps"]:
                os.kill(line["pid"], signal.SIGKILL)
                self.killed = line
                self._say(f"SIGKILL to process {line['pid']} after epoch {line['epoch']}, batch {line['batch']}")
                return

    def stop(self) -> None:
        """Give up waiting."""
        self._stopped.set()

    def _last(self) -> dict[str, Any] | None:
        """The last whole line; a kill may leave half of one behind it."""
        if not self._ledger.exists():
            return None
        whole = self._ledger.read_bytes().rpartition(b"\n")[0]
        line: dict[str, Any] | None = json.loads(whole.rpartition(b"\n")[2]) if whole else None
        return line
