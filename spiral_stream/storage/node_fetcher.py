"""Files fetched before they are asked for, in the order in which a run will ask.

One thread goes through the order and stays a number of bytes ahead of what was taken; others fetch, several files at a
time. What was fetched is held until it is taken, so nothing goes again before it is used. An error is kept, and raised
where the file is asked for. The order is whatever the caller gives: one that goes on into the next epoch is fetched from
there before this one ends.
"""

import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, final

from spiral_stream.errors import CacheError, StreamError
from spiral_stream.storage.node_cache import HeldNodeFile, NodeCache, Range
from spiral_stream.storage.node_download import Download
from spiral_stream.storage.node_files import NodeKey
from spiral_stream.threads import CLOSE_TIMEOUT_S, Owner, OwnThread, Workers, doing

AHEAD_BYTES: Final = 1 << 30
FILES: Final = 32  # fetched at a time
_LOOK_S: Final = 0.1


@final
@dataclass(frozen=True, slots=True)
class Want:
    """What a run will ask for.

    Args:
        key: which file.
        download: gives bytes of it; see `NodeCache.open`.
        ranges: offsets and lengths; by default the whole file.
    """

    key: NodeKey
    download: Download
    ranges: Sequence[Range] | None = None

    @property
    def bytes(self) -> int:
        """How many bytes that is."""
        return self.key.size if self.ranges is None else sum(length for _, length in self.ranges)


@final
class Fetcher(Owner):
    """Runs ahead of an order.

    Args:
        cache: where files go.
        order: what will be asked for, in that order; read by a thread of the fetcher.
        ahead_bytes: how many bytes may be fetched and not yet taken; at most half of the cache's limit. One file that is
            larger is fetched alone.
        files: how many are fetched at a time.
    """

    def __init__(
        self, cache: NodeCache, order: Iterable[Want], *, ahead_bytes: int = AHEAD_BYTES, files: int = FILES
    ) -> None:
        self._cache, self._order = cache, order
        self._most = min(ahead_bytes, cache.limit_bytes // 2)
        self._ahead_bytes = 0
        self._ahead: dict[NodeKey, deque[tuple[Want, Future[HeldNodeFile]]]] = {}
        self._moved = threading.Condition()
        self._stopping = False
        self._error: BaseException | None = None
        self._workers = Workers(files, "node-fetch")
        self._thread = OwnThread(self._run, "node-fetch-ahead")
        super().__init__()
        self._thread.start()

    @property
    def threads(self) -> Sequence[OwnThread]:
        """Its own thread."""
        return (self._thread,)

    @property
    def ahead_bytes(self) -> int:
        """How many bytes are fetched, or on their way, and not yet taken."""
        return self._ahead_bytes

    def take(self, want: Want) -> HeldNodeFile:
        """Return a file that is asked for now: the one fetched ahead, else as `NodeCache.open` does.

        Raises:
            CacheError: it cannot be kept here.
            SourceError: it cannot be fetched.
            StreamError: the fetcher is closed, or its order raised an error.
        """
        with self._moved:
            self._need_open()
            queue = self._ahead.get(want.key)
            found = next((each for each in queue or () if each[0].ranges == want.ranges), None)
            if queue is not None and found is not None:
                queue.remove(found)
                if not queue:
                    del self._ahead[want.key]
        if found is None:
            return self._cache.open(want.key, want.download, want.ranges)
        try:
            return found[1].result()
        except CancelledError:
            msg = f"{want.key}: the fetcher was closed. Open another one"
            raise StreamError(msg) from None
        finally:
            with self._moved:
                self._ahead_bytes -= want.bytes
                self._moved.notify_all()

    def drop(self, want: Want) -> None:
        """Say that something in the order will not be asked for."""
        with suppress(CacheError, OSError):
            self.take(want).release()

    def _need_open(self) -> None:
        if self._stopping:
            msg = "node fetcher: it was closed. Open another one"
            raise StreamError(msg)
        if self._error is not None:
            msg = f"node fetcher: its order failed ({type(self._error).__name__}: {self._error}). Correct the order"
            raise StreamError(msg) from self._error

    def _run(self) -> None:
        try:
            for want in self._order:
                with self._moved:
                    with doing(f"waiting for room to fetch {want.key}"):
                        while not self._stopping and self._ahead_bytes and self._ahead_bytes + want.bytes > self._most:
                            self._moved.wait(_LOOK_S)
                    if self._stopping:
                        return
                    self._ahead_bytes += want.bytes
                    future = self._workers.submit(self._cache.open, want.key, want.download, want.ranges)
                    self._ahead.setdefault(want.key, deque()).append((want, future))
        except Exception as error:  # noqa: BLE001  raised by the next `take`
            self._error = error

    def stop(self) -> None:
        """Let its threads end."""
        with self._moved:
            self._stopping = True
            self._moved.notify_all()

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """End its threads, and give back what was fetched and not taken."""
        until = time.monotonic() + timeout_s
        self.end(timeout_s)
        self._workers.close(max(0.0, until - time.monotonic()), where="node fetcher")
        with self._moved:
            left = [future for queue in self._ahead.values() for _, future in queue]
            self._ahead.clear()
            self._ahead_bytes = 0
        for future in left:
            future.add_done_callback(_released)

    def __enter__(self) -> "Fetcher":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _released(future: "Future[HeldNodeFile]") -> None:
    if not future.cancelled() and future.exception() is None:
        future.result().release()
