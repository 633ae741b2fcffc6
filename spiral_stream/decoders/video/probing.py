"""How a video index is made: one pass of the demuxer over the file, and one decoded key frame.

Of an object of a store only the boxes and one key frame are read (`header_file`), where that is enough. Otherwise the demuxer
reads blocks of 1 MiB, so Python is called a few times per megabyte. Only the container that the first bytes
name is tried; playlists, whose file names libavformat would follow, are refused. Claims of the file are compared with
its size before they are believed (`boxes`).
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final, final

import av
import numpy as np
from numpy.typing import NDArray

from spiral_stream.decoders.limits import CLIPS
from spiral_stream.decoders.video.boxes import LONGEST, check_boxes
from spiral_stream.decoders.video.demuxed import STILL
from spiral_stream.decoders.video.header_file import HeaderFile
from spiral_stream.decoders.video.probed_file import BLOCK_BYTES, REMUX, ProbedFile
from spiral_stream.decoders.video.slices import length_bytes, slices_of
from spiral_stream.decoders.video.video_index import VideoIndex
from spiral_stream.errors import DataError, anew

# F frames in presentation order, P packets in decode order

Read = Callable[[int, int], memoryview]  # offset, length

_BEFORE: Final = 64  # bytes between where a container says a packet is and its first byte: 4 in Matroska, 16 in FLV
_BOUNDED: Final = {"max_pixels": str(CLIPS.pixels)}  # of a coded picture, whatever its parameter set claims
_TRIES: Final = 4  # key packets that are decoded to see what the pictures are like
_LONGEST_US: Final = 1 << 50  # 35 years
_MOV: Final = frozenset(
    (b"ftyp", b"styp", b"moov", b"moof", b"mdat", b"free", b"skip", b"wide", b"pnot", b"uuid", b"sidx")
)
_FULL: Final = 2  # AVCOL_RANGE_JPEG
_WAY_OUT: Final = "Restore the file, or filter its rows out"


def probed(read: Read, size: int, name: str, stamp: int, *, headers: bool = False) -> VideoIndex:
    """See `probe.probe`."""
    if headers:
        header = HeaderFile(read, size)
        if header.head[4:8] in _MOV and header.is_complete():
            with suppress(_NeedsPackets):
                return _probed(header, size, name, stamp)
    return _probed(ProbedFile(read, size, name), size, name, stamp)


class _NeedsPackets(Exception):  # noqa: N818  an answer inside this room
    """What the boxes say is not enough."""


def _probed(file: ProbedFile | HeaderFile, size: int, name: str, stamp: int) -> VideoIndex:
    kind = _container(file, name)
    if kind == "mov":
        check_boxes(file.at, size, name)
    try:
        with av.open(
            file, format=kind, buffer_size=BLOCK_BYTES, metadata_errors="replace", options=_BOUNDED
        ) as container:
            stream = _video(container, name)
            found = _demuxed(container, stream, file, name)
            look = _look(stream, found, name, headers_only=isinstance(file, HeaderFile))
            if kind == "mov":
                _refuse_short(stream, found, size, name)
            base, rate = stream.time_base, stream.guessed_rate
    except (DataError, av.FFmpegError, MemoryError, OverflowError, ValueError) as error:
        if file.failed is not None:  # whatever was made of a file that just ended
            raise anew(file.failed) from error
        if isinstance(error, DataError):
            raise
        msg = f"{name}: its {kind} container cannot be read ({_reason(error)}). {_WAY_OUT}"
        raise DataError(msg) from error
    if file.failed is not None:
        raise anew(file.failed)
    times_F, packets_F, duration = _presented(found, base, rate, name)
    return VideoIndex(
        codec="h264",
        extradata=found.extradata,
        times_F=times_F,
        duration=duration,
        packets_F=packets_F,
        offsets_P=np.array(found.offsets, np.int64),
        sizes_P=np.array(found.sizes, np.int32),
        keys_P=_entries(found, packets_F),
        disposable_P=np.array(found.disposable, np.bool_),
        direct=found.direct,
        stamp=stamp,
        **look,
    )


def codec_of(read: Read, size: int, name: str) -> str:
    """Return the codec of a file's first video stream by its header; "" where it has none, or cannot be read.

    Args:
        read: as `probe.probe` takes it.
        size: bytes of the file.
        name: of the file.
    """
    file = ProbedFile(read, size, name)
    try:
        kind = _container(file, name)  # others are no films here, and may be lists of files
        with av.open(file, format=kind, metadata_errors="replace", options=_BOUNDED) as container:
            pictures = [each for each in container.streams.video if not int(each.disposition) & STILL]
            return _codec(pictures[0]) if pictures else ""
    except (DataError, av.FFmpegError, MemoryError, OverflowError, ValueError):
        return ""


def _container(file: ProbedFile | HeaderFile, name: str) -> str:
    """Return the demuxer for a file's first bytes.

    Raises:
        DataError: the container is not supported.
    """
    head = bytes(file.at(0, 256))
    if head[4:8] in _MOV:
        return "mov"
    if head[:4] == b"\x1a\x45\xdf\xa3":
        return "matroska"
    if head[:4] == b"FLV\x01":
        return "flv"
    if any(head[at : at + 1] == b"G" == head[at + step : at + step + 1] for at, step in ((0, 188), (4, 192))):
        return "mpegts"
    begins = "it begins as" if head else "it is empty, which is"  # no byte is shown: a reference may name any file
    msg = f"{name}: {begins} no MP4, MOV, Matroska, FLV or MPEG-TS. {REMUX}"
    raise DataError(msg)


def _video(container: Any, name: str) -> Any:
    """Return the first video stream, and discard the others.

    Raises:
        DataError: there is none, or it is not H.264.
    """
    pictures = [s for s in container.streams.video if not int(s.disposition) & STILL]
    if not pictures:
        kinds = sorted({f"{s.type} ({_codec(s)})" for s in container.streams})
        held = f"only {', '.join(kinds)}" if kinds else "no stream at all"
        msg = f"{name} has no video stream, {held}. Name a file that has one, or filter its rows out"
        raise DataError(msg)
    stream = pictures[0]
    if stream.codec_context is None or stream.codec_context.name != "h264":
        msg = (
            f"{name}: its video is {_codec(stream)}; h264 is what is decoded. Re-encode it "
            "(ffmpeg -i in -c:v libx264 out.mp4), or filter its rows out"
        )
        raise DataError(msg)
    for other in container.streams:
        if other is not stream:
            other.discard = av.stream.Discard.all
    return stream


def _codec(stream: Any) -> str:
    return "of an unknown codec" if stream.codec_context is None else str(stream.codec_context.name)


@final
@dataclass(slots=True)
class _PacketTable:
    """P packets, as the demuxer found them."""

    extradata: bytes
    prefix: int
    ticks: list[int | None] = field(default_factory=list)  # presentation time
    lasts: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    keys: list[bool] = field(default_factory=list)
    disposable: list[bool] = field(default_factory=list)
    shown: list[bool] = field(default_factory=list)
    first_keys: list[bytes] = field(default_factory=list)  # a few key packets
    direct: bool = True


def _demuxed(container: Any, stream: Any, file: ProbedFile | HeaderFile, name: str) -> _PacketTable:
    """Read the packets once.

    Raises:
        DataError: there are too many, or the parameter sets change between them.
    """
    extradata = stream.codec_context.extradata or b""
    found = _PacketTable(extradata, length_bytes(extradata))
    for packet in container.demux(stream):  # 5 us per packet
        if not packet.size:
            continue
        if len(found.sizes) == LONGEST:
            msg = f"{name} has more than {LONGEST} frames. Cut it into parts, or filter its rows out"
            raise DataError(msg)
        if packet.has_sidedata("new_extradata") and bytes(packet.get_sidedata("new_extradata")) != extradata:
            msg = (
                f"{name} changes its parameter sets at packet {len(found.sizes)}. Re-encode it, or filter its rows out"
            )
            raise DataError(msg)
        if isinstance(file, HeaderFile):
            _note_header(found, packet)
        else:
            _note(found, packet, file)
    if isinstance(file, HeaderFile):  # a packet of zeros is no key packet to libavformat, whatever the boxes say
        marked = {entry.pos for entry in stream.index_entries if entry.is_keyframe}
        found.keys = [offset in marked for offset in found.offsets]
        found.first_keys = [_first_key(found, file)] if any(found.keys) else []
    if not found.sizes:
        msg = f"{name} has a video stream without a frame. {_WAY_OUT}"
        raise DataError(msg)
    return found


def _note(found: _PacketTable, packet: Any, file: ProbedFile) -> None:
    data = bytes(packet)
    says = slices_of(data, found.prefix, bool(packet.is_keyframe))
    # a damaged first packet is no key packet to libavformat; without it the times of all others would shift
    entry = says.entry or not (found.sizes or says.is_complete)
    offset = -1 if packet.pos is None or packet.pos < 0 else int(packet.pos)
    if found.direct:
        inside = bytes(file.at(offset, len(data) + _BEFORE)).find(data) if offset >= 0 else -1
        found.direct = inside >= 0
        offset += max(inside, 0)
    found.ticks.append(packet.pts)
    found.lasts.append(packet.duration or 0)
    found.offsets.append(offset)
    found.sizes.append(len(data))
    found.keys.append(entry)
    found.disposable.append(says.disposable)
    found.shown.append(says.frame and not packet.is_discard)
    if entry and len(found.first_keys) < _TRIES:
        found.first_keys.append(data)


def _note_header(found: _PacketTable, packet: Any) -> None:
    """Note what the boxes say of a packet. Which are disposable its own bytes say; whoever reads them looks."""
    if packet.pos is None or packet.pos < 0:
        raise _NeedsPackets
    found.ticks.append(packet.pts)
    found.lasts.append(packet.duration or 0)
    found.offsets.append(int(packet.pos))
    found.sizes.append(packet.size)
    found.disposable.append(False)
    found.shown.append(not packet.is_discard)


def _first_key(found: _PacketTable, file: HeaderFile) -> bytes:
    """Return the first key packet; nothing is made of a file whose first one is none."""
    at = found.keys.index(True)
    offset, size = found.offsets[at], found.sizes[at]
    data = bytes(file.real(offset, size, size)) if offset + size <= file.size else b""
    says = slices_of(data, found.prefix, key=True)
    if not (says.entry and says.is_complete):
        raise _NeedsPackets
    return data


def _refuse_short(stream: Any, found: _PacketTable, size: int, name: str) -> None:
    """Refuse an MP4 whose index names packets beyond its last byte.

    Raises:
        DataError: it is cut short.
    """
    entries = stream.index_entries
    named, there = len(entries), len(found.sizes)
    end = entries[named - 1].pos + entries[named - 1].size if named else 0
    if named > there:
        named = sum(entry.size > 0 for entry in entries)  # a sample of no bytes is a frame left out, not a lost one
    if named > there or end > size:
        msg = (
            f"{name} ends early: it has {size} bytes, and its index names {named} packets up to byte {end}. {_WAY_OUT}"
        )
        raise DataError(msg)


def _look(stream: Any, found: _PacketTable, name: str, *, headers_only: bool) -> dict[str, Any]:
    """Find the size, rotation and colours of the pictures, from the first key frame that can be decoded.

    Raises:
        DataError: none can be decoded, or the pictures are to be shown mirrored.
    """
    codec = stream.codec_context
    codec.thread_count = 1
    codec.options = _BOUNDED
    frame = None
    for data in found.first_keys:
        try:
            frames = [*codec.decode(av.Packet(data)), *codec.decode(None)]
        except av.FFmpegError:
            frames = []
        if frames:
            frame = frames[0]
            break
        codec.flush_buffers()
    if frame is None:
        if headers_only:
            raise _NeedsPackets
        tried = (
            f"none of its first {len(found.first_keys)} key frames can be decoded: they are damaged, "
            f"or claim more than {CLIPS.pixels:,} pixels"
            if found.first_keys
            else "it has no key frame"
        )
        msg = f"{name}: {tried}. {_WAY_OUT}"
        raise DataError(msg)
    return {
        "width": frame.width,
        "height": frame.height,
        "rotation": _rotation(frame, name),
        "full_range": frame.color_range == _FULL or frame.format.name.startswith("yuvj"),
        "matrix": int(frame.colorspace),
    }


def _rotation(frame: Any, name: str) -> int:
    """Return the degrees clockwise, a multiple of 90, that show the frame upright."""
    matrix = frame.side_data.get("DISPLAYMATRIX")
    if matrix is not None:
        a, b, _, c, d = np.frombuffer(matrix, np.int32)[:5].tolist()
        if a * d - b * c < 0:
            msg = f"{name} is to be shown mirrored, which is not done here. Re-encode it, or filter its rows out"
            raise DataError(msg)
    return int(round(-frame.rotation / 90) * 90 % 360)


def _presented(
    found: _PacketTable, base: Fraction, rate: Fraction | None, name: str
) -> tuple[NDArray[np.int64], NDArray[np.int32], int]:
    """Return times [F] and packets [F] of the frames that are shown, and the end of the last one.

    Raises:
        DataError: a frame has no time, times are absurd, or no frame can be decoded and shown.
    """
    first = found.keys.index(True)  # `_look` has decoded one
    packets = np.flatnonzero(np.array(found.shown, np.bool_))
    packets = packets[packets >= first]  # those before have nothing to be decoded from
    untimed = [p for p in (first, *packets.tolist()) if found.ticks[p] is None]
    if untimed:
        msg = f"{name}: packet {untimed[0]} has no presentation time. {REMUX}"
        raise DataError(msg)
    ticks = np.array([found.ticks[p] for p in packets.tolist()], np.int64)
    late = ticks >= (found.ticks[first] or 0)  # nor have those that are shown before the first key frame
    ticks, packets = ticks[late], packets[late]
    if not len(ticks):
        msg = f"{name}: no frame of it is shown. {_WAY_OUT}"
        raise DataError(msg)
    _refuse_restart(found, packets, ticks, name)
    order = np.argsort(ticks, kind="stable")
    ticks, packets = ticks[order], packets[order]
    last = found.lasts[int(packets[-1])]
    if last <= 0:
        steps = np.diff(ticks[-2:]).tolist()
        last = steps[0] if steps else round((1 / rate if rate else Fraction(1, 25)) / base)
    span = int(ticks[-1]) - int(ticks[0]) + last
    if span * base * 1_000_000 > _LONGEST_US:
        msg = f"{name}: its last frame ends {float(span * base):.0f} s after the first. {_WAY_OUT}"
        raise DataError(msg)
    times = _microseconds(np.append(ticks - ticks[0], span), base)
    return times[:-1], packets.astype(np.int32), int(times[-1])


def _refuse_restart(found: _PacketTable, packets: NDArray[np.intp], ticks: NDArray[np.int64], name: str) -> None:
    """Refuse times that begin again: frames of different times would be taken for neighbours.

    Nothing that comes before a key packet is shown after it.

    Raises:
        DataError: they do, as where MPEG-TS files were put end to end.
    """
    keys = np.array(found.keys, np.bool_)[packets]
    back = np.flatnonzero(keys[1:] & (ticks[1:] < np.maximum.accumulate(ticks)[:-1])) + 1
    if len(back):
        msg = f"{name}: presentation times go back at packet {int(packets[back[0]])}. {REMUX}"
        raise DataError(msg)


def _microseconds(ticks: NDArray[np.int64], base: Fraction) -> NDArray[np.int64]:
    """Convert ticks to microseconds, halves up. Seconds and remainders are converted apart, to avoid overflow."""
    seconds, rest = np.divmod(ticks * base.numerator, base.denominator)
    us: NDArray[np.int64] = seconds * 1_000_000 + (2 * rest * 1_000_000 + base.denominator) // (2 * base.denominator)
    return us


def _entries(found: _PacketTable, packets_F: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Return which packets are key packets, shape [P]. Those that an edit list hides at the end do not count."""
    keys_P = np.array(found.keys, np.bool_)
    end = found.ticks[int(packets_F[-1])] or 0
    for p in np.flatnonzero(keys_P & ~np.array(found.shown, np.bool_)).tolist():
        tick = found.ticks[p]
        keys_P[p] = tick is not None and tick <= end
    return keys_P


def _reason(error: BaseException) -> str:
    return str(getattr(error, "strerror", None) or error or type(error).__name__)
