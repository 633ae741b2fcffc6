"""One writer at a time: a file lock that says who holds it.

The kernel releases the lock when its holder dies, so nothing is left behind but the
file. The holder's name in it is for people: whoever waits too long reads it out.
"""

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from spiral_stream.errors import CatalogError, cut
from spiral_stream.integrity.locks import turn

DEADLINE_S: Final = 60.0  # writers hold it for some milliseconds; copying rows from memory takes seconds


@contextmanager
def locked(path: Path, what: str, deadline_s: float | None = None) -> Iterator[None]:
    """Hold a lock file, which is made if it is missing.

    Where the file system has no locks this passes: changes of Lance tables are commits, of which one wins.

    Args:
        path: the lock file.
        what: what is locked, for messages.
        deadline_s: how long to wait for another holder; `DEADLINE_S` by default.

    Raises:
        CatalogError: another process holds it for longer; says which.
        OSError: the file cannot be written.
    """
    deadline_s = DEADLINE_S if deadline_s is None else deadline_s

    def late(_: str) -> CatalogError:
        holder = cut(path.read_text(errors="replace")) or "another process"
        return CatalogError(
            f"{what}: locked for {deadline_s:g} s by {holder}. Wait for it and try again, "
            f"or end that process if it hangs (the lock goes with it; file {path})"
        )

    with ExitStack() as stack, path.open("a+") as file:
        try:
            stack.enter_context(turn(path, deadline_s, late=late))
        except OSError as refused:
            msg = f"{what}: {path}: {refused.strerror}"
            raise CatalogError(msg) from refused
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()} ({_program()}) since {datetime.now(UTC):%FT%TZ}")
        file.flush()
        yield


def _program() -> str:
    return Path(sys.argv[0]).name or "interactive" if sys.argv else "embedded"
