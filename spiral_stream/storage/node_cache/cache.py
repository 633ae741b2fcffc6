"""The node cache: remote files on a disk of this node, each byte fetched once for all of its processes.

`node_cache` opens the one that the environment names. Files are evicted when room is needed, least recently used first.
Nothing here knows an object store: `node_cache.store` fetches.
"""

import fcntl
import os
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Final, final

from spiral_stream.errors import CacheError, warn
from spiral_stream.storage.node_cache.eviction import NodeFileFacts, Room, taken
from spiral_stream.storage.node_cache.file import KnownPages, NodeFile, NodeKey, refused

FOLDER_ENV: Final = "SPIRAL_NODE_CACHE"
LIMIT_ENV: Final = "SPIRAL_NODE_CACHE_BYTES"
LIMIT_BYTES: Final = 64 << 30
_KNOWN: Final = 1 << 16  # files whose verified pages a process remembers


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
        self.room = Room(self.folder, said)
        self._pid, self._lock = os.getpid(), threading.Lock()
        self._known: OrderedDict[NodeKey, KnownPages] = OrderedDict()

    def opened(self, key: NodeKey, *, make: bool = False) -> NodeFile:
        """Open a file; close it.

        Args:
            key: of the remote file.
            make: whether it is made where it is not there.

        Raises:
            FileNotFoundError: it is not there, and is not to be made.
            OSError: it cannot be opened or made.
        """
        if self._pid != os.getpid():  # another thread of the parent may have had the lock
            self._pid, self._lock = os.getpid(), threading.Lock()
        with self._lock:
            known = self._known.pop(key, None) or KnownPages(key.pages)
            self._known[key] = known
            if len(self._known) > _KNOWN:
                self._known.popitem(last=False)
        return NodeFile(self.folder, key, known, make=make)

    def files(self) -> list[NodeFileFacts]:
        """Return what lies here, what was used last first."""
        return self.room.files()

    def clear(self, older_than_s: float = 0.0) -> tuple[int, int]:
        """Remove what nobody used for some time; how many files went, and their bytes."""
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
