"""Decode some frames of an H.264 video: find the packets that they need, and get their pixels.

A clip of 16 frames needs neither the container nor most of the file. `feed_plan` takes the packets from the key frame
before each wanted frame up to it. It leaves out disposable packets, to which no frame refers (half of the packets that
x264 writes by default), and groups of pictures that hold no wanted frame. `decode` reads these bytes and gives them to
a bare codec context. The frames have the same bits as in a decode of the whole file, whatever was decoded before
(tests/stream/decoders). `to_rgb` converts only a box of each frame to RGB.

Nothing is concealed. A packet that the decoder refuses, a frame that it flags, a missing frame or one of another size
raises a `DataError` that names frame and time. A decoder cannot see damage that is itself a valid stream: of 36,000
damaged files (single bits, runs of noise or zeros in one packet) 33 % were reported, 55 % gave the pixels of the sound
file, and 12 % gave other pixels, the same every time.

Cost of 16 frames out of 4 s (320 x 240, 30 frames per second, x264 at its defaults, 66 of 120 packets fed, CPU time of
one thread, same run): 9.2 ms decode, 0.4 ms `to_rgb` of the boxes, 0.6 ms resize, 11.2 ms in all. PyAV took 20.9 ms to
decode all frames and convert 16. 85 % is spent in libavcodec; two threads cost the same CPU time per clip as one.
Sample aspect ratios are ignored. 4:4:4 video of an x264 before version 151 decodes as if it came from a later one
unless the clip begins at the file's start.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from spiral_stream.decoders.video import contexts
from spiral_stream.decoders.video.rgb import Pixels, to_rgb
from spiral_stream.decoders.video.video_index import VideoIndex
from spiral_stream.errors import DataError

if TYPE_CHECKING:
    import av

__all__ = ["FramePackets", "Pixels", "decode", "feed_plan", "to_rgb"]

# U wanted frames, K packets to feed, P packets of the file, F frames of the file

Int = NDArray[np.int64]
Read = Callable[[int, int], memoryview]  # offset, length


@dataclass(frozen=True, slots=True)
class FramePackets:
    """The packets to decode for some frames.

    Attributes:
        packets: shape [K], int64, ascending: ordinals of packets in decode order.
        starts: shape [R], int64, ascending, the first 0: places in ``packets`` where decoding starts anew.
    """

    packets: Int
    starts: Int

    @property
    def decoded(self) -> int:
        """Frames that are decoded to have the wanted ones."""
        return len(self.packets)


def feed_plan(index: VideoIndex, wanted: Int) -> FramePackets:
    """Find the packets to decode.

    A frame is decoded from the last key frame before it in decode order. If it is shown before that key frame (open
    group of pictures), it is decoded from the key frame before that one.

    Args:
        index: the index of the file.
        wanted: shape [U], int64, U at least 1: ordinals of frames in presentation order.
    """
    targets = np.sort(index.packets_F[wanted].astype(np.int64))
    shown = _shown(index)
    keys = _keys(index)
    group = np.searchsorted(keys, targets, "right") - 1
    group = np.maximum(group - (shown[keys[group]] > shown[targets]), 0)
    return _covering(index, keys[group], targets)


def _covering(index: VideoIndex, first: Int, targets: Int) -> FramePackets:
    """Packets from each first [U] to its target [U], ascending, without disposable ones that are no target."""
    low, high = int(first.min()), int(targets[-1]) + 1
    depth = np.zeros(high - low + 1, np.int64)
    np.add.at(depth, first - low, 1)
    np.add.at(depth, targets + 1 - low, -1)
    inside = np.cumsum(depth[:-1]) > 0
    fed = inside & ~index.disposable_P[low:high]
    fed[targets - low] = fed[first - low] = True
    packets = np.flatnonzero(fed)
    starts = np.flatnonzero(inside & np.concatenate([[True], ~inside[:-1]]))
    return FramePackets(packets + low, np.searchsorted(packets, starts))


def _shown(index: VideoIndex) -> Int:
    """Shape [P]: when each packet's frame is shown, as an ordinal; -1 where it is not."""
    shown = np.full(len(index.keys_P), -1, np.int64)
    shown[index.packets_F] = np.arange(len(index.packets_F))
    return shown


def _keys(index: VideoIndex) -> Int:
    """Packets at which decoding may start, ascending; the first packet of the file is one."""
    keys = np.flatnonzero(index.keys_P)
    return keys if len(keys) and keys[0] == 0 else np.concatenate([[0], keys])


class _Damage(Exception):  # noqa: N818  an answer inside this room
    """A packet that gives no sound frame, and the reason."""

    def __init__(self, packet: int, why: str) -> None:
        super().__init__(why)
        self.packet, self.why = packet, why


def decode(
    index: VideoIndex, read: Read, wanted: Int, size: int, feed: FramePackets | None = None
) -> "list[av.VideoFrame]":
    """Decode some frames, in the calling thread.

    Args:
        index: the index of the file.
        read: gives ``length`` bytes of the file from ``offset``.
        wanted: shape [U], int64: ordinals of frames in presentation order. In any order; repeats are allowed.
        size: bytes of the file.
        feed: the result of `feed_plan` for ``wanted``, if there is one already.

    Returns:
        U frames in the order of ``wanted``, as stored (not turned); a repeated one is the same object.

    Raises:
        DataError: a wanted frame, or one that it depends on, is damaged or missing.
        SourceError: from ``read``.
    """
    from spiral_stream.decoders.video.packets import demux_packets, read_packets

    if not len(wanted):
        return []
    feed = feed or feed_plan(index, wanted)
    packets = feed.packets
    payloads = read_packets(index, read, packets) if index.direct else demux_packets(index, read, size, packets)
    goals = np.zeros(len(index.keys_P), np.bool_)
    goals[index.packets_F[wanted]] = True
    found: dict[int, av.VideoFrame] = {}

    def run(starts: Sequence[int], stop: int) -> None:
        """Decode from the first of these starts on; alone from each where one after the other fails."""
        part = _Run(index, packets[starts[0] : stop], payloads[starts[0] : stop], goals)
        try:
            found.update(part.decode())
        except _Damage as damage:
            if len(starts) == 1:
                raise DataError(part.message(damage)) from damage
            for start, end in zip(starts, [*starts[1:], stop], strict=True):
                run([start], end)

    starts = feed.starts.tolist()
    anew = [contexts.begins_anew(index, payloads[start]) for start in starts]
    # at an IDR picture the decoder goes on by itself; a flush before each costs 0.1 ms, about 3 % at groups of 12 frames
    firsts = [k for k in range(len(starts)) if not (k and anew[k - 1] and anew[k])]
    for k, end in zip(firsts, [*firsts[1:], len(starts)], strict=True):
        run(starts[k:end], starts[end] if end < len(starts) else len(packets))
    return [found[packet] for packet in index.packets_F[wanted].tolist()]


class _Run:
    """Packets that are decoded one after the other, from a key packet on.

    An IDR picture lets nothing before it be referred to, so every complaint of the decoder there is an error.
    After another key packet (open groups of pictures) it complains of clean streams, of references that are
    not there: then errors, flags and frames that do not come decide.
    """

    def __init__(self, index: VideoIndex, packets: Int, payloads: list[memoryview], goals: NDArray[np.bool_]) -> None:
        self.index, self.packets, self.payloads = index, packets, payloads
        self.goals_P = goals
        self.shown_P = _shown(index)
        self.strict = contexts.begins_anew(index, payloads[0])
        self.begin = int(self.shown_P[packets[0]])
        due = self.shown_P[packets] >= 0 if self.strict else goals[packets]
        self.due = set(packets[due].tolist())  # packets whose frame has to come
        self.found: dict[int, av.VideoFrame] = {}

    def decode(self) -> "dict[int, av.VideoFrame]":
        """The wanted frames by packet.

        Raises:
            _Damage: one of them, or one that it may depend on, is not sound.
        """
        import av

        decoder = contexts.borrow(self.index, self.strict)
        packet = -1
        try:
            for packet, payload in zip(self.packets.tolist(), self.payloads, strict=True):
                unit = av.Packet(payload)
                unit.pts = packet  # frames come in another order; this tells them apart
                self._take(decoder.decode(unit))
            self._take(decoder.decode(None))
        except av.error.FFmpegError as error:
            if isinstance(error, MemoryError):
                raise
            raise _Damage(packet, f"the decoder refuses it ({error.strerror})") from error
        if self.due:
            raise _Damage(min(self.due), "the decoder gives no frame for it")
        contexts.give_back(self.index, self.strict, decoder, self.payloads)
        return self.found

    def _take(self, frames: "list[av.VideoFrame]") -> None:
        """Check frames; keep only the wanted ones, so that the decoder uses the memory of the others again."""
        for frame in frames:
            packet = frame.pts
            self.due.discard(packet)
            if frame.is_corrupt and (self.strict or not 0 <= self.shown_P[packet] < self.begin):
                raise _Damage(packet, "the decoder marks it as damaged")
            if self.goals_P[packet]:
                if (frame.width, frame.height) != (self.index.width, self.index.height):
                    size = f"{frame.width} x {frame.height}"
                    raise _Damage(packet, f"it is {size} where {self.index.width} x {self.index.height} is right")
                self.found[packet] = frame

    def message(self, damage: _Damage) -> str:
        """What to tell the user."""
        goals = self.packets[self.goals_P[self.packets]]
        goal = int(goals[min(int(np.searchsorted(goals, damage.packet)), len(goals) - 1)])
        needs = "" if goal == damage.packet else f", which {self._name(goal)} may need,"
        return (
            f"video: {self._name(damage.packet)}{needs} cannot be decoded: {damage.why}. The file is damaged there. "
            'Restore it, or leave such samples out with collate(on_error="skip")'
        )

    def _name(self, packet: int) -> str:
        frame = int(self.shown_P[packet])
        return (
            f"the packet at byte {self.index.offsets_P[packet]}"
            if frame < 0
            else f"frame {frame + self.index.first} ({self.index.times_F[frame] / 1e6:.3f} s)"
        )
