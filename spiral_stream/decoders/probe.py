"""Index a video file. `probing` does it with PyAV, which is imported at the first call."""

from collections.abc import Callable

from spiral_stream.decoders.video_index import VideoIndex
from spiral_stream.extras import need

Read = Callable[[int, int], memoryview]  # offset, length


def probe(read: Read, size: int, name: str, stamp: int) -> VideoIndex:
    """Demux a file once, and index its first video stream.

    Args:
        read: bytes by offset and length, as `Located.read`.
        size: of the file, bytes.
        name: for messages.
        stamp: `Located.stamp`.

    Raises:
        DataError: it is no container that is read here, is cut short, holds no H.264, has no presentation
            times, no frame that can be decoded, or an index that its bytes cannot hold.
        SourceError: ``read`` failed.
    """
    need("av", "a video index")
    from spiral_stream.decoders.probing import probed

    return probed(read, size, name, stamp)
