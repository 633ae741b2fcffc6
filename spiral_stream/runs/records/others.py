"""The other attempts of a run: which of them record while this one does, and what they had come to.

Two trainings under one name, and one that begins anew where it should have gone on, make branches. Nothing of either is lost,
but the newest is the trained one, so whoever records is told. Attempts of this folder's machines are known by a lock that the
kernel takes back from a process that ends, so a start that follows a killed one is no second one. Those of other machines on a
store are seen by the elder, each time that it writes.
"""

import os
import socket
from typing import Any, Final, final

from spiral_stream.errors import RunError, SpiralError, listed, warn
from spiral_stream.keeping.in_use import Reading
from spiral_stream.runs.files import RunFiles
from spiral_stream.runs.history import Mark, reached_of

_SHOWN: Final = 3
_TO_READ = "To read a run, leave the stream out: catalog.run({name!r}). A training of its own needs another name"


@final
class OtherAttempts:
    """What the first rank of an attempt knows of the others. Release it.

    Args:
        files: of the run.
        start: the attempt that this start began with.

    Attributes:
        alongside: attempts that were recorded while this one was, as far as is known.
    """

    def __init__(self, files: RunFiles, start: str) -> None:
        self._files, self._start = files, start
        self._known = files.claimed() - {start}
        self.alongside = {each for each in self._known if files.is_recorded(each)}
        self._recorded: Reading | None = files.recording(start)
        if self.alongside:
            warn(
                f"run {files.name!r}: attempt {listed(sorted(self.alongside), _SHOWN)} is being recorded now, by another process "
                f"or another stream of this one. Attempt {start} is a branch of its own, and the trained one as the newer of "
                f"them. {_TO_READ.format(name=files.name)}"
            )

    def look(self, ours: str) -> None:
        """Warn of attempts that another start has begun since.

        Args:
            ours: the present attempt of this start.
        """
        try:
            new = {each for each in self._files.claimed() - self._known if not self._is_ours(each)}
        except SpiralError:  # the store fails: it is asked again with the next part, and recording goes on
            return
        self._known |= new
        self.alongside |= new
        if new:
            warn(
                f"run {self._files.name!r}: attempt {listed(sorted(new), _SHOWN)} was begun while {ours} records. Both are "
                f"branches, and the newer is the trained one; this one's relation is runs.{self._files.name}.{ours}. End "
                f"one of the two trainings. {_TO_READ.format(name=self._files.name)}"
            )

    def tell_of_beginning_anew(self, ours: str, begun: Mark, said: Any) -> None:
        """Warn that an attempt without a parent delivers its first batch, where others have delivered some already.

        Args:
            ours: the attempt.
            begun: where it begins.
            said: what the loaded state says of the run that saved it; None if it says nothing, or none was loaded.
        """
        if not self._known:
            return
        name = self._files.name
        try:
            reached = {each: mark for each, mark in reached_of(self._files).items() if not self._is_ours(each)}
        except RunError as error:  # whoever reads the run is told again
            warn(str(error))
            return
        if not reached:
            return
        attempt = max(reached, key=lambda each: (reached[each].epoch, reached[each].batch))
        mark, origin = reached[attempt], "" if said is None else f" of a state that run {said['name']!r} saved"
        warn(
            f"run {name!r}: attempt {ours} goes on from none of this run. It begins at {_at(begun)}{origin}, and attempt "
            f"{attempt} had come to {_at(mark)}. From here on {ours} is the trained branch, and runs.{name}.{attempt} the other. "
            "To go on, load the saved state before the loop: stream.load_state_dict(state). If it begins anew on purpose, "
            f"say so: catalog.run({name!r}, stream, anew=True), or give it another name"
        )

    def is_over(self, attempt: str) -> bool:
        """Return whether an attempt is one of another start that records no more, as far as is known."""
        return not self._is_ours(attempt) and attempt not in self.alongside

    def release(self) -> None:
        """Say that this process records no more."""
        if self._recorded is not None:
            self._recorded.release()
        self._recorded = None

    def _is_ours(self, attempt: str) -> bool:
        of, _, number = attempt.rpartition(".")
        return attempt == self._start or (of == self._start and number.isdigit())


def this_process() -> str:
    """Return what this process is called in a history: its machine and its number."""
    return f"{socket.gethostname()} {os.getpid()}"


def _at(mark: Mark) -> str:
    return f"epoch {mark.epoch:,}, batch {mark.batch:,}"
