"""A small array of numbers that a process shares with its children, forked or spawned.

`multiprocessing` keeps them in ``/dev/shm``, many arrays in one file. Where that is missing, full or read-only, as in some
containers, each array lies in a file that has no name and no folder.
"""

import ctypes
import mmap
import os
import sys
from collections.abc import Callable
from multiprocessing import context, reduction, sharedctypes
from typing import Any, final


def shared_array(size: int) -> Any:
    """Return an array of whole numbers, zeros at first; it can be pickled while a process is spawned.

    Args:
        size: how many.

    Raises:
        OSError: no memory or no file descriptors are left.
    """
    try:
        return sharedctypes.RawArray("q", size)
    except OSError:
        if not hasattr(os, "memfd_create"):
            raise
        handle = os.memfd_create("spiral-shared", os.MFD_CLOEXEC)
        os.ftruncate(handle, 8 * size)
        return _Unnamed(handle, size)


@final
class _Unnamed:
    """Numbers in a file without a name; owns the descriptor."""

    def __init__(self, handle: int, size: int) -> None:
        self._handle, self._size = handle, size
        self._numbers = (ctypes.c_longlong * size).from_buffer(mmap.mmap(handle, 8 * size))

    def __getitem__(self, at: int) -> int:
        return int(self._numbers[at])

    def __setitem__(self, at: int, value: int) -> None:
        self._numbers[at] = value

    def __reduce__(self) -> tuple[Any, ...]:
        context.assert_spawning(self)
        return _attached, (reduction.DupFd(self._handle), self._size)

    def __del__(self, _ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not _ending():  # modules are empty then
            os.close(self._handle)


def _attached(handle: Any, size: int) -> _Unnamed:
    return _Unnamed(handle.detach(), size)
