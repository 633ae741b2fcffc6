"""Locks that the kernel releases when a process ends, however it ends: who is alive.

Files and folders are locked with ``flock``. A folder is shared by those who use it, and taken for oneself, without
waiting, by whoever wants to remove something from it. Where a file system has no locks, nobody is ever alone.
"""

import errno
import fcntl
import os
import random
import stat
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Literal, TypeVar, final

from spiral_stream.errors import CacheError, warn
from spiral_stream.threads import PATIENT_LOOKS, Stopwatch

DEADLINE_S: Final = 120.0  # those who are alone remove files, and nothing else
TELL_AFTER_S: Final = 10.0  # of waiting for a lock, then a warning says for which
_PAUSES_S: Final = 0.002, 0.02  # of who waits: first, and most
LONG_PAUSES_S: Final = 0.02, 1.0  # where a look is a request or a commit
FLOCK: Final = struct.Struct("hhqqi4x")  # of Linux on 64 bits: type, whence, start, length, pid
NO_LOCKS: Final = {errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL}
_OTHERS_HOLD_IT: Final = {errno.EWOULDBLOCK, errno.EAGAIN, errno.EINTR}

T = TypeVar("T")


def _timeout(said: str) -> Exception:
    return TimeoutError(errno.EWOULDBLOCK, said)


@final
class Wait:
    """A wait for other processes: how long, how often one looks, and when the user is told.

    That the machine stood still is not counted: of a pause, at most a tenth of the deadline is, and of `tell_after_s`.

    Args:
        deadline_s: of the wait; infinity where the kernel or a store says when the others are dead.
        pauses_s: between two looks: the first, and the longest. They double, and are drawn, so that those who wait do not
            look in step.
        tell: gives the warning of a wait that goes on, of the seconds so far; None: whoever waits is told elsewhere.
        tell_after_s: of waiting, once.
    """

    def __init__(
        self,
        deadline_s: float,
        pauses_s: tuple[float, float] = _PAUSES_S,
        tell: Callable[[float], str] | None = None,
        tell_after_s: float = TELL_AFTER_S,
    ) -> None:
        self._deadline_s, self._tell, self._tell_after_s = deadline_s, tell, tell_after_s
        self._pause_s, self._most_s = pauses_s
        self.again()

    def again(self) -> None:
        """Count from now on: the others did something."""
        self._waited = Stopwatch(self._deadline_s / PATIENT_LOOKS)
        self._untold = Stopwatch(self._tell_after_s / PATIENT_LOOKS)

    @property
    def over(self) -> bool:
        """Whether the deadline has passed."""
        return self._waited.seconds() >= self._deadline_s

    def pause(self) -> bool:
        """Sleep until the next look, which is no later than the warning and the deadline; False at once if that has passed."""
        waited, untold = self._waited.seconds(), self._untold.seconds()
        if waited >= self._deadline_s:
            return False
        if self._tell is not None and untold >= self._tell_after_s:
            warn(self._tell(waited))
            self._tell = None
        pause = self._pause_s * (0.5 + random.random())  # noqa: S311  no secret
        pause = min(pause, self._deadline_s - waited, self._deadline_s / PATIENT_LOOKS)
        if self._tell is not None:
            pause = min(pause, self._tell_after_s - untold, self._tell_after_s / PATIENT_LOOKS)
        time.sleep(pause)
        self._pause_s = min(2 * self._pause_s, self._most_s)
        return True


def wait_for(
    take: Callable[[], T | None],
    path: Path,
    deadline_s: float,
    who: str = "another process",
    late: Callable[[str], Exception] = _timeout,
    *,
    unlocked: T | None = None,
    quiet: bool = False,
) -> T:
    """Return what is taken as soon as others do not hold it.

    Args:
        take: takes it without waiting; None, or the kernel's error, says that others hold it.
        path: of the lock, for messages; a warning says after `TELL_AFTER_S` that the wait goes on.
        deadline_s: of the wait.
        who: holds it, for messages.
        late: the error of a passed deadline, of its message.
        unlocked: is returned where the file system has no locks (`NO_LOCKS`).
        quiet: whether who waits is told elsewhere.

    Raises:
        TimeoutError: the deadline has passed; or what ``late`` makes.
        OSError: the file system has no locks and ``unlocked`` is None, or it refuses this one: names the lock.
    """

    def tell(waited: float) -> str:
        return f"{path} is locked by {who}, for {waited:.0f} s; waiting up to {deadline_s:g} s. `fuser {path}` names it"

    wait: Wait | None = None
    while True:
        try:
            found = take()
        except OSError as error:
            if error.errno not in _OTHERS_HOLD_IT:
                if error.errno in NO_LOCKS and unlocked is not None:
                    return unlocked
                if error.errno in NO_LOCKS or error.filename is not None:  # it cannot be opened
                    raise
                why = f"the file system refuses a lock: {error.strerror or error}. Allow locks there, or use another folder"
                raise OSError(error.errno, why, str(path)) from error
        else:
            if found is not None:
                return found
        wait = wait or Wait(deadline_s, _PAUSES_S, None if quiet else tell, TELL_AFTER_S)
        if not wait.pause():
            said = f"{path} is locked by {who}, for {deadline_s:g} s. End it (`fuser {path}`)"
            raise late(said)


@contextmanager
def turn(
    path: Path,
    deadline_s: float,
    who: str = "another process",
    late: Callable[[str], Exception] = _timeout,
) -> Iterator[None]:
    """One process at a time, as `wait_for` has it, by a file or folder that is there; all at once without locks.

    Raises:
        TimeoutError: the deadline has passed; or what ``late`` makes.
        OSError: it cannot be opened, or the file system refuses the lock.
    """
    held = wait_for(lambda: lock(path, alone=True), path, deadline_s, who, late, unlocked=Held(-1))
    try:
        yield
    finally:
        held.release()


def lock_bytes(handle: int, kind: int, first: int, count: int) -> None:
    """Lock some bytes of an open file without waiting, or unlock them.

    The lock belongs to the descriptor, so threads exclude each other too.

    Args:
        handle: the descriptor.
        kind: ``F_WRLCK``, ``F_RDLCK`` or ``F_UNLCK``.
        first: the first byte.
        count: how many; 0 is all that follow.

    Raises:
        OSError: another descriptor has some of them, or the file system has no such locks.
        AttributeError: the operating system has none.
    """
    fcntl.fcntl(handle, fcntl.F_OFD_SETLK, FLOCK.pack(kind, os.SEEK_SET, first, count, 0))


def unlock(handle: int, owner: int) -> None:
    """Give the lock of an open file back, and close it.

    A lock lasts until the last copy of its descriptor is closed, and a forked process has one of each. So whoever took
    the lock says that it ends. In a child only the copy is closed: the lock is its parent's.

    Args:
        handle: the descriptor.
        owner: the process that locked it.
    """
    try:
        if owner == os.getpid():
            with suppress(OSError):  # a file system without locks
                fcntl.flock(handle, fcntl.LOCK_UN)
    finally:
        os.close(handle)


@final
class Held:
    """A lock, until `release` or until nothing refers to it. A child that is forked meanwhile does not prolong it."""

    def __init__(self, handle: int) -> None:
        self._handle, self._pid = handle, os.getpid()

    def is_at(self, path: Path) -> bool:
        """Whether what is locked has this name still: whoever had the lock before may have removed or renamed it."""
        try:
            return os.path.samestat(os.fstat(self._handle), path.stat())
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Give it back; again does nothing."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            unlock(handle, self._pid)

    def __del__(self, _ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not _ending():  # the kernel gives it back then, and modules are empty
            self.release()


def lock_file(handle: int, *, alone: bool) -> Literal[True] | None:
    """Lock an open file or folder without waiting; None if others hold it.

    Raises:
        OSError: the file system has no locks, or refuses this one.
    """
    try:
        fcntl.flock(handle, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return None
    return True


def lock(path: Path, *, alone: bool) -> Held | None:
    """Lock a file or folder that is there, without waiting; None if others hold it.

    Raises:
        OSError: it cannot be opened, or the file system has no locks.
    """
    held = Held(handle := os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    if lock_file(handle, alone=alone):
        return held
    held.release()
    return None


def enter(folder: Path) -> Held:
    """Make a folder that others remove when they leave it, and share it: nobody removes it until the share is released.

    Waits for whoever is removing it. Where the file system has no locks nobody removes it.

    Raises:
        OSError: it cannot be made or opened.
    """
    return wait_for(lambda: _entered(folder), folder, DEADLINE_S, unlocked=Held(-1))


def _entered(folder: Path) -> Held | None:
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            held = lock(folder, alone=False)
        except FileNotFoundError:
            continue
        except FileExistsError:  # it was there, and was removed before `mkdir` looked what it is
            with suppress(FileNotFoundError):
                if not stat.S_ISDIR(folder.stat().st_mode):  # one look: between two it may be made or removed
                    raise
            continue
        return held if held is not None and held.is_at(folder) else None


def leave(folder: Path, remove: Callable[[Path], object]) -> None:
    """Remove a folder unless somebody shares it; what cannot be removed, such as one that is not empty for ``rmdir``, stays."""
    with suppress(OSError):
        held = lock(folder, alone=True)
        if held is not None:
            try:
                remove(folder)
            finally:
                held.release()


def share(file: Path, deadline_s: float = DEADLINE_S) -> Held | None:
    """Share a lock file, which is made if it is missing; None where it cannot be made, or the file system has no locks.

    Raises:
        CacheError: somebody is alone with it for longer than the deadline.
        OSError: no descriptors are left.
    """
    try:
        handle = os.open(file, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno in {errno.EMFILE, errno.ENFILE}:
            raise
        return None
    held = Held(handle)
    try:
        wait_for(
            lambda: lock_file(handle, alone=False),
            file,
            deadline_s,
            "a process that removes files",
            lambda said: CacheError(f"cache: {said}"),
        )
    except OSError as error:
        held.release()
        if error.errno in NO_LOCKS:
            return None
        msg = f"cache: {file}: {error.strerror}"
        raise CacheError(msg) from error
    return held


@contextmanager
def alone(file: Path) -> Iterator[bool]:
    """Whether nobody else shares or holds a lock file; nobody gets it meanwhile. Does not wait."""
    try:
        file.touch()
        held = lock(file, alone=True)
    except OSError:
        held = None
    try:
        yield held is not None
    finally:
        if held is not None:
            held.release()
