"""Read the bytes of some packets of a video file.

If packets lie in one piece in the file (`VideoIndex.direct`), they are read by offset. Packets near each other are read
together, with the unwanted bytes between them, since a read costs about 3 us in addition to its bytes. Otherwise
(MPEG-TS) the file is demuxed: from near the first packet, or from the start of the file, up to the last packet. Packets
are counted, and their sizes compared with the index.
"""

from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import chain
from typing import Final

import av
import numpy as np
from numpy.typing import NDArray

from spiral_stream.decoders.video.demuxed import STILL, DemuxedFile
from spiral_stream.decoders.video.video_index import VideoIndex
from spiral_stream.errors import DataError, anew

# K packets

Int = NDArray[np.int64]
Read = Callable[[int, int], memoryview]  # offset, length

GAP: Final = 1 << 16  # bytes between two packets that are read along rather than skipped
NEAR: Final = 256  # packets that are passed over rather than sought
_EARLIER: Final = 500_000  # us before a frame's time to which a demuxer is sent: decode order runs ahead of it
PROBE: Final = 1 << 18  # bytes that a demuxer may read to know its streams, instead of 5 MB
BLOCK: Final = 1 << 20  # bytes that the demuxer asks for at once


def ranges_of(index: VideoIndex, packets: Int) -> list[tuple[int, int]]:
    """Return the ranges (offset, length) that `read_packets` reads."""
    begin, end, _, first = _reads(index, packets)
    tail = np.maximum.reduceat(end, first)
    return [(int(a), int(b - a)) for a, b in zip(begin[first], tail, strict=True)]


def _reads(index: VideoIndex, packets: Int) -> tuple[Int, Int, Int, Int]:
    """Where packets begin and end, sorted; the piece that each is read with; and the first packet of each piece."""
    order = np.argsort(index.offsets_P[packets], kind="stable")
    begin = index.offsets_P[packets][order]
    end = begin + index.sizes_P[packets][order]
    far = np.concatenate([[True], begin[1:] - np.maximum.accumulate(end)[:-1] > GAP])
    return begin, end, np.cumsum(far) - 1, np.flatnonzero(far)


def read_packets(index: VideoIndex, read: Read, packets: Int) -> list[memoryview]:
    """The bytes of packets [K] that lie in the file as they are; near ones are read together.

    Raises:
        SourceError: from ``read``.
    """
    order = np.argsort(index.offsets_P[packets], kind="stable")
    begin, end, piece, first = _reads(index, packets)
    pieces = [read(*each) for each in ranges_of(index, packets)]
    inside = begin - begin[first][piece]
    found: list[memoryview] = [memoryview(b"")] * len(packets)
    sizes = (end - begin).tolist()
    for packet, k, at, size in zip(order.tolist(), piece.tolist(), inside.tolist(), sizes, strict=True):
        found[packet] = pieces[k][at : at + size]
    return found


class _BlockFile(DemuxedFile):
    """The bytes as they are asked for, in libavformat's own blocks."""

    def __init__(self, read: Read, size: int) -> None:
        super().__init__(size)
        self._read = read

    def at(self, offset: int, length: int) -> memoryview:
        length = max(0, min(length, self._size - offset))
        return self._read(offset, length) if length else memoryview(b"")


def demux_packets(index: VideoIndex, read: Read, size: int, packets: Int) -> list[memoryview]:
    """The bytes of packets [K], ascending, that only a demuxer finds.

    Raises:
        DataError: it does not find them as the index says.
        SourceError: from ``read``.
    """
    due = dict(zip(packets.tolist(), index.sizes_P[packets].tolist(), strict=True))
    for seek in (True, False) if packets[0] > NEAR else (False,):
        file = _BlockFile(read, size)
        try:
            found = _demuxed(index, file, _format(bytes(read(0, min(size, 4)))), due, seek)
        except (av.error.FFmpegError, StopIteration):
            found = {}
        if file.failed is not None:
            raise anew(file.failed)
        if all(len(found.get(packet, b"")) == length for packet, length in due.items()):
            return list(found.values())
    msg = f"video: the demuxer does not find packets {packets[0]} to {packets[-1]} as the index says. Index the file again"
    raise DataError(msg)


def _demuxed(index: VideoIndex, file: _BlockFile, kind: str, due: dict[int, int], seek: bool) -> dict[int, memoryview]:
    """Those of the packets that are found on one way, from the first or from the file's start, to the last."""
    first, last = min(due), max(due)
    options = {"probesize": str(PROBE)} if seek else {}
    with av.open(file, format=kind, buffer_size=BLOCK, options=options) as container:
        stream = next(s for s in container.streams.video if not int(s.disposition) & STILL)
        packets: Iterator[av.Packet] = (packet for packet in container.demux(stream) if packet.size)
        number = 0
        if seek:
            frame = np.flatnonzero(index.packets_F == first)
            before = Fraction(int(index.times_F[frame].max(initial=0)) - _EARLIER, 1_000_000) / stream.time_base
            container.seek(round(before) + (stream.start_time or 0), stream=stream)
            reached = next(packets)
            candidates = np.flatnonzero(index.offsets_P == reached.pos)
            if len(candidates) != 1:
                return {}  # a place that the index does not know
            number, packets = int(candidates[0]), chain([reached], packets)
        counted = zip(range(number, last + 1), packets, strict=False)
        return {at: memoryview(bytes(packet)) for at, packet in counted if at in due}


def _format(head: bytes) -> str:
    """The demuxer for a file's first bytes; never one that follows names to other files."""
    if head == b"\x1a\x45\xdf\xa3":
        return "matroska"
    if head == b"FLV\x01":
        return "flv"
    return "mpegts" if head[:1] == b"G" else "mov"
