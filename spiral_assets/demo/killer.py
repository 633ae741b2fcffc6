"""Kills the training process once, in the middle of an epoch."""

import json
import os
import signal
import threading
from pathlib import Path
from typing import Final

EVERY_S: Final = 0.05
PAST: Final = 22  # batches of the epoch that are delivered before: the middle, and past a checkpoint


class Killer:
    """Watches the ledger of a run and sends SIGKILL to the process that writes it."""

    def __init__(self, folder: Path, epoch: int) -> None:
        self.epoch = epoch
        self.killed: int | None = None
        self.after_batch: int | None = None
        self._ledger = folder / "ledger.jsonl"
        self._stopped = threading.Event()

    def watch(self) -> None:
        """Wait for the middle of the epoch, then kill; returns after that or when stopped."""
        while not self._stopped.wait(EVERY_S):
            line = self._last()
            if line is not None and (line["epoch"], line["batch"]) >= (self.epoch, PAST):
                os.kill(line["pid"], signal.SIGKILL)
                last = self._last() or line
                self.killed, self.after_batch = int(line["pid"]), int(last["batch"])
                return

    def stop(self) -> None:
        """Give up waiting."""
        self._stopped.set()

    def _last(self) -> dict[str, int] | None:
        if not self._ledger.exists():
            return None
        whole = self._ledger.read_bytes().rpartition(b"\n")[0]
        line: dict[str, int] | None = json.loads(whole.rpartition(b"\n")[2]) if whole else None
        return line
