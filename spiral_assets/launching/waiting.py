"""How long somebody has waited for others. A machine that stood still, or slept, did not wait meanwhile."""

from time import monotonic
from typing import Final, final

_PAUSE_S: Final = 60.0  # between two looks, what counts at the most; one answer of a system of jobs may take as long


@final
class Waited:
    """Counts seconds between looks, of each pause at most a minute."""

    def __init__(self) -> None:
        self._counted_s, self._looked = 0.0, monotonic()

    def seconds(self) -> float:
        """Look, and return what was counted so far."""
        now = monotonic()
        self._counted_s += min(now - self._looked, _PAUSE_S)
        self._looked = now
        return self._counted_s

    def is_due(self, every_s: float) -> bool:
        """Whether so much was counted; if so, it counts from 0 again.

        Args:
            every_s: seconds.
        """
        due = self.seconds() >= every_s
        if due:
            self._counted_s = 0.0
        return due
