"""A video file that is demuxed from end to end, in large blocks."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, final

from spiral_stream.decoders.video.demuxed import DemuxedFile
from spiral_stream.errors import DataError

Read = Callable[[int, int], memoryview]  # offset, length

BLOCK_BYTES: Final = 1 << 20
REMUX: Final = "Put it into an MP4 (ffmpeg -i in -c copy out.mp4), or filter its rows out"
BLOCKS: Final = 4  # that are held
TIMES_OVER: Final = 16  # a fragmented file of 17 MB is read 2.2 times, others once


@final
class ProbedFile(DemuxedFile):
    """A file that is read in large blocks, of which the last few stay in memory."""

    def __init__(self, read: Read, size: int, name: str) -> None:
        super().__init__(size)
        self._read, self._name = read, name
        self._left = TIMES_OVER * (size + BLOCK_BYTES)
        self._blocks: OrderedDict[int, memoryview] = OrderedDict()

    def at(self, offset: int, length: int) -> memoryview:
        stop = min(offset + length, self._size)
        if offset >= stop:
            return memoryview(b"")
        first, last = offset // BLOCK_BYTES, (stop - 1) // BLOCK_BYTES
        blocks = [self._block(number) for number in range(first, last + 1)]
        held = blocks[0] if first == last else memoryview(b"".join(blocks))
        return held[offset - first * BLOCK_BYTES : stop - first * BLOCK_BYTES]

    def _block(self, number: int) -> memoryview:
        """Return the bytes of one block. The demuxer and the checks of its packets read the same few."""
        block = self._blocks.pop(number, None)
        if block is None:
            start = number * BLOCK_BYTES
            self._left -= BLOCK_BYTES
            if self._left < 0:  # an index that jumps to and fro would have a gigabyte read a million times
                msg = f"{self._name} is in an order that has it read {TIMES_OVER} times over. {REMUX}"
                raise DataError(msg)
            block = self._read(start, min(BLOCK_BYTES, self._size - start))
        self._blocks[number] = block
        if len(self._blocks) > BLOCKS:
            self._blocks.popitem(last=False)
        return block
