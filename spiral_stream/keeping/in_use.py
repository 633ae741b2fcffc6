"""Locks that say which derived data is in use, so that it is not removed.

Whoever reads or makes something shares one byte of the file ``readers`` in the prepared folder, at the place that its
name gives; whoever removes it takes that byte alone, without waiting. A process opens the file once, however much it
reads. The kernel takes the locks back from a process that ends, however it ends. Where a file system has no such locks,
nobody is ever alone.
"""

import fcntl
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final, Literal, final

import xxhash

from spiral_stream.errors import CacheError
from spiral_stream.integrity.locks import DEADLINE_S, lock_bytes, wait_for

FILE: Final = "readers"
_OFFSETS: Final = 1 << 48
_USED_EVERY_S: Final = 3600.0  # how exactly the last use is known


@final
class _Shared:
    """The places of one file that this process shares, and how often."""

    def __init__(self, file: Path) -> None:
        self.file, self.pid = file, os.getpid()
        self.handle, self.times = _opened(file), Counter[int]()


_SHARED: dict[Path, _Shared] = {}
_LOCK = threading.RLock()  # a `Reading` may end in the middle of anything


def _forget() -> None:
    """In a forked child, the locks are those of the parent."""
    global _LOCK  # noqa: PLW0603  another thread may have held it
    _LOCK = threading.RLock()
    for each in _SHARED.values():
        os.close(each.handle)
    _SHARED.clear()


os.register_at_fork(after_in_child=_forget)


@final
class Reading:
    """A share in something, until `release` or until nothing refers to it."""

    def __init__(self, shared: _Shared | None, offset: int) -> None:
        self._shared, self._offset = shared, offset

    def release(self) -> None:
        """Give it back; again does nothing."""
        shared, self._shared = self._shared, None
        if shared is None or shared.pid != os.getpid():
            return
        with _LOCK:
            shared.times[self._offset] -= 1
            if not shared.times[self._offset]:
                del shared.times[self._offset]
                with suppress(OSError):
                    lock_bytes(shared.handle, fcntl.F_UNLCK, self._offset, 1)
            if not shared.times:
                os.close(shared.handle)
                _SHARED.pop(shared.file, None)

    @contextmanager
    def or_released(self) -> Iterator[None]:
        """Give it back at once if the block fails: on CPython 3.12 and 3.13 errors live in cycles with the frames they left."""
        try:
            yield
        except BaseException:
            self.release()
            raise

    def __del__(self, _ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not _ending():  # the kernel gives it back then, and modules are empty
            self.release()


def reading(root: Path, name: str, deadline_s: float = DEADLINE_S) -> Reading:
    """Share something by its name; it waits for whoever is removing it.

    Args:
        root: of the prepared folder. Where nothing can be written there, nothing is shared.
        name: of a derivation, selection or plan: its fingerprint.
        deadline_s: how long to wait.

    Raises:
        CacheError: somebody is alone with it for longer than the deadline.
    """
    file, offset = root / FILE, _offset_of(name)
    with _LOCK, suppress(OSError, AttributeError):  # read-only, or no such locks
        shared = _SHARED.get(file) or _Shared(file)
        _SHARED[file] = shared
        try:
            if not shared.times[offset]:
                take = partial(_share, shared.handle, offset)
                wait_for(take, file, deadline_s, "a process that removes files", CacheError)
            shared.times[offset] += 1
        finally:
            if not any(shared.times.values()):
                os.close(shared.handle)
                del _SHARED[file]
        return Reading(shared, offset)
    return Reading(None, offset)


@contextmanager
def unread(root: Path, name: str) -> Iterator[bool]:
    """Whether nobody shares something, in this process or another; nobody gets it meanwhile. Does not wait."""
    handle, is_alone = -1, False
    with suppress(OSError, AttributeError):
        handle = _opened(root / FILE)
        lock_bytes(handle, fcntl.F_WRLCK, _offset_of(name), 1)
        is_alone = True
    try:
        yield is_alone
    finally:
        if handle >= 0:
            if is_alone:
                with suppress(OSError):
                    lock_bytes(
                        handle, fcntl.F_UNLCK, _offset_of(name), 1
                    )  # a child that was forked meanwhile has a copy
            os.close(handle)


def used(folder: Path) -> None:
    """Note on a folder that it is used now, to the hour."""
    with suppress(OSError):
        if time.time() - folder.stat().st_mtime > _USED_EVERY_S:
            os.utime(folder)


def _offset_of(name: str) -> int:
    return int(xxhash.xxh3_64_intdigest(name.encode())) % _OFFSETS


def _opened(file: Path) -> int:
    with suppress(FileExistsError):
        file.parent.mkdir(parents=True, exist_ok=True)
    return os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)


def _share(handle: int, offset: int) -> Literal[True] | None:
    """Share a byte without waiting; None if others hold it."""
    try:
        lock_bytes(handle, fcntl.F_RDLCK, offset, 1)
    except PermissionError:  # so some systems say that others hold it
        return None
    return True
