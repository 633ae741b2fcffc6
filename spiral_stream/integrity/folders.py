"""Folders that another library writes: what each file was like when it was written, in a sealed record.

Files of Lance carry no seal. Their sizes and digests are compared when a process opens the folder: all bytes once, at about
8 GB/s from memory, and from then on the size and the time of change of each file.
"""

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from spiral_stream.integrity import seal

Written = Mapping[str, tuple[int, str]]  # by path below the folder: size and digest
_Look = tuple[tuple[int, int], ...]  # size and time of change of each file
_SOUND: Final[dict[Path, _Look]] = {}  # what this process has compared
_MOST: Final = 4096  # folders that it remembers
_LOCK: Final = threading.Lock()


def files_of(folder: Path) -> dict[str, tuple[int, str]]:
    """Return the size and the digest of each file of a folder, by its path below it.

    Raises:
        OSError: one cannot be read.
    """
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): (path.stat().st_size, seal.digest_of(path).hex()) for path in paths}


def need_written(folder: Path, written: Written, *, again: bool = False) -> None:
    """Compare the files of a folder with what was written: sizes at every call, digests once per process.

    Args:
        folder: that holds them.
        written: what `files_of` gave.
        again: whether digests are compared although this process compared them before.

    Raises:
        DamageError: one is missing, or not as it was written.
        CacheError: the operating system refuses.
    """
    look = tuple(_look(folder / name, size) for name, (size, _) in sorted(written.items()))
    if not again and _SOUND.get(folder) == look:
        return
    for name, (_, digest) in sorted(written.items()):
        with seal.reading(folder / name):
            found = seal.digest_of(folder / name).hex()
        if found != digest:
            raise seal.damaged(folder / name, f"its digest is {found}, and it was written with {digest}")
    with _LOCK:
        if len(_SOUND) >= _MOST:
            _SOUND.clear()
        _SOUND[folder] = look


def _look(path: Path, size: int) -> tuple[int, int]:
    with seal.reading(path):
        found = path.stat()
    if found.st_size != size:
        raise seal.damaged(path, f"it has {found.st_size:,} bytes, and was written with {size:,}")
    return found.st_size, found.st_mtime_ns
