"""An MP4 without its media: only the other boxes are read, for a demuxer that lists packets and decodes nothing.

Where the file lies on an object store, reading it whole to index it would cost what a training run over it costs. The
index box (``moov``) says where each packet lies and when it is shown; of the media one key frame is needed. So the first
`FIRST_BYTES` are read, then what follows the media where the index is not among them. Bytes of the media that were not
read are zeros here. Requests: one, or two where the index or the first key frame reaches past the first bytes, or where
the index follows the media.
"""

import struct
from collections.abc import Callable
from typing import Final, final

from spiral_stream.decoders.video.boxes import INDEX_BYTES
from spiral_stream.decoders.video.demuxed import DemuxedFile

Read = Callable[[int, int], memoryview]  # offset, length

FIRST_BYTES: Final = 1 << 19  # of the first request: the index of minutes of video, and a key frame of 1080p
LAST_BYTES: Final = 1 << 24  # most that is read after the media without knowing what it is: the index of 10 hours
AHEAD_BYTES: Final = 1 << 18  # read along after an index that the first bytes cut: its first key frame comes next
_BOXES: Final = 64  # at the top; a fragmented file has more
_HEADER: Final = 8
_LARGE: Final = 16  # bytes of a header with a length of 64 bits
_ZEROS: Final = bytes(1 << 20)


@final
class HeaderFile(DemuxedFile):
    """The file for the demuxer.

    Args:
        read: reads bytes by offset and length.
        size: bytes of the file.
    """

    def __init__(self, read: Read, size: int) -> None:
        super().__init__(size)
        self._read = read
        self._held: list[tuple[int, memoryview]] = []  # where each begins
        self.head = bytes(self.real(0, min(256, size)))

    def is_complete(self) -> bool:
        """Read the boxes; False for a file whose index is not one box that is found soon, as of fragments."""
        at, found = 0, False
        for _ in range(_BOXES):
            if at + _HEADER > self._size:
                return found
            head = bytes(self.real(at, min(_LARGE, self._size - at), LAST_BYTES if at else FIRST_BYTES))
            length, kind = struct.unpack_from(">I4s", head)
            if length == 1 and len(head) == _LARGE:
                length = struct.unpack_from(">Q", head, _HEADER)[0]
            length = self._size - at if length == 0 else length
            if length < _HEADER or kind in (b"moof", b"styp", b"sidx"):
                return False
            if kind == b"mdat":
                if found:  # what follows the media says nothing of packets
                    return True
            elif at + length > self._size or length > INDEX_BYTES:
                return False
            else:
                body = self.real(at, length, length + AHEAD_BYTES)
                if kind == b"moov":
                    if b"mvex" in _children(body[_HEADER:]):
                        return False
                    found = True
            at += length
        return False

    def at(self, offset: int, length: int) -> memoryview:
        stop = min(offset + length, self._size)
        pieces = []
        while offset < stop:
            pieces.append(self._bytes_from(offset, stop))
            offset += len(pieces[-1])
        return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))

    def _bytes_from(self, offset: int, stop: int) -> memoryview:
        """Some bytes from ``offset`` on: as they are read, or zeros up to the next that are."""
        over = [(start, data) for start, data in self._held if start <= offset < start + len(data)]
        if over:
            start, data = max(over, key=lambda each: each[0] + len(each[1]))
            return data[offset - start : stop - start]
        begins = [start for start, _ in self._held if start > offset]
        return memoryview(_ZEROS)[: min([stop, *begins]) - offset]

    def real(self, offset: int, length: int, together: int = FIRST_BYTES) -> memoryview:
        """Return bytes as they are in the file; where they are read now, up to ``together`` come with one request.

        Raises:
            SourceError: they cannot be read.
        """
        for start, data in self._held:
            if start <= offset and offset + length <= start + len(data):
                return data[offset - start : offset - start + length]
        data = self._read(offset, min(max(length, together), self._size - offset))
        self._held.append((offset, data))
        return data[:length]


def _children(body: memoryview) -> set[bytes]:
    """The kinds of the boxes right in a box."""
    kinds: set[bytes] = set()
    at = 0
    while at + _HEADER <= len(body):
        length, kind = struct.unpack_from(">I4s", body, at)
        kinds.add(kind)
        if length < _HEADER:
            break
        at += length
    return kinds
