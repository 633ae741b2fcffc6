"""The node cache: remote files on a disk of this node, each byte fetched once for all of its processes.

`node_cache` opens the one that the environment names. A file that a process holds (`NodeCache.file_of`) stays. Other files
are evicted when room is needed, least recently used first. Nothing here knows an object store: `node_cache.store` fetches.
"""

import fcntl
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.errors import CacheError, warn
from spiral_stream.storage.node_cache.eviction import NodeFileFacts, Room, taken
from spiral_stream.storage.node_cache.file import BLOCK, KnownBlocks, NodeFile, NodeKey, refused

FOLDER_ENV: Final = "SPIRAL_NODE_CACHE"
LIMIT_ENV: Final = "SPIRAL_NODE_CACHE_BYTES"
LIMIT_BYTES: Final = 64 << 30
LOCKED_S: Final = 120.0  # how long a file may be locked by who removes it
_KNOWN: Final = 1 << 16  # files whose verified blocks a process remembers

Range = tuple[int, int]  # offset and length in bytes


@final
class NodeCache:
    """A folder of the node in which remote files lie. Any number of processes and threads use it together.

    Args:
        folder: on a local disk; by default ``$SPIRAL_NODE_CACHE``, else ``~/.cache/spiral/node``.
        limit_bytes: what it may take; by default ``$SPIRAL_NODE_CACHE_BYTES``, else 64 GiB, or half of what the disk has
            left if that is less.

    Raises:
        CacheError: the folder cannot be used, or the limit is no number.
    """

    def __init__(self, folder: str | Path | None = None, limit_bytes: int | None = None) -> None:
        self.folder = Path(folder or os.environ.get(FOLDER_ENV) or Path("~/.cache/spiral/node")).expanduser()
        if "://" in str(folder or os.environ.get(FOLDER_ENV) or ""):
            msg = f"${FOLDER_ENV}: a node cache lies on a disk of the node. Give a local folder"
            raise CacheError(msg)
        try:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            self.folder.mkdir(mode=0o700, exist_ok=True)  # bytes that only this user may have the rights to
            (self.folder / "files").mkdir(exist_ok=True)
        except OSError as error:
            raise refused(error, f"node cache {self.folder}", "cannot be made") from error
        said = limit_said(LIMIT_ENV, self.folder, taken(self.folder)) if limit_bytes is None else limit_bytes
        self.limit_bytes = said
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._files: dict[NodeKey, NodeFile] = {}
        self._known: OrderedDict[NodeKey, KnownBlocks] = OrderedDict()
        self.room = Room(self.folder, self.limit_bytes)

    def file_of(self, key: NodeKey) -> NodeFile:
        """Return a file as this process has it open; the caller releases it.

        Raises:
            CacheError: it is being removed for too long.
            OSError: it cannot be made.
        """
        if self._pid != os.getpid():  # the parent's locks do not exist here; what it holds stays held
            self._begin()
        with self._lock:
            file = self._files.get(key)
            if file is not None and file.retained():
                return file
            known = self._known.pop(key, None) or KnownBlocks(key.blocks)
            self._known[key] = known
            if len(self._known) > _KNOWN:
                self._known.popitem(last=False)
            file = self._files[key] = NodeFile(self.folder, key, known, LOCKED_S, self._let_go)
            return file

    def _let_go(self, file: NodeFile) -> None:
        if self._files.get(file.key) is file:
            self._files.pop(file.key, None)
        if file.grew:
            self.room.trim()

    def files(self) -> list[NodeFileFacts]:
        """Return what lies here, what was used last first."""
        return self.room.files()

    def clear(self, older_than_s: float = 0.0) -> tuple[int, int]:
        """Remove what nobody holds and nobody used for some time; how many files went, and their bytes."""
        return self.room.clear(older_than_s)


def limit_said(variable: str, folder: Path, taken_bytes: int) -> int:
    """Return how many bytes a folder may take, by a variable of the environment; by default, half of what the disk has left.

    Args:
        variable: its name.
        folder: where it lies.
        taken_bytes: what it takes now.

    Raises:
        CacheError: the variable is no number.
    """
    said = os.environ.get(variable)
    if not said:
        disk = os.statvfs(folder)
        return min(LIMIT_BYTES, (disk.f_bavail * disk.f_frsize + taken_bytes) // 2)
    if not said.isdecimal() or not int(said):
        msg = f"${variable}={said!r}: it would have to be a number of bytes, such as {LIMIT_BYTES}. Correct it"
        raise CacheError(msg)
    return int(said)


def joined_blocks(key: NodeKey, ranges: Sequence[Range]) -> NDArray[np.int64]:
    """Return the blocks that ranges of a file lie in, ascending.

    Raises:
        CacheError: the file ends before.
    """
    for offset, length in ranges:
        if offset < 0 or length < 0 or offset + length > key.size:
            request = f"{length:,} from byte {offset:,} on were asked for. Ask for what it has"
            msg = f"{key}: it has {key.size:,} bytes; {request}"
            raise CacheError(msg)
    wanted = [(offset // BLOCK, -(-(offset + length) // BLOCK)) for offset, length in ranges if length]
    if len(wanted) == 1:
        return np.arange(*wanted[0], dtype=np.int64)
    blocks = [np.arange(first, stop, dtype=np.int64) for first, stop in wanted]
    return np.unique(np.concatenate(blocks)) if blocks else np.empty(0, np.int64)


OFF: Final = "off"
_OPEN: Final[dict[tuple[str, str], NodeCache | None]] = {}
_SAID: Final[set[str]] = set()
_LOCK: Final = threading.Lock()


def working_root() -> Path:
    """Return the folder of this machine for what is worked on: that of the node cache lies in it."""
    node = os.environ.get(FOLDER_ENV)
    return Path(node).expanduser().absolute().parent if node and node != OFF else Path("~/.cache/spiral").expanduser()


def node_cache() -> NodeCache | None:
    """Return the node cache that remote bytes are kept in; None where it is switched off, or cannot be written."""
    said = os.environ.get(FOLDER_ENV, ""), os.environ.get(LIMIT_ENV, "")
    if said[0] == OFF or not hasattr(fcntl, "F_OFD_SETLK"):  # which Linux alone has
        return None
    with _LOCK:
        if said not in _OPEN:
            _OPEN[said] = _opened()
        return _OPEN[said]


def _opened() -> NodeCache | None:
    try:
        cache = NodeCache()
        probe = cache.folder / "files" / f".{os.getpid()}"
        try:
            probe.touch()
            probe.unlink()
        except OSError as error:
            msg = f"node cache {cache.folder}: {error.strerror}"
            raise CacheError(msg) from None
    except CacheError as error:
        tell(str(error))
        return None
    return cache


def tell(fault: str) -> None:
    """Warn once that remote bytes are not kept, and why."""
    if fault in _SAID:
        return
    _SAID.add(fault)
    msg = f"{fault}. Bytes of object stores are read again each time; ${FOLDER_ENV}={OFF} says that this is meant"
    warn(msg)
