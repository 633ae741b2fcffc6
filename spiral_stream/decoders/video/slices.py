"""Read the headers of an H.264 packet: does it hold a frame, do others need it, can decoding start at it.

Read from the headers of its NAL units (ITU-T H.264, 7.3.1): one byte per unit, and for the few key packets the recovery
point message (D.1.8). There is no entropy decoding. Cost: 1 us per packet.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, final

UNITS: Final = 1024  # of one packet that are looked at; a frame has up to some dozens of slices
MESSAGE_BYTES: Final = 4096  # of a unit of messages: a recovery point comes among the first

_IDR, _SEI = 5, 6
_SLICES: Final = range(1, 6)
_KNOWN: Final = range(1, 20)  # slices, messages, parameter sets, ends, filling, extensions
_RECOVERY_POINT: Final = 6  # type of a message
_CONFIGURED: Final = 1  # first byte of an AVCDecoderConfigurationRecord
_SHORTEST_RECORD: Final = 7
_START: Final = b"\0\0\1"


@final
@dataclass(frozen=True, slots=True)
class Slices:
    """What the slices of one packet say about it."""

    frame: bool  # there is a slice, or damage where one would be
    disposable: bool  # no other frame is decoded from this one
    entry: bool  # nothing contradicts that decoding can start here
    is_complete: bool = True  # its units end where it does


def length_bytes(extradata: bytes) -> int:
    """Return the size in bytes of the length before each NAL unit; 0 if start codes separate units (Annex B)."""
    if len(extradata) >= _SHORTEST_RECORD and extradata[0] == _CONFIGURED:
        return (extradata[4] & 3) + 1
    return 0


def slices_of(data: bytes, prefix: int, key: bool) -> Slices:
    """Read the headers of one packet.

    A packet is disposable only if all its slices have ``nal_ref_idc`` 0. ``entry`` is False for a key packet that says
    itself that pictures recover only later (periodic intra refresh).

    Args:
        data: the packet.
        prefix: from `length_bytes`.
        key: whether the container calls it a key packet.
    """
    frame = late = False
    stop = 0
    for seen, (at, end) in enumerate(_units(data, prefix), 1):
        kind = data[at] & 31
        if kind not in _KNOWN or seen > UNITS:
            break
        stop = end
        if kind in _SLICES:
            frame = True
            late = late and kind != _IDR
            if data[at] & 0x60:
                return Slices(frame=True, disposable=False, entry=key and not late)
        elif kind == _SEI:
            late = late or (key and _recovery_frames(data[at + 1 : min(end, at + 1 + MESSAGE_BYTES)]) > 0)
    if stop != len(data):  # looked at in part, or damaged: the container's word holds
        return Slices(frame=True, disposable=False, entry=key and not (frame and late), is_complete=False)
    return Slices(frame, frame, key and frame and not late)


def _units(data: bytes, prefix: int) -> Iterator[tuple[int, int]]:
    """Yield for each NAL unit the place of its header, and its end."""
    if prefix:
        at = 0
        while at + prefix < len(data):
            start = at + prefix
            at = start + int.from_bytes(data[at:start], "big")
            yield start, at
        return
    at = data.find(_START)
    while 0 <= at < len(data) - 3:
        start = at + 3
        at = data.find(_START, start)
        yield start, len(data) if at < 0 else at


def _recovery_frames(unit: bytes) -> int:
    """Return the frames until pictures are right again, from the recovery point message; 0 if there is none."""
    payload = unit.replace(b"\0\0\3", b"\0\0")
    offset = 0
    while offset + 2 < len(payload):
        kind, offset = _coded(payload, offset)
        size, offset = _coded(payload, offset)
        if kind == _RECOVERY_POINT:
            return _exp_golomb(payload[offset : offset + 8])
        offset += size
    return 0


def _coded(payload: bytes, offset: int) -> tuple[int, int]:
    value = 0
    while offset < len(payload) and payload[offset] == 255:  # noqa: PLR2004  a byte of ones goes on
        value, offset = value + 255, offset + 1
    return value + (payload[offset] if offset < len(payload) else 0), offset + 1


def _exp_golomb(data: bytes) -> int:
    bits = "".join(f"{byte:08b}" for byte in data)
    zeros = len(bits) - len(bits.lstrip("0"))
    code = bits[zeros : 2 * zeros + 1]
    return int(code, 2) - 1 if code else 0
