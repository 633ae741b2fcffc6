"""Look once at a file that others may remove: what is not there has no size, was written at no time, and is listed nowhere.

Two looks, ``exists()`` and then ``stat()``, fail where the file goes in between.
"""

import os
from collections.abc import Iterator
from pathlib import Path


def look(path: Path) -> os.stat_result | None:
    """Return what the file system says of a file; None if it is not there.

    Raises:
        OSError: the operating system refuses.
    """
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def size_of(path: Path) -> int:
    """Return the bytes of a file; 0 if it is not there.

    Raises:
        OSError: the operating system refuses.
    """
    found = look(path)
    return 0 if found is None else found.st_size


def written_at(path: Path) -> float:
    """Return when a file was written, in seconds since 1970; 0.0 if it is not there.

    Raises:
        OSError: the operating system refuses.
    """
    found = look(path)
    return 0.0 if found is None else found.st_mtime


def files_below(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder in order, whatever others remove meanwhile; none if it is not there.

    Raises:
        OSError: the operating system refuses.
    """
    try:
        with os.scandir(folder) as found:
            entries = sorted(found, key=lambda each: each.name)
    except FileNotFoundError:
        return
    for each in entries:
        if each.is_dir(follow_symlinks=False):
            yield from files_below(Path(each.path))
        else:
            yield Path(each.path)
