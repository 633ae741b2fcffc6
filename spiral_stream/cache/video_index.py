"""Where the frames of a relation's videos lie, kept beside it so that no stream probes a file again.

The kind (`kind.Kind`) of video indexes: the payload of a row is its file's `VideoIndex`, or, of a relation that
names segments, the part of it that the row's segment needs. Beside it stand what statistics and plans ask of the
file. Rows that name one file are probed once: `index_of` remembers what this process has probed, under what was
named and its stamp, so a file that changed is probed again. Cost: one pass over each file, 2 ms and 15 us a frame.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import ClassVar, Final, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.cache.kind import Kind, Rows
from spiral_stream.decoders.selection import ClipSegment, segment_of
from spiral_stream.decoders.video_index import VERSION, VideoIndex, probe
from spiral_stream.errors import DataError, SourceError
from spiral_stream.plan.clips import TIMES
from spiral_stream.sources.located import Located, locate
from spiral_stream.sources.reach import Reach

BESIDE: Final = ("frames", "duration_ms", "height", "width", "milli_fps", "key_distance", "rotation", "segment_frames")
REMEMBERED_BYTES: Final = 64 << 20  # of indexes: about 18 hours of video at 30 frames a second
_LEAST_BYTES: Final = 1024  # of a remembered file, whatever its index takes
_MOST: Final = np.iinfo(np.int32).max

Key = tuple[str, int, int, int]


@final
class Probes:
    """What has been probed, the latest used first to stay. Thread-safe.

    A file that several threads ask for at once is probed by the first of them; the others wait. Bad bytes are
    remembered like an index, as they stay bad; a failure of storage is not.
    """

    def __init__(self, budget_bytes: int = REMEMBERED_BYTES) -> None:
        self._budget_bytes, self._held_bytes = budget_bytes, 0
        self._lock = threading.Lock()
        self._known: OrderedDict[Key, VideoIndex | DataError] = OrderedDict()
        self._running: dict[Key, Future[VideoIndex]] = {}

    def index_of(self, located: Located, probe: Callable[[Located, int], VideoIndex]) -> tuple[VideoIndex, bool]:
        """The index of a file, and whether it was probed for this call.

        Raises:
            DataError: see `decoders.video_index.probe`.
            SourceError: it cannot be read.
        """
        stamp = located.stamp()
        key = (*located.key, stamp)
        with self._lock:
            known = self._known.get(key)
            if known is not None:
                self._known.move_to_end(key)
                return _given(known), False
            running = self._running.get(key)
            mine = None if running is not None else self._running.setdefault(key, Future())
        if running is not None:
            return _given(_waited(running)), False
        assert mine is not None
        return self._probed(key, mine, lambda: probe(located, stamp)), True

    def _probed(self, key: Key, mine: Future[VideoIndex], make: Callable[[], VideoIndex]) -> VideoIndex:
        try:
            index = make()
        except BaseException as error:
            self._settle(key, error if isinstance(error, DataError) else None)
            mine.set_exception(error)
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


def _waited(running: Future[VideoIndex]) -> VideoIndex | DataError:
    try:
        return running.result()
    except DataError as error:
        return error


def _given(known: VideoIndex | DataError) -> VideoIndex:
    if isinstance(known, DataError):
        raise DataError(str(known)) from known  # one of its own: a caller may add to it
    return known


def _bytes_of(known: VideoIndex | DataError) -> int:
    if isinstance(known, DataError):
        return _LEAST_BYTES
    return _LEAST_BYTES + 12 * len(known.times_F) + 14 * len(known.keys_P) + len(known.extradata)


_PROBES: Final = Probes()  # of the process: every feed of every stream that reads a file shares one look at it


def index_of(located: Located) -> VideoIndex:
    """The index of a file: remembered, else probed.

    Raises:
        DataError: see `decoders.video_index.probe`.
        SourceError: it cannot be read.
    """
    return _PROBES.index_of(located, _probe)[0]


def _probe(located: Located, stamp: int) -> VideoIndex:
    return probe(located.read, located.size, located.name, stamp)


@final
@dataclass(frozen=True, slots=True)
class IndexKind(Kind):
    """Where the frames of one column of videos lie."""

    RUN_BYTES: ClassVar[int] = 64 << 20
    RUN_ROWS: ClassVar[int] = 64

    relation: str
    column: str
    timed: bool = False  # the relation names segments: keep of each index what the row's segment needs

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column, *(TIMES if self.timed else ()))

    @property
    def form(self) -> str:
        return "video index"

    def facts(self) -> dict[str, object]:
        facts: dict[str, object] = {
            "kind": ["video index", VERSION, len(BESIDE)],
            "relation": self.relation,
            "column": self.column,
        }
        return {**facts, "timed": True} if self.timed else facts

    def keep_rows(self, table: pa.Table, base: Reach | str) -> Rows:
        """The indexes of P references, and beside each what the whole file is like; see `Kind.keep_rows`.

        Beside, int32 [P] each, 0 where refused: ``frames`` and ``duration_ms`` of the file, ``height`` and ``width``
        upright, ``milli_fps`` (frames in 1,000 s), ``key_distance`` (most frames between key frames), ``rotation``
        (degrees clockwise) and ``segment_frames``. A row whose file is not there is refused too: streams look again.
        Of a file that has to be demuxed the first of the rows that name it holds the index, and the others nothing.
        """
        count = len(table)
        sizes = np.zeros(count, np.int64)
        beside_KP = np.zeros((len(BESIDE), count), np.int32)
        payloads: list[bytes] = []
        refused: dict[int, str] = {}
        source_bytes = 0
        whole: set[int] = set()  # stamps of files whose index cannot be cut, and which an earlier row holds
        for at in range(count):  # 0.1 ms a row of a file that is known, 2 ms and more of another
            try:
                located = locate(table[self.column].slice(at, 1), base)[0]
                index, read = _PROBES.index_of(located, _probe)
                source_bytes += located.size if read else 0
                segment = self._segment(index, table, at)
                payload = b"" if index.stamp in whole else self._payload(index, segment)
            except SourceError as error:
                if not isinstance(error, DataError) and not isinstance(error.__cause__, FileNotFoundError):
                    raise
                refused[at] = str(error)
                continue
            if self.timed and not index.direct:
                whole.add(index.stamp)
            payloads.append(payload)
            sizes[at] = len(payload)
            beside_KP[:, at] = [*_facts(index), segment.frames]
        beside = dict(zip(BESIDE, beside_KP, strict=True))
        return Rows(b"".join(payloads), sizes, refused, beside, source_bytes)

    def _payload(self, index: VideoIndex, segment: ClipSegment) -> bytes:
        return (index.within(segment) if self.timed else index).to_bytes()

    def _segment(self, index: VideoIndex, table: pa.Table, at: int) -> ClipSegment:
        start, duration = (table[name][at].as_py() for name in TIMES) if self.timed else (None, None)
        return segment_of(index.times_F, index.duration, start, duration)


def _facts(index: VideoIndex) -> NDArray[np.int64]:
    """What stands beside an index of its file, in the order of `BESIDE`."""
    height, width = index.displayed
    rate = round(min(index.fps * 1_000, _MOST))
    facts = (
        len(index.times_F),
        round(index.duration / 1_000),
        height,
        width,
        rate,
        index.key_distance[1],
        index.rotation,
    )
    return np.minimum(np.array(facts, np.int64), _MOST)
