"""Who makes what of which shard: leases, so that builders that start together share the work.

A lease is a lock on one byte of the ``claims`` file of what is made, at the place that the shard's key gives. The kernel
takes it back when its owner ends, however it ends, so a dead owner's lease is free at once. Where a file system has no
such locks everybody gets every lease: work is done twice, and one result is kept.
"""

import fcntl
import os
import struct
from contextlib import suppress
from pathlib import Path
from typing import Final, final

_PLACES: Final = 1 << 62
_FLOCK: Final = "hhqqi4x"  # struct flock of Linux on 64 bits: type, whence, start, length, pid


@final
class Claims:
    """The leases that one builder holds."""

    def __init__(self, folder: Path) -> None:
        """Open the claims of a folder.

        Raises:
            OSError: the file cannot be made.
        """
        self._handle = os.open(folder / "claims", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)

    def take(self, key: int) -> bool:
        """Take the lease of a shard without waiting; False if another builder has it."""
        return self._set(key, fcntl.F_WRLCK)

    def give_back(self, key: int) -> None:
        """Give a lease back."""
        self._set(key, fcntl.F_UNLCK)

    def close(self) -> None:
        """Give all leases back."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            with suppress(OSError, AttributeError):  # a child that was forked meanwhile shares the handle
                fcntl.fcntl(handle, fcntl.F_OFD_SETLK, struct.pack(_FLOCK, fcntl.F_UNLCK, os.SEEK_SET, 0, 0, 0))
            os.close(handle)

    def _set(self, key: int, kind: int) -> bool:
        wanted = struct.pack(_FLOCK, kind, os.SEEK_SET, key % _PLACES, 1, 0)
        try:
            fcntl.fcntl(self._handle, fcntl.F_OFD_SETLK, wanted)
        except (BlockingIOError, PermissionError):
            return False
        except (OSError, AttributeError):  # no such locks here
            return True
        return True
