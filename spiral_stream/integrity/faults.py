"""Errors of the operating system, each with its way out; only damage says "build it again"."""

import errno
import re
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
_NUMBER: Final = re.compile(r"\(os error (\d+)\)")  # as errors that come out of Rust say it


def number_of(error: OSError) -> int | None:
    """Return the error's number, also of one that says it in its text only."""
    if error.errno is not None:
        return error.errno
    found = _NUMBER.search(str(error))
    return int(found[1]) if found else None


def failed(error: OSError, otherwise: str, *where: object) -> CacheError:
    """Return the error to raise for one of the operating system.

    Args:
        error: why something could not be done.
        otherwise: the way out where the kind of error says none.
        where: words, and what it could not be done to.
    """
    why = error.strerror or str(error)[:200]
    number = number_of(error)
    return CacheError(
        f"{' '.join(map(str, where))} ({why}). {_WAYS_OUT.get(number, otherwise) if number else otherwise}"
    )
