"""Runs that nobody has closed: the interpreter's exit writes what they logged."""

import atexit
import os
from typing import Final, Protocol, final

from spiral_stream.errors import SpiralError, warn


class Closable(Protocol):
    """A `Recording`."""

    def close(self) -> None:
        """Write what was logged, and how far the run has come."""


@final
class Unwritten:
    """What was logged and may not be written yet, until it is closed. Forked processes have none of it."""

    def __init__(self) -> None:
        self._pid = 0
        self._recordings: dict[Closable, None] = {}

    def add(self, recording: Closable) -> None:
        """Write a recording at exit, unless it is closed before."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._recordings = {}
            atexit.register(self.close)
        self._recordings[recording] = None

    def discard(self, recording: Closable) -> None:
        """Forget a recording, which was closed."""
        self._recordings.pop(recording, None)

    def close(self) -> None:
        """Close all of this process."""
        if self._pid != os.getpid():
            return
        for each in list(self._recordings):
            try:
                each.close()
            except SpiralError as error:
                warn(f"run: what was logged last is not written: {error}")
        self._recordings.clear()


UNWRITTEN: Final = Unwritten()
