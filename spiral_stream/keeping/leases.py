"""Leases of shards on one machine: who builds what, so that builders that start together divide the work.

A lease is a lock on one byte of the ``claims`` file of what is made, at the place that the shard's key gives. The kernel
takes it back when its owner ends, however it ends, so a dead owner's lease is free at once. Where a file system has no
such locks everybody gets every lease: work is done twice, and one result is kept.
"""

import fcntl
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol, final

from spiral_stream.integrity.locks import lock_bytes

FILE: Final = "claims"
_OFFSETS: Final = 1 << 62


class ShardLeases(Protocol):
    """The leases of shards that one builder holds."""

    def take_all(self, keys: Sequence[int]) -> list[bool]:
        """Take leases without waiting; which of them were free, or ours before."""
        ...

    def give_back_all(self, keys: Sequence[int]) -> None:
        """Give leases back."""
        ...

    def is_free(self, key: int) -> bool:
        """Whether nobody has a lease, as far as is known."""
        ...

    def are_moving(self) -> bool:
        """Whether another builder showed a sign of life since this was asked last; False where nobody shows any."""
        ...

    def close(self) -> None:
        """Give all leases back."""
        ...


@final
class Claims:
    """The leases that one builder of this machine holds."""

    def __init__(self, folder: Path) -> None:
        """Open the claims of a folder.

        Raises:
            OSError: the file cannot be made.
        """
        self._handle = os.open(folder / FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)

    def take(self, key: int) -> bool:
        """Take the lease of a shard without waiting; False if another builder has it."""
        return self._set(key, fcntl.F_WRLCK)

    def give_back(self, key: int) -> None:
        """Give a lease back."""
        self._set(key, fcntl.F_UNLCK)

    def take_all(self, keys: Sequence[int]) -> list[bool]:
        """Take leases without waiting; which of them were free."""
        return [self.take(key) for key in keys]

    def give_back_all(self, keys: Sequence[int]) -> None:
        """Give leases back."""
        for key in keys:
            self.give_back(key)

    def is_free(self, key: int) -> bool:
        """Whether nobody has a lease that is not ours."""
        if not self.take(key):
            return False
        self.give_back(key)
        return True

    def are_moving(self) -> bool:
        """Return False: the kernel frees the leases of the dead, so nobody has to show that he lives."""
        return False

    def close(self) -> None:
        """Give all leases back."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            with suppress(OSError, AttributeError):  # a child that was forked meanwhile shares the handle
                lock_bytes(handle, fcntl.F_UNLCK, 0, 0)
            os.close(handle)

    def _set(self, key: int, kind: int) -> bool:
        try:
            lock_bytes(self._handle, kind, key % _OFFSETS, 1)
        except (BlockingIOError, PermissionError):
            return False
        except (OSError, AttributeError):  # no such locks here
            return True
        return True
