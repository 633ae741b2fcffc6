"""The node cache: remote files on a disk of this node, each byte fetched once for all of its processes.

A file is asked for by its key, whole or by ranges, with a function that gives bytes of it from where it lies. The answer
is held: until it is released its bytes stay where they are. What is held by nobody goes when room is needed, what was used
longest ago first. Nothing here knows an object store.
"""

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.errors import CacheError
from spiral_stream.storage.node_download import Download, Filling, NodeCounters, RequestLine
from spiral_stream.storage.node_files import BLOCK, NodeKey, refused
from spiral_stream.storage.node_open import KnownBlocks, NodeFile, need_whole
from spiral_stream.storage.node_room import NodeFileFacts, Room
from spiral_stream.threads import Workers

FOLDER_ENV: Final = "SPIRAL_NODE_CACHE"
LIMIT_ENV: Final = "SPIRAL_NODE_CACHE_BYTES"
LIMIT_BYTES: Final = 64 << 30
REQUESTS: Final = 64  # in flight
STALL_S: Final = 120.0  # how long nothing may come
_KNOWN: Final = 1 << 16  # files whose verified blocks a process remembers

Range = tuple[int, int]  # offset and length in bytes


@final
class HeldNodeFile:
    """A file, or ranges of it, that stay on this node until `release`, or until nothing refers to this."""

    def __init__(self, file: NodeFile) -> None:
        self._file: NodeFile | None = file

    def __enter__(self) -> "HeldNodeFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __del__(self) -> None:
        self.release()

    @property
    def path(self) -> Path:
        """Where it lies. Bytes outside of the ranges that were asked for may be zeros."""
        return self._open.path

    @property
    def handle(self) -> int:
        """Its descriptor, which is closed by `release`."""
        return self._open.handle

    @property
    def key(self) -> NodeKey:
        """Which file it is."""
        return self._open.key

    @property
    def _open(self) -> NodeFile:
        if self._file is None:
            msg = "node cache: the file was released. Ask for it again"
            raise CacheError(msg)
        return self._file

    def read(self, offset: int, length: int) -> bytes:
        """Return a copy of some bytes.

        Raises:
            CacheError: they were not asked for.
        """
        self._need(offset, length)
        return os.pread(self._open.handle, length, offset)

    def view(self, offset: int = 0, length: int | None = None) -> memoryview:
        """Return some bytes, mapped; by default all.

        Raises:
            CacheError: they were not asked for.
        """
        length = self._open.key.size - offset if length is None else length
        self._need(offset, length)
        return memoryview(self._open.mapped())[offset : offset + length] if length else memoryview(b"")

    def release(self) -> None:
        """Give it back; again does nothing."""
        file, self._file = self._file, None
        if file is not None:
            file.release()

    def _need(self, offset: int, length: int) -> None:
        file = self._open
        _need_inside(file.key, offset, length)
        if length and not file.is_verified(offset // BLOCK, -(-(offset + length) // BLOCK)):
            msg = f"{file.key}: bytes {offset:,} to {offset + length:,} were not asked for. Name them in ranges="
            raise CacheError(msg)


@final
class NodeCache:
    """A folder of the node in which remote files lie. Any number of processes and threads use it together.

    Args:
        folder: on a local disk; by default ``$SPIRAL_NODE_CACHE``, else ``~/.cache/spiral/node``.
        limit_bytes: what it may take; by default ``$SPIRAL_NODE_CACHE_BYTES``, else 64 GiB.
        requests: how many this process has in flight at most.
        stall_s: an ask fails if nothing comes for so long, nor to those it waits for.

    Raises:
        CacheError: the folder cannot be used, or the limit is no number.
    """

    def __init__(
        self,
        folder: str | Path | None = None,
        limit_bytes: int | None = None,
        *,
        requests: int = REQUESTS,
        stall_s: float = STALL_S,
    ) -> None:
        self.folder = Path(folder or os.environ.get(FOLDER_ENV) or Path("~/.cache/spiral/node")).expanduser()
        if "://" in str(folder or os.environ.get(FOLDER_ENV) or ""):
            msg = f"${FOLDER_ENV}: a node cache lies on a disk of the node. Give a local folder"
            raise CacheError(msg)
        self.limit_bytes = _limit() if limit_bytes is None else limit_bytes
        self._requests, self._stall_s = requests, stall_s
        try:
            (self.folder / "files").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise refused(error, f"node cache {self.folder}", "cannot be made") from error
        self.counters = NodeCounters()
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._files: dict[NodeKey, NodeFile] = {}
        self._known: OrderedDict[NodeKey, KnownBlocks] = OrderedDict()
        self.room = Room(self.folder, self.limit_bytes, lambda count: self.counters.add(evicted=count))
        self._line = RequestLine(
            Workers(self._requests, "node-cache"),
            threading.BoundedSemaphore(self._requests),
            threading.Condition(),
            threading.Event(),
            self.room,
            self.counters,
            self._stall_s,
        )

    def __enter__(self) -> "NodeCache":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End its requests. What is held stays held."""
        self._line.closing.set()
        if self._pid == os.getpid():
            self._line.workers.close(where="node cache")

    def open(self, key: NodeKey, download: Download, ranges: Sequence[Range] | None = None) -> HeldNodeFile:
        """Return a file, once all that was asked for is here.

        Args:
            key: which file.
            download: called as ``download(offset, length)``, also by other threads, and again where it fails; returns
                exactly these bytes, or an iterator of them.
            ranges: offsets and lengths; by default the whole file.

        Raises:
            CacheError: it cannot be kept here.
            DamageError: what is written here does not stay.
            SourceError: it cannot be fetched.
        """
        if ranges is None:
            need_whole(key, self.limit_bytes)
        wanted = _blocks(key, ranges)
        try:
            held = HeldNodeFile(self._file(key))
        except OSError as error:
            raise refused(error, f"{key}: the node cache {self.folder}", "cannot be used") from error
        try:
            self._complete(held._open, wanted, download)  # noqa: SLF001  of this room
        except BaseException:
            held.release()
            raise
        return held

    def _complete(self, file: NodeFile, wanted: Sequence[tuple[int, int]], download: Download) -> None:
        file.mend_size()
        file.stamp()
        if all(file.is_verified(first, stop) for first, stop in wanted):
            self.counters.add(hits=1)
            return
        blocks = _joined(wanted)
        damaged = len(file.known.damaged)
        missing = file.missing(blocks)
        if not len(missing):
            self.counters.add(hits=1)
            return
        since = time.monotonic()
        try:
            Filling(file, blocks, download, self._line).run(missing)
        finally:
            more = len(file.known.damaged) - damaged
            self.counters.add(wait_s=time.monotonic() - since, damaged=more)

    def _file(self, key: NodeKey) -> NodeFile:
        if self._pid != os.getpid():  # the parent's threads and locks do not exist here; what it holds stays held
            self.counters = NodeCounters()
            self._begin()
        with self._lock:
            file = self._files.get(key)
            if file is not None and file.retained():
                return file
            known = self._known.pop(key, None) or KnownBlocks(key.blocks)
            self._known[key] = known
            if len(self._known) > _KNOWN:
                self._known.popitem(last=False)
            file = self._files[key] = NodeFile(self.folder, key, known, self._stall_s, self._let_go)
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


def _limit() -> int:
    said = os.environ.get(LIMIT_ENV)
    if not said:
        return LIMIT_BYTES
    if not said.isdecimal() or not int(said):
        msg = f"${LIMIT_ENV}={said!r}: it would have to be a number of bytes, such as {LIMIT_BYTES}. Correct it"
        raise CacheError(msg)
    return int(said)


def _need_inside(key: NodeKey, offset: int, length: int) -> None:
    if offset < 0 or length < 0 or offset + length > key.size:
        msg = (
            f"{key}: it has {key.size:,} bytes; {length:,} from byte {offset:,} on were asked for. Ask for what it has"
        )
        raise CacheError(msg)


def _blocks(key: NodeKey, ranges: Sequence[Range] | None) -> list[tuple[int, int]]:
    """Return the first block, and the one after the last, of each range."""
    if ranges is None:
        return [(0, key.blocks)]
    for offset, length in ranges:
        _need_inside(key, offset, length)
    return [(offset // BLOCK, -(-(offset + length) // BLOCK)) for offset, length in ranges if length]


def _joined(wanted: Sequence[tuple[int, int]]) -> NDArray[np.int64]:
    if len(wanted) == 1:
        return np.arange(*wanted[0], dtype=np.int64)
    return np.unique(np.concatenate([np.arange(first, stop, dtype=np.int64) for first, stop in wanted]))
