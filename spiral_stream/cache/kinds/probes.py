"""The video indexes that this process has probed, so that rows and streams that name one file probe it once.

An index is remembered under what was named and the file's stamp, so a file that changed is probed again.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from functools import cache
from typing import Final, final

from spiral_stream.decoders.video.probe import probe
from spiral_stream.decoders.video.video_index import VideoIndex
from spiral_stream.errors import DataError, SpiralError, anew, without_values
from spiral_stream.sources.references.ranged import Located

REMEMBERED_BYTES: Final = 64 << 20  # of indexes: about 18 hours of video at 30 frames per second
AHEAD_BYTES: Final = 8 << 20  # of an object, where it is read from end to end
_LEAST_BYTES: Final = 1024  # counted for a file, however small its index is

Key = tuple[str, int, int, int]


@final
class Probes:
    """The indexes of files that were probed; the least recently used go first. Thread-safe.

    A file that several threads ask for at once is probed by the first of them; the others wait. Bad bytes are
    remembered like an index, as they stay bad; a failure of storage is not.
    """

    def __init__(self, budget_bytes: int = REMEMBERED_BYTES) -> None:
        self._budget_bytes, self._held_bytes = budget_bytes, 0
        self._lock = threading.Lock()
        self._known: OrderedDict[Key, VideoIndex | DataError] = OrderedDict()
        self._running: dict[Key, Future[VideoIndex]] = {}

    def index_of(
        self, located: Located, probe: Callable[[Located, int], VideoIndex], stamp: int | None = None
    ) -> tuple[VideoIndex, bool]:
        """Return the index of a file, and whether it was probed for this call.

        Args:
            located: the file.
            probe: makes its index.
            stamp: what it is remembered under, by default `Located.stamp`.

        Raises:
            DataError: see `decoders.video.probe.probe`.
            SourceError: it cannot be read.
        """
        stamp = located.stamp() if stamp is None else stamp
        key = (*located.key, stamp)
        with self._lock:
            known = self._known.get(key)
            if known is not None:
                self._known.move_to_end(key)
                return _given(known), False
            running = self._running.get(key)
            mine = None if running is not None else self._running.setdefault(key, Future())
        if running is not None:
            failed = running.exception()
            return _given(failed if isinstance(failed, SpiralError) else running.result()), False
        assert mine is not None
        return self._probed(key, mine, lambda: probe(located, stamp)), True

    def _probed(self, key: Key, mine: Future[VideoIndex], make: Callable[[], VideoIndex]) -> VideoIndex:
        try:
            index = make()
        except BaseException as error:
            self._settle(key, anew(error) if isinstance(error, DataError) else None)
            mine.set_exception(anew(error) if isinstance(error, SpiralError) else without_values(error))
            del mine  # the error keeps this frame
            raise
        self._settle(key, index)
        mine.set_result(index)
        return index

    def _settle(self, key: Key, made: VideoIndex | DataError | None) -> None:
        with self._lock:
            del self._running[key]
            if made is None:
                return
            self._known[key] = made
            self._held_bytes += _bytes_of(made)
            while self._held_bytes > self._budget_bytes and len(self._known) > 1:
                self._held_bytes -= _bytes_of(self._known.popitem(last=False)[1])


def _given(known: VideoIndex | SpiralError) -> VideoIndex:
    if isinstance(known, SpiralError):
        raise anew(known)
    return known


def _bytes_of(known: VideoIndex | DataError) -> int:
    if isinstance(known, DataError):
        return _LEAST_BYTES
    return _LEAST_BYTES + 12 * len(known.times_F) + 14 * len(known.keys_P) + len(known.extradata)


@cache
def of_process() -> Probes:
    """Return the memory that all streams of this process share, so that each file is probed once."""
    return Probes()


def index_of(located: Located) -> VideoIndex:
    """Return the index of a file: remembered, or probed now.

    Raises:
        DataError: see `decoders.video.probe.probe`.
        SourceError: it cannot be read.
    """
    return probed(located)[0]


def complete_index_of(located: Located) -> VideoIndex:
    """Return the index of an object whose packets were all read, as those of a local file are; see `index_of`."""
    return of_process().index_of(located, _probe_all, located.stamp() ^ 1)[0]


def probed(located: Located) -> tuple[VideoIndex, bool]:
    """Return the index of a file, and whether it was probed for this call; see `index_of`."""
    return of_process().index_of(located, _probe)


def _probe(located: Located, stamp: int) -> VideoIndex:
    if located.is_remote:
        return probe(_Ahead(located).read, located.size, located.name, stamp, headers=True)
    return probe(located.read, located.size, located.name, stamp)


def _probe_all(located: Located, stamp: int) -> VideoIndex:
    return probe(_Ahead(located).read, located.size, located.name, stamp)


@final
class _Ahead:
    """An object that is mostly read forward: what follows comes with the same request once two reads follow each other."""

    def __init__(self, located: Located) -> None:
        self._located, self._next = located, -1
        self._start, self._data = 0, memoryview(b"")

    def read(self, offset: int, length: int) -> memoryview:
        """Bytes by offset; see `Located.read`."""
        if not self._start <= offset <= offset + length <= self._start + len(self._data):
            ahead = AHEAD_BYTES if offset == self._next else 0
            count = min(max(length, ahead), self._located.size - offset)
            self._start, self._data = offset, self._located.read(offset, max(count, length))
        self._next = offset + length
        return self._data[offset - self._start : offset - self._start + length]
