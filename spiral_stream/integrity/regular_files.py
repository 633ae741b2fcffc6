"""Open files that a user named: regular files only, since a FIFO waits for its writer and a device may never end."""

import errno
import os
import stat
from pathlib import Path
from typing import Final

_KINDS: Final = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def need_file(path: str, facts: os.stat_result) -> None:
    """Refuse what is no regular file: a FIFO waits for its writer, and a device may never end.

    Raises:
        OSError: says what it is.
    """
    if not stat.S_ISREG(facts.st_mode):
        raise _no_file(path, facts)


def _no_file(path: str, facts: os.stat_result) -> OSError:
    kind = _KINDS.get(stat.S_IFMT(facts.st_mode), "no regular file")
    return OSError(errno.EINVAL, f"it is {kind}, not a file", path)


def open_file(path: str) -> tuple[int, os.stat_result]:
    """Open a regular file for reading: its descriptor, and what ``fstat`` says of it.

    Looked at before it is opened, since opening a device may do something; and after, since another may have taken
    its place. Never waits, not even for the writer of a FIFO.

    Raises:
        OSError: it cannot be opened, or is no regular file.
        ValueError: the path holds a NUL.
    """
    facts = os.stat(path)  # noqa: PTH116
    if stat.S_ISREG(facts.st_mode):
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        facts = os.fstat(handle)
        if stat.S_ISREG(facts.st_mode):
            return handle, facts
        os.close(handle)
    raise _no_file(path, facts)


def regular_bytes(path: Path) -> bytes:
    """Return what a regular file holds.

    Raises:
        OSError: it cannot be read, or is no regular file.
    """
    handle, _ = open_file(str(path))
    with open(handle, "rb") as file:  # noqa: PTH123  a descriptor
        return file.read()
