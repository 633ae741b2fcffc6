"""Index a video file. `probing` does it with PyAV, which is imported at the first call."""

from collections.abc import Callable

from spiral_stream.decoders.video.video_index import VideoIndex
from spiral_stream.extras import need

Read = Callable[[int, int], memoryview]  # offset, length


def probe(read: Read, size: int, name: str, stamp: int, *, headers: bool = False) -> VideoIndex:
    """Demux a file once, and index its first video stream.

    Args:
        read: reads bytes by offset and length, as `Located.read`.
        size: bytes of the file.
        name: name of the file, for messages.
        stamp: `Located.stamp`.
        headers: whether to read only the index of an MP4 and one key frame, for a file whose bytes come over a network. No
            packet is noted as disposable then.

    Raises:
        DataError: the container is not supported or is cut short; or it holds no H.264, no presentation times, no frame
            that can be decoded, or an index that its bytes cannot hold.
        MissingExtraError: the video extra is not installed.
        SourceError: ``read`` failed.
    """
    need("av", "a video index")
    from spiral_stream.decoders.video.probing import probed

    return probed(read, size, name, stamp, headers=headers)
