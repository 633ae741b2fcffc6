"""The cache kind of video indexes: where the frames of a file lie, so that no stream probes the file again.

The payload of a row is its file's `VideoIndex`, or, in a relation that names segments, the part of it that the row's
segment needs. Facts about the file that statistics and plans use are stored next to it. Rows that name one file are
probed once (`probes`). Cost: one pass over each file, 2 ms and 15 us per frame; of an
MP4 on an object store one or two requests.
"""

from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar, Final, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.cache.fingerprint import index_facts
from spiral_stream.cache.kinds.kind import Kind, Rows
from spiral_stream.cache.kinds.probes import probed
from spiral_stream.decoders.video.frame_selection import ClipSegment, segment_of
from spiral_stream.decoders.video.video_index import VideoIndex
from spiral_stream.errors import DataError, SourceError
from spiral_stream.plan.fields.clips import TIMES
from spiral_stream.sources.references.objects import names_objects
from spiral_stream.sources.references.policy import Reach, reach_of
from spiral_stream.sources.references.ranged import locate
from spiral_stream.storage.faults import NotThereError
from spiral_stream.threads import Workers, thread_share

NARROW: Final = ("frames", "duration_ms", "height", "width", "milli_fps", "key_distance", "rotation", "segment_frames")
TOGETHER: Final = 16  # objects that are looked at
_MOST: Final = np.iinfo(np.int32).max


@final
@dataclass(frozen=True, slots=True)
class IndexKind(Kind):
    """One video column of one relation: where the frames of its files lie."""

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

    @property
    def title(self) -> str:
        return "originals; video index"

    def facts(self) -> dict[str, object]:
        return index_facts(self.relation, self.column, len(NARROW), timed=self.timed)

    def keep_rows(self, table: pa.Table, base: Reach | str) -> Rows:
        """Make the indexes of P references, and the facts of their files; see `Kind.keep_rows`.

        The facts, int32 [P] each, 0 where refused: ``frames`` and ``duration_ms`` of the file, ``height`` and ``width``
        upright, ``milli_fps`` (frames in 1,000 s), ``key_distance`` (most frames between key frames), ``rotation``
        (degrees clockwise) and ``segment_frames``. A row whose file is not there is refused too: streams look again.
        If a file has to be demuxed, the first row that names it holds the index and the others hold nothing.
        """
        count = len(table)
        sizes = np.zeros(count, np.int64)
        narrow_KP = np.zeros((len(NARROW), count), np.int32)
        payloads: list[bytes] = []
        refused: dict[int, str] = {}
        source_bytes = 0
        self._look_together(table, base)
        uncut: set[int] = set()  # stamps of files whose index cannot be cut, and which an earlier row holds
        for at in range(count):  # 0.1 ms per row if the file is known, else 2 ms and more
            located = None
            try:
                located = locate(table[self.column].slice(at, 1), base)[0]
                index, read = probed(located)
                source_bytes += located.size if read else 0
                segment = self._segment(index, table, at)
                payload = b"" if index.stamp in uncut else self._payload(index, segment)
            except SourceError as error:
                gone = isinstance(error.__cause__, FileNotFoundError) or isinstance(error.__context__, NotThereError)
                if not isinstance(error, DataError) and not gone and not (located and located.is_gone()):
                    raise
                refused[at] = str(error)
                continue
            if self.timed and not index.direct:
                uncut.add(index.stamp)
            payloads.append(payload)
            sizes[at] = len(payload)
            narrow_KP[:, at] = [*_facts(index), segment.frames]
        narrow = dict(zip(NARROW, narrow_KP, strict=True))
        return Rows(b"".join(payloads), sizes, refused, narrow, source_bytes)

    def _look_together(self, table: pa.Table, base: Reach | str) -> None:
        """Index objects of stores many at a time: each costs a round trip or two. What fails is asked for again alone."""
        if not names_objects(table[self.column], reach_of(base)):
            return

        def look(at: int) -> None:
            with suppress(SourceError):
                probed(locate(table[self.column].slice(at, 1), base)[0])

        with Workers(thread_share().waiting(TOGETHER), "spiral-index") as pool:
            list(pool.map(look, range(len(table))))

    def _payload(self, index: VideoIndex, segment: ClipSegment) -> bytes:
        return (index.within(segment) if self.timed else index).to_bytes()

    def _segment(self, index: VideoIndex, table: pa.Table, at: int) -> ClipSegment:
        start, duration = (table[name][at].as_py() for name in TIMES) if self.timed else (None, None)
        return segment_of(index.times_F, index.duration, start, duration)


def _facts(index: VideoIndex) -> NDArray[np.int64]:
    """The facts of an index's file, in the order of `BESIDE`."""
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
