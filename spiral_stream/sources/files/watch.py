"""Whether the open files of a source are still those that were opened.

A reader holds what it learned of its files when it opened them. Bytes that were exchanged or edited since would be read
as if they belonged to it; so after a read the files it came from are looked at: one ``stat`` each (2 us), at most once
per file in `EVERY_S`.
"""

import os
import time
from collections.abc import Iterable, Mapping
from typing import Final, final

from spiral_stream.errors import SourceError, cut

EVERY_S: Final = 1.0  # between two looks at one file: shuffled batches come back to the same ones all the time

FileStamp = tuple[int, int]  # size, time of change in ns


@final
class Watch:
    """Files by name, as they were when their source was opened. Thread-safe."""

    def __init__(self, facts: Mapping[str, FileStamp]) -> None:
        self._facts = dict(facts)
        self._looked: dict[str, float] = {}  # of files in use

    def know(self, path: str, facts: FileStamp) -> None:
        """Add a file that was opened later."""
        self._facts[path] = facts

    def need_unchanged(self, paths: Iterable[str]) -> None:
        """Look at files that were just read.

        Raises:
            SourceError: one is another, or gone.
        """
        now = time.monotonic()
        for path in paths:
            if now - self._looked.get(path, -EVERY_S) < EVERY_S:
                continue
            try:
                found = facts_of(os.stat(path))  # noqa: PTH116  a Path costs as much as the call
            except OSError as error:
                msg = f"{cut(path)}: {error.strerror}, while it is being read. Restore the file, and open the stream again"
                raise SourceError(msg) from error
            if found != self._facts[path]:
                size, _ = self._facts[path]
                msg = (
                    f"{cut(path)} changed while it is being read: it had {size:,} bytes, now {found[0]:,}"
                    f"{' and another time' if found[0] == size else ''}. Restore the file, or take the data as it is now "
                    "with catalog.refresh(<name>), and open the stream again"
                )
                raise SourceError(msg)
            self._looked[path] = now


def facts_of(facts: os.stat_result) -> FileStamp:
    """Return the facts of a file that are compared."""
    return facts.st_size, facts.st_mtime_ns
