"""Who is told what becomes of a stream: the interface between a stream and the run that records it.

A stream that no run records tells nobody, and its batches carry no keys. What is told happens in the process of the loop.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from spiral_stream.cursor import Cursor
from spiral_stream.runtime.batch.keys import BatchKey


class Recorder(Protocol):
    """What a run does when its stream delivers, moves, or is saved."""

    def delivered(self, key: BatchKey) -> None:
        """The loop gets a batch: its step of the run is written into the key."""

    def epoch_over(self, *, others: bool, moved: bool = True) -> None:
        """The loop has had all of an epoch.

        Args:
            others: whether other ranks have one step more.
            moved: whether the stream stands in the next epoch already; else `changed` follows.
        """

    def changed(self, why: str) -> None:
        """The stream was moved, edited or bound anew."""

    def resumed(self, said: Mapping[str, Any] | None, why: str) -> None:
        """The stream goes on from a state: a ``resume``, or a ``rebase``.

        Args:
            said: what the state says of the run that saved it, with the place of the state; None if no run recorded that.
            why: which.
        """

    def sealed(self, cursor: Cursor, steps_ahead: int) -> dict[str, Any] | None:
        """Make what was recorded up to a place durable, and return what the state says of the run; None if it was not recorded.

        Args:
            cursor: the place.
            steps_ahead: how many steps the stream has delivered beyond the place.
        """

    def close(self) -> None:
        """The stream is closed, or another run records it: make durable what was recorded."""
