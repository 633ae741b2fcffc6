"""The bytes that a clip needs of a video on an object store, fetched together before anything is decoded.

The index that boxes give (`decoders.video.header_file`) does not know which packets are disposable, and takes the container's
word for key packets. So packets are looked at when they come: what decoding starts at has to say that it can, else the
whole object is indexed as a local file is; disposable packets are left out of decoding. The frames are those of a local file.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.cache.kinds.probes import complete_index_of
from spiral_stream.decoders.limits import SampleLimits, need_frames
from spiral_stream.decoders.video.slices import length_bytes, slices_of
from spiral_stream.decoders.video.video import FramePackets, feed_plan
from spiral_stream.decoders.video.video_index import VideoIndex
from spiral_stream.errors import DataError
from spiral_stream.sources.references.ranged import Located

MOST_BYTES: Final = 1 << 28  # of a file that has to be demuxed: all of it is fetched for each clip
_ALONG: Final = 2  # times its limit that a clip may read before disposable packets are known

Int64 = NDArray[np.int64]
Read = Callable[[int, int], memoryview]  # offset, length
Choose = Callable[[VideoIndex], Int64]


@final
@dataclass(frozen=True, slots=True, eq=False)
class FetchedClip:
    """A clip that can be decoded without a wait."""

    index: VideoIndex
    fed: FramePackets  # what is decoded
    read: Read  # by offset in the file
    size: int  # bytes of the file


def clip_bytes(located: Located, index: VideoIndex, choose: Choose, limits: SampleLimits) -> FetchedClip:
    """Return what decoding some frames needs; of an object, with the bytes.

    Args:
        located: the file.
        index: its index.
        choose: gives the wanted frames, shape [U], by an index of the file.
        limits: of one clip.

    Raises:
        DataError: the clip asks for too much, or the file cannot be indexed.
        SourceError: it cannot be read.
    """
    wanted_U = choose(index)
    fed = feed_plan(index, wanted_U)
    if not located.is_remote:
        return FetchedClip(index, fed, located.read, located.size)
    held = _fetched(located, index, fed, limits)
    seen = _seen(index, fed, held) if index.direct else index
    if seen is None:
        index = complete_index_of(located)
        fed = feed_plan(index, choose(index))
        return FetchedClip(index, fed, _fetched(located, index, fed, limits).read, located.size)
    return FetchedClip(seen, feed_plan(seen, wanted_U), held.read, located.size)


@final
class _Held:
    """Ranges of a file that are there."""

    def __init__(self, located: Located, ranges: list[tuple[int, int]]) -> None:
        self._located = located
        starts = [start for start, _ in ranges]
        self._parts = list(zip(starts, located.read_all(ranges), strict=True))

    def read(self, offset: int, length: int) -> memoryview:
        for start, data in self._parts:
            if start <= offset and offset + length <= start + len(data):
                return data[offset - start : offset - start + length]
        return self._located.read(offset, length)


def _fetched(located: Located, index: VideoIndex, fed: FramePackets, limits: SampleLimits) -> _Held:
    if not index.direct:
        if located.size > MOST_BYTES:
            msg = (
                f"{located.name}: its packets do not lie in one piece, so each clip would fetch all of its "
                f"{located.size:,} bytes, more than {MOST_BYTES:,}. Put it into an MP4 (ffmpeg -i in -c copy out.mp4), "
                "or copy it to this machine"
            )
            raise DataError(msg)
        return _Held(located, [(0, located.size)])
    from spiral_stream.decoders.video.packets import ranges_of

    sizes = index.sizes_P[fed.packets].sum(dtype=np.int64)
    need_frames(0, int(sizes) // _ALONG, limits)
    return _Held(located, ranges_of(index, fed.packets))


def _seen(index: VideoIndex, fed: FramePackets, held: _Held) -> VideoIndex | None:
    """Return the index with what the packets say of themselves; None if they contradict it."""
    from spiral_stream.decoders.video.packets import read_packets

    prefix, starts = length_bytes(index.extradata), set(fed.starts.tolist())
    disposable_P = index.disposable_P.copy()
    for at, data in enumerate(read_packets(index, held.read, fed.packets)):  # 1 us per packet
        says = slices_of(bytes(data), prefix, key=at in starts)
        if not says.frame or (at in starts and not says.entry):
            return None
        disposable_P[fed.packets[at]] = says.disposable
    return replace(index, disposable_P=disposable_P)
