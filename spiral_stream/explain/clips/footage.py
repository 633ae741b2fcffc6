"""What decoding the clips of a stream costs, from the video index: no byte of a video is read.

Up to 65,536 surviving rows are looked up in the index. For at most 512 of these, spaced evenly, frames are chosen and
packets planned as a run would, so the over-read (frames decoded over frames kept) and the bytes to read follow the plan's
own rule. Evenly spread numbers stand in for random starts. Cost: 0.1 to 0.3 ms for each of the 512, and 0.3 us per row for
opening the index's shards.
"""

import ctypes
from dataclasses import dataclass, field
from typing import Final, final

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from spiral_stream.cache.store.reader import CachedShard
from spiral_stream.catalog.relation.reader import OpenRelation
from spiral_stream.decoders.video.frame_selection import segment_of
from spiral_stream.decoders.video.video import feed_plan
from spiral_stream.decoders.video.video_index import VideoIndex
from spiral_stream.errors import DataError
from spiral_stream.explain.shares import MOST_ROWS, spaced
from spiral_stream.explain.subject import Subject
from spiral_stream.expr import kind_of
from spiral_stream.plan.decoded import FRAME_COUNT
from spiral_stream.plan.fields.clips import TIMES
from spiral_stream.planner.columns.streams import StreamStage
from spiral_stream.runtime.fields.clips import ClipStage
from spiral_stream.runtime.fields.images import stored_rows
from spiral_stream.sampling.order import UInt64

PLANNED: Final = 512  # clips whose packets are planned
_GOLDEN: Final = 0.6180339887498949  # its multiples are spread evenly over [0, 1)

Int64 = NDArray[np.int64]
Stored = tuple[int, CachedShard, int]  # a row that is inspected, its shard, and its place there
# C clips that are planned


@final
@dataclass(eq=False, slots=True)
class Footage:
    """What is known of the clips of a field, over all streams."""

    total: int = 0  # rows that the plan keeps
    rows: int = 0  # rows inspected
    counted: int = 0  # inspected rows whose relation has a column frame_count
    too_few: int = 0  # of `counted`: short segments
    cached_rows: int = 0  # inspected rows in the clip cache
    cached_short: int = 0  # of `cached_rows`: short segments
    indexed: int = 0  # inspected rows in the video index
    planned: int = 0  # C
    short: int = 0  # of `planned`: short segments
    needed_frames: list[int] = field(default_factory=list)  # [C] distinct frames that each clip needs
    decoded: list[int] = field(default_factory=list)  # [C] frames to decode for them
    read: list[int] = field(default_factory=list)  # [C] bytes of their packets
    apart: list[int] = field(default_factory=list)  # [C] most frames from one key frame of its file to the next
    out_of_file: bool = False  # a planned clip's segment is not in its file
    refused: list[str] = field(default_factory=list)  # per refused row: why no clip can be made

    @property
    def known(self) -> int:
        """How many rows are known to be refused or not."""
        return max(self.cached_rows, self.indexed)

    @property
    def is_complete(self) -> bool:
        """Whether that is known of all rows: only planned clips show what is wrong with a segment."""
        return self.known == self.total and (not self.out_of_file or self.planned + len(self.refused) >= self.total)

    @property
    def over_read(self) -> float:
        """Frames decoded per frame kept."""
        return sum(self.decoded) / max(1, sum(self.needed_frames))


def footage(subject: Subject, clip: ClipStage) -> Footage:
    """Inspect the clips of one field."""
    out = Footage()
    streams = subject.stages.streams
    for k, stream in enumerate(streams):
        out.total += stream.selected.total
        rows, _ = spaced(stream.selected.total, max(1, MOST_ROWS // len(streams)))
        out.rows += len(rows)
        _count(out, stream, clip, rows)
        try:
            ordinals = clip.payloads[k].ordinals(rows)
        except DataError as error:  # a left join left rows without a video: the run will stop there, and say so
            out.refused.append(str(error))
            continue
        _look(out, clip, k, ordinals, max(1, PLANNED // len(streams)))
    return out


def _look(out: Footage, clip: ClipStage, k: int, ordinals: UInt64, most: int) -> None:
    """Inspect some rows of one stream in the clip cache and in the video index."""
    source, relation = clip.sources[k], clip.payloads[k].relation
    cache = None if source.frames is None else source.frames.store.open()
    index = source.index.store.open()
    for _, shard, at in stored_rows(relation, cache, ordinals):
        out.cached_rows += len(at)
        out.cached_short += int(np.count_nonzero(shard.narrow["short"][at]))
        out.refused += _reasons(shard, at)
    found: list[Stored] = []
    for indices, shard, at in stored_rows(relation, index, ordinals):
        out.indexed += len(at)
        found += [(at_index, shard, where) for at_index, where in zip(indices.tolist(), at.tolist(), strict=True)]
        out.refused += _reasons(shard, at) if cache is None else []
    chosen = [found[i] for i in np.unique(np.linspace(0, len(found) - 1, min(most, len(found))).astype(int))]
    _plan(out, clip, relation, ordinals, chosen)


def _reasons(shard: CachedShard, at: Int64) -> list[str]:
    """Why rows of a shard were refused."""
    if not shard.any_refused:
        return []
    return [reason for where in at.tolist() if (reason := shard.refused(where)) is not None]


def _count(out: Footage, stream: StreamStage, clip: ClipStage, rows: UInt64) -> None:
    """Count segments with too few frames by the relation's own column."""
    schema = stream.selected.columns.schema
    if FRAME_COUNT not in schema.names or kind_of(schema.field(FRAME_COUNT).type) != "int":
        return
    frames = pc.drop_null(stream.selected.columns.fetch(rows, [FRAME_COUNT])[FRAME_COUNT])
    out.counted += len(frames)
    out.too_few += int(pc.sum(pc.less(frames, clip.selection.need)).as_py() or 0)


def _plan(out: Footage, clip: ClipStage, relation: OpenRelation, ordinals: UInt64, chosen: list[Stored]) -> None:
    """Plan the decoding of some clips as a run would."""
    timed = set(TIMES) <= set(relation.schema.names) and bool(chosen)
    times = relation.fetch(ordinals[[index for index, _, _ in chosen]], list(TIMES)) if timed else None
    for number, (_, shard, where) in enumerate(chosen):  # clips, 0.1 to 0.3 ms each
        if shard.refused(where) is not None:
            continue
        start, duration = (None, None) if times is None else (times[name][number].as_py() for name in TIMES)
        try:
            _feed(out, clip, _index(shard, where), start, duration, (number * _GOLDEN) % 1)
        except DataError as error:
            out.refused.append(str(error))
            out.out_of_file = True
            continue
        out.apart.append(int(shard.narrow["key_distance"][where]))


def _index(shard: CachedShard, where: int) -> VideoIndex:
    addresses, sizes = shard.locate(np.array([where]))
    data = (ctypes.c_ubyte * int(sizes[0])).from_address(int(addresses[0]))
    return VideoIndex.from_bytes(memoryview(data).cast("B"))


def _feed(
    out: Footage, clip: ClipStage, index: VideoIndex, start: int | None, duration: int | None, draw: float
) -> None:
    """Plan the decoding of one clip as a run would."""
    segment = segment_of(index.times_F, index.duration, start, duration)
    frames, short = clip.selection.choose(index.times_F, segment, draw)
    wanted = np.unique(frames)
    feed = feed_plan(index, wanted)
    out.planned += 1
    out.short += short
    out.needed_frames.append(len(wanted))
    out.decoded.append(feed.decoded)
    out.read.append(int(index.sizes_P[feed.packets].sum()))


def first_reasons(reasons: list[str], most: int = 3) -> str:
    """Return the first distinct reasons, as text."""
    different = list(dict.fromkeys(reasons))
    more = f"; and {len(different) - most} other reasons" if len(different) > most else ""
    return "; ".join(different[:most]) + more
