"""The file that libavformat's demuxer reads: bytes by offset, and errors that its callbacks would lose.

PyAV prints exceptions of a callback and does not raise them. Here the file just ends at an error, and the error waits
in `DemuxedFile.failed` until the call is over.
"""

from abc import ABC, abstractmethod
from typing import Final

import av

from spiral_stream.errors import SourceError, anew

STILL: Final = int(
    av.stream.Disposition.attached_pic | av.stream.Disposition.timed_thumbnails
)  # streams that are no video


class DemuxedFile(ABC):
    """A file for ``av.open``."""

    def __init__(self, size: int) -> None:
        self._size, self._offset = size, 0
        self.failed: SourceError | None = None

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self._size

    @abstractmethod
    def at(self, offset: int, length: int) -> memoryview:
        """Bytes by offset; as many as there are.

        Raises:
            SourceError: they cannot be read.
        """

    def read(self, count: int) -> bytes:
        """The next bytes; none after a failure."""
        try:
            data = b"" if self.failed else bytes(self.at(self._offset, count))
        except SourceError as error:
            self.failed = anew(error)
            return b""
        self._offset += len(data)
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        """Move to a place, never before the start."""
        self._offset = max(0, offset + (0, self._offset, self._size)[whence])
        return self._offset

    def tell(self) -> int:
        """Where the next read begins."""
        return self._offset
