"""Errors of the operating system, each with its way out; only damage says "build it again"."""

import errno
import math
import re
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from spiral_stream.errors import CacheError

_WAYS_OUT: Final = {
    errno.EMFILE: "This process has no file descriptors left: raise its limit (ulimit -n), or close streams that are not read",
    errno.ENFILE: "The machine has no file descriptors left: raise fs.file-max, or end other programs",
    errno.EACCES: "This user may not: give it the rights, or set $SPIRAL_CACHE to a folder of its own",
    errno.EPERM: "This user may not: give it the rights, or set $SPIRAL_CACHE to a folder of its own",
    errno.EROFS: "The file system is read-only: set $SPIRAL_CACHE to a folder that can be written",
    errno.ENOSPC: "The disk is full: free space, or set $SPIRAL_CACHE to another disk",
    errno.EDQUOT: "The quota is used up: free space, or set $SPIRAL_CACHE to another disk",
    errno.ENOMEM: "No memory, or no mapping, is left: raise vm.max_map_count, or close streams that are not read",
    errno.EIO: "The disk failed: look at it, and restore the folder or build it on another disk",
    errno.ESTALE: "The network file system lost it: mount it again",
}
_FULL_BYTES: Final = 1 << 20  # a disk with less is full: Lance writes 8 MiB at a time
_NUMBER: Final = re.compile(r"\(os error (\d+)\)")  # as errors that come out of Rust say it


def number_of(error: OSError) -> int | None:
    """Return the error's number, also of one that says it in its text only."""
    if error.errno is not None:
        return error.errno
    found = _NUMBER.search(str(error))
    return int(found[1]) if found else None


def _bytes_left(where: Sequence[object]) -> float:
    """What the disk of the first folder or file of these has left; infinity where nobody knows."""
    with suppress(OSError, StopIteration):
        path = next(each for each in where if isinstance(each, Path))
        while not path.exists() and path != path.parent:
            path = path.parent
        return shutil.disk_usage(path).free
    return math.inf


def failed(error: OSError, otherwise: str, *where: object) -> CacheError:
    """Return the error to raise for one of the operating system.

    Args:
        error: why something could not be done.
        otherwise: the way out where the kind of error says none.
        where: words, and what it could not be done to.
    """
    why, number = error.strerror or str(error)[:200], number_of(error)
    if number is None and (left := _bytes_left(where)) < _FULL_BYTES:  # Lance may say only that a file is too short
        why, number = f"{why}; its disk has {left:,} bytes left", errno.ENOSPC
    return CacheError(
        f"{' '.join(map(str, where))} ({why}). {_WAYS_OUT.get(number, otherwise) if number else otherwise}"
    )
