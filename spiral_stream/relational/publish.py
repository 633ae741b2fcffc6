"""How a folder of files appears at once, complete, whoever else is making the same one.

Files are written into a temporary folder beside the target and synced; one rename
publishes it. If another builder was faster its folder stays and ours is dropped:
both have the same content, since the target's name is its fingerprint.
"""

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spiral_stream.errors import CacheError


@contextmanager
def publish(directory: Path) -> Iterator[Path]:
    """A temporary folder that becomes ``directory`` when the block ends without an error.

    Raises:
        CacheError: the folder cannot be made or renamed.
    """
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        work = directory.with_name(f".{directory.name}.{uuid.uuid4().hex}")
        work.mkdir()
    except OSError as error:
        msg = f"{directory} cannot be written: {error.strerror}. Give a catalog folder that can be written, or set $SPIRAL_CACHE"
        raise CacheError(msg) from error
    try:
        yield work
        for path in [*work.iterdir(), work]:
            _sync(path)
        _rename(work, directory)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _rename(work: Path, directory: Path) -> None:
    try:
        work.rename(directory)
        _sync(directory.parent)
    except OSError as error:
        if not directory.is_dir():  # another builder's folder is as good
            msg = f"{directory} cannot be made: {error.strerror}. Give a catalog folder on one local file system"
            raise CacheError(msg) from error


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
