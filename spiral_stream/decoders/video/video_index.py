"""Where the frames of a video lie in its file, and when each is shown. With an index a reader need not demux.

`probe.probe` demuxes a file once. It notes the time, place and size of every packet, which packets are key packets, and
which no other frame needs. A reader with the index opens no container: it reads the few packets of the frames it wants
by offset, from the last key packet at or before each. The index takes a few dozen bytes per frame. It is stored
(`to_bytes`) with the relation, so that the next run does not probe.

Times are int64 microseconds from the first frame shown, rounded from the container's ticks (halves up), so an
irregular frame rate, frames stored out of order and edit lists need no counting. Packets that an edit list hides
are decoded where needed, never shown; frames before the first key packet, or that belong before it, cannot be
decoded and are not in the index.

**Where decoding starts**: at the last key packet in decode order at or before the frame's own, or, if the frame
is shown before that key frame (open groups of pictures), at the key packet before it. A key packet is one that the
container says is one and that does not say itself that pictures come right only later (a recovery point of some
frames, as periodic intra refresh writes).

Containers: MP4 and MOV (whole or fragmented), Matroska, FLV, MPEG-TS. In all but MPEG-TS a packet lies in one piece in
the file, which is checked byte by byte (`direct`); MPEG-TS has to be demuxed. AVI and bare H.264 have no presentation
times and are refused. Sample aspect ratios are ignored. Cost: 1 ms, 15 us per frame, and reading the file once (240
frames of 320 x 240, 444 KB: 5.8 ms, of which 2 ms decode a key frame).
"""

import struct
from dataclasses import dataclass, replace
from typing import Any, Final, Self, final

import numpy as np
import xxhash
from numpy.typing import NDArray

from spiral_stream.decoders.video.frame_selection import ClipSegment
from spiral_stream.errors import CacheError

# F frames in presentation order, P packets in decode order

VERSION: Final = 2  # raise it with any change of the bytes or of their meaning
_MAGIC: Final = b"spvideo" + bytes([VERSION])
_HEADER: Final = struct.Struct("<8s Q Q 12q")  # magic, checksum of what follows it, stamp, and numbers
_CHECKED: Final = 16  # where what the checksum covers begins
_CODEC: Final = "h264"
_ARRAYS: Final = (
    ("times_F", np.int64),
    ("offsets_P", np.int64),
    ("packets_F", np.int32),
    ("sizes_P", np.int32),
    ("keys_P", np.bool_),
    ("disposable_P", np.bool_),
)
_LARGEST: Final = 1 << 16  # pixels of a side


@final
@dataclass(frozen=True, eq=False, slots=True)
class VideoIndex:
    """The frames and packets of one video stream; the module's text says how they are found."""

    codec: str
    extradata: bytes  # parameter sets outside the packets, as the container has them
    width: int  # as decoded, before rotation
    height: int
    rotation: int  # degrees clockwise that show it upright: 0, 90, 180, 270
    full_range: bool
    matrix: int  # AVColorSpace; 2 = unspecified
    times_F: NDArray[np.int64]  # noqa: N815  us, ascending
    duration: int  # us: end of the last frame of the file
    packets_F: NDArray[np.int32]  # noqa: N815  the packet of each frame
    offsets_P: NDArray[np.int64]  # noqa: N815  in the bytes that were probed
    sizes_P: NDArray[np.int32]  # noqa: N815
    keys_P: NDArray[np.bool_]  # noqa: N815  decoding can start here
    disposable_P: NDArray[np.bool_]  # noqa: N815  no other frame needs it
    direct: bool  # every packet lies in one piece where offsets_P says
    stamp: int  # `Located.stamp` of what was probed
    first: int = 0  # which frame of the file is the first here, for messages

    @property
    def displayed(self) -> tuple[int, int]:
        """Height and width of the upright picture."""
        return (self.width, self.height) if self.rotation % 180 else (self.height, self.width)

    @property
    def fps(self) -> float:
        """Frames per second, on average."""
        shown = int(self.times_F[-1] - self.times_F[0])
        return 1e6 * (len(self.times_F) - 1) / shown if shown else 1e6 / max(self.duration, 1)

    @property
    def key_distance(self) -> tuple[float, int]:
        """Packets from one key packet to the next (or to the end): mean and maximum."""
        gaps = np.diff(np.append(np.flatnonzero(self.keys_P), len(self.keys_P)))
        return float(gaps.mean()), int(gaps.max())

    def within(self, segment: ClipSegment) -> "VideoIndex":
        """Return the part of the index that decoding a segment needs. Frames keep their times.

        The index of an hour of video takes megabytes, that of some seconds a few kilobytes. The index of a file that
        has to be demuxed is returned whole, because its packets are counted from the start.
        """
        if not self.direct or segment.frames >= len(self.times_F):
            return self
        shown_P = np.full(len(self.keys_P), -1, np.int64)
        shown_P[self.packets_F] = np.arange(len(self.packets_F))
        packets_N = self.packets_F[segment.first : segment.stop].astype(np.int64)
        keys = np.flatnonzero(self.keys_P)
        group_N = np.searchsorted(keys, packets_N, "right") - 1
        group_N -= shown_P[keys[group_N]] > np.arange(segment.first, segment.stop)
        low, high = int(keys[max(int(group_N.min()), 0)]), int(packets_N.max()) + 1
        keys_P = self.keys_P[low:high] & (shown_P[low:high] < segment.stop)  # later frames start nothing here
        return replace(
            self,
            first=self.first + segment.first,
            times_F=self.times_F[segment.first : segment.stop],
            packets_F=(packets_N - low).astype(np.int32),
            offsets_P=self.offsets_P[low:high],
            sizes_P=self.sizes_P[low:high],
            keys_P=keys_P,
            disposable_P=self.disposable_P[low:high],
        )

    def to_bytes(self) -> bytes:
        """Return the index as bytes, for `from_bytes` of the same version."""
        numbers = (
            len(self.times_F),
            len(self.keys_P),
            self.width,
            self.height,
            self.rotation,
            self.full_range,
            self.matrix,
            self.duration,
            self.direct,
            len(self.codec),
            len(self.extradata),
            self.first,
        )
        parts = [_HEADER.pack(_MAGIC, 0, self.stamp, *numbers)]
        for name, dtype in _ARRAYS:
            parts.append(np.ascontiguousarray(getattr(self, name), dtype).tobytes())
            parts.append(bytes(-len(parts[-1]) % 8))
        data = bytearray(b"".join([*parts, self.codec.encode(), self.extradata]))
        struct.pack_into("<Q", data, _CHECKED - 8, _checksum(data))
        return bytes(data)

    @classmethod
    def from_bytes(cls, data: memoryview) -> Self:
        """Read the bytes that `to_bytes` wrote. Arrays are views of ``data``.

        Raises:
            CacheError: the bytes are cut, changed, or of another version.
        """
        if len(data) < _HEADER.size or bytes(data[:8]) != _MAGIC:
            raise _stale(f"does not begin with {_MAGIC!r}, as this version's do")  # noqa: EM102
        _, check, stamp, *numbers = _HEADER.unpack_from(data)
        if check != _checksum(data):
            raise _stale("is damaged: its checksum is another")
        frames, packets, width, height, rotation, full, matrix, duration, direct, codec, extra, first = numbers
        if not (0 < frames <= packets < 1 << 31 and 0 <= codec < 1 << 8 and 0 <= extra <= len(data)):
            raise _stale(f"claims {frames} frames in {packets} packets")  # noqa: EM102
        arrays: dict[str, Any] = {}
        at = _HEADER.size
        for name, dtype in _ARRAYS:
            count = frames if name.endswith("F") else packets
            size = count * np.dtype(dtype).itemsize
            if at + size > len(data):
                raise _stale(f"has {len(data)} bytes, which hold no {frames} frames in {packets} packets")  # noqa: EM102
            arrays[name] = np.frombuffer(data, dtype, count, at)
            at += size + -size % 8
        if at + codec + extra != len(data):
            raise _stale(f"has {len(data)} bytes where {at + codec + extra} would be right")  # noqa: EM102
        called, extradata = bytes(data[at : at + codec]), bytes(data[at + codec :])
        index = cls(
            codec=called.decode("ascii", "replace"),
            extradata=extradata,
            width=width,
            height=height,
            rotation=rotation,
            full_range=bool(full),
            matrix=matrix,
            duration=duration,
            direct=bool(direct),
            stamp=stamp,
            first=first,
            **arrays,
        )
        index._check()
        return index

    def _check(self) -> None:
        """Refuse an index that no probe writes: readers rely on it when they allocate memory."""
        sound = (
            self.codec == _CODEC
            and 0 < self.width <= _LARGEST
            and 0 < self.height <= _LARGEST
            and self.rotation in (0, 90, 180, 270)
            and self.duration >= 0
            and bool((np.diff(self.times_F) >= 0).all())
            and int(self.packets_F.min()) >= 0
            and int(self.packets_F.max()) < len(self.keys_P)
            and int(self.sizes_P.min()) >= 0
            and bool(self.keys_P[: int(self.packets_F.min()) + 1].any())
            and (not self.direct or int(self.offsets_P.min()) >= 0)
        )
        if not sound:
            raise _stale("has sizes, places or times that cannot be")


def _checksum(data: bytes | bytearray | memoryview) -> int:
    return xxhash.xxh3_64_intdigest(memoryview(data)[_CHECKED:])


def _stale(found: str) -> CacheError:
    msg = (
        f"video index: it {found}. Build it anew: index_videos(catalog, relation, column, afresh=True), or remove it and "
        "call materialize()"
    )
    return CacheError(msg)
