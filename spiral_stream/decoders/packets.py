"""The bytes of some packets of a video file.

Where the index says that packets lie in the file as they are, they are read by offset: near ones together, the
unwanted ones between them along (a read costs about 3 us over its bytes). Else (MPEG-TS) the file is demuxed from
its start up to the last packet wanted, and packets are counted.
"""

from collections.abc import Callable
from typing import Final

import av
import numpy as np
from numpy.typing import NDArray

from spiral_stream.decoders.video_index import VideoIndex
from spiral_stream.errors import DataError, SourceError

# K packets

Int = NDArray[np.int64]
Read = Callable[[int, int], memoryview]  # offset, length

_GAP: Final = 1 << 16  # bytes between two packets that are read along rather than skipped
_BLOCK: Final = 1 << 20  # bytes that the demuxer asks for at once
_STILL: Final = int(av.stream.Disposition.attached_pic | av.stream.Disposition.timed_thumbnails)


def read_packets(index: VideoIndex, read: Read, packets: Int) -> list[memoryview]:
    """The bytes of packets [K] that lie in the file as they are; near ones are read together.

    Raises:
        SourceError: from ``read``.
    """
    order = np.argsort(index.offsets_P[packets], kind="stable")
    begin = index.offsets_P[packets][order]
    end = begin + index.sizes_P[packets][order]
    far = np.concatenate([[True], begin[1:] - np.maximum.accumulate(end)[:-1] > _GAP])
    first = np.flatnonzero(far)
    tail = np.maximum.reduceat(end, first)
    pieces = [read(int(a), int(b - a)) for a, b in zip(begin[first], tail, strict=True)]
    piece = np.cumsum(far) - 1
    inside = begin - begin[first][piece]
    found: list[memoryview] = [memoryview(b"")] * len(packets)
    sizes = (end - begin).tolist()
    for place, k, at, size in zip(order.tolist(), piece.tolist(), inside.tolist(), sizes, strict=True):
        found[place] = pieces[k][at : at + size]
    return found


class _File:
    """What libavformat reads from, in blocks; an exception inside its callback would be lost, so it is kept."""

    def __init__(self, read: Read, size: int) -> None:
        self._read, self._size, self._place = read, size, 0
        self.failed: SourceError | None = None

    def read(self, count: int) -> bytes:
        count = max(0, min(count, self._size - self._place))
        try:
            data = b"" if self.failed or not count else bytes(self._read(self._place, count))
        except SourceError as error:
            self.failed, data = error, b""
        self._place += len(data)
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        self._place = max(0, offset + (0, self._place, self._size)[whence])
        return self._place

    def tell(self) -> int:
        return self._place


def demux_packets(index: VideoIndex, read: Read, size: int, packets: Int) -> list[memoryview]:
    """The bytes of packets [K] that only a demuxer finds.

    Raises:
        DataError: it finds fewer packets than the index names, or other ones.
        SourceError: from ``read``.
    """
    wanted, last = set(packets.tolist()), int(packets.max())
    found: dict[int, memoryview] = {}
    file = _File(read, size)
    try:
        with av.open(file, format=_format(bytes(read(0, min(size, 4)))), buffer_size=_BLOCK) as container:
            stream = next(s for s in container.streams.video if not int(s.disposition) & _STILL)
            counted = (packet for packet in container.demux(stream) if packet.size)
            for place, packet in zip(range(last + 1), counted, strict=False):
                if place in wanted:
                    found[place] = memoryview(bytes(packet))
    except (av.error.FFmpegError, StopIteration):
        found.clear()
    if file.failed is not None:
        raise file.failed
    if [len(found.get(packet, b"")) for packet in packets.tolist()] != index.sizes_P[packets].tolist():
        msg = f"video: the demuxer does not find the packets up to {last} as its index says. Index the file again"
        raise DataError(msg)
    return [found[packet] for packet in packets.tolist()]


def _format(head: bytes) -> str:
    """The demuxer for a file's first bytes; never one that follows names to other files."""
    if head == b"\x1a\x45\xdf\xa3":
        return "matroska"
    if head == b"FLV\x01":
        return "flv"
    return "mpegts" if head[:1] == b"G" else "mov"
