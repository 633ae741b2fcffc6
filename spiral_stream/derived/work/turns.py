"""One process makes what cannot be shared out, while others wait for it with a deadline."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from spiral_stream.derived.work.make import WAIT_S
from spiral_stream.integrity.locks import Held, lock

_PAUSES_S: Final = (0.02, 0.5)


@contextmanager
def one_at_a_time(file: Path, done: Callable[[], bool]) -> Iterator[None]:
    """Let one process into the block while others wait; a dead one's turn ends at once.

    Args:
        file: the lock; it is made, with its folder.
        done: whether another process has made it meanwhile, so that nobody needs to wait any longer.
    """
    held: Held | None = None
    until, pause = time.monotonic() + WAIT_S, _PAUSES_S[0]
    with suppress(OSError):  # no locks here: everybody makes it, and one outcome stays
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        while not done() and (held := lock(file, alone=True)) is None and time.monotonic() < until:
            time.sleep(pause)
            pause = min(2 * pause, _PAUSES_S[1])
    try:
        yield
    finally:
        if held is not None:
            held.release()
