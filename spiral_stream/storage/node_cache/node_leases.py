"""Who fetches which blocks: one byte of one file is locked per block, so that all processes of a node share the work.

The lock belongs to an open descriptor (`Leases`), which serves many files at a time; the kernel takes it back from a
process that ends, however it ends. The place of a block is drawn from the name of its file: two that meet there wait for
each other once, and nothing else happens. Whoever waits holds no lease, so nobody waits in a circle.
"""

import fcntl
import os
import weakref
from pathlib import Path
from typing import Final, final

from spiral_stream.integrity.locks import lock_bytes

_OPEN: "Final[weakref.WeakSet[Leases]]" = weakref.WeakSet()


def _forget() -> None:
    for each in list(_OPEN):
        each.forget()


os.register_at_fork(after_in_child=_forget)


@final
class Leases:
    """Leases that are taken and given back together."""

    def __init__(self, folder: Path) -> None:
        """Open the file of leases of a node cache.

        Raises:
            OSError: it cannot be made.
        """
        self._handle = os.open(folder / "leases", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        _OPEN.add(self)

    def __enter__(self) -> "Leases":
        return self

    def __exit__(self, *_: object) -> None:
        handle, self._handle = self._handle, -1
        if handle >= 0:
            _set(handle, fcntl.F_UNLCK, 0, 0)  # a child in the middle of its fork has a copy
            os.close(handle)

    def take(self, digest: str, first: int, stop: int) -> bool:
        """Take the lease of some blocks without waiting; False if another thread or process has one of them."""
        return _set(self._handle, fcntl.F_WRLCK, int(digest[:15], 16) + first, stop - first)

    def forget(self) -> None:
        """Close a forked child's copy, and leave the parent's leases alone."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)


def _set(handle: int, kind: int, first: int, count: int) -> bool:
    try:
        lock_bytes(handle, kind, first, count)
    except (BlockingIOError, PermissionError):
        return False
    return True
