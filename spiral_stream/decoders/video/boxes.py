"""Check the tables of an MP4 before a demuxer allocates what they claim.

A table of samples may claim a constant size, and so any number of them: a file of 19 KB that claims 80 million samples
costs libavformat 8.1 eleven seconds and 4 GB. This module walks the boxes and compares every such claim with the size
of the file: a sample takes at least one byte. It reads the headers of the top boxes and the index (``moov``, ``moof``),
never the media. Cost: some microseconds, and 0.1 ms per megabyte of index.
"""

import struct
from collections.abc import Callable, Iterator
from typing import Final, final

import numpy as np

from spiral_stream.errors import DataError

Read = Callable[[int, int], memoryview]  # offset, length

LONGEST: Final = 1 << 23  # samples: 38 hours at 60 frames per second
INDEX_BYTES: Final = 1 << 28  # of one moov or moof
_EDITS: Final = 256  # a demuxer goes through the samples once an edit
_BOXES: Final = 1 << 20  # at the top: a fragmented file has two a fragment
_DEPTH: Final = 12
_HEADER: Final = 8  # bytes of a box before what is in it
_INSIDE: Final = frozenset(
    (
        b"free",
        b"hoov",
        b"moov",
        b"trak",
        b"mdia",
        b"minf",
        b"stbl",
        b"edts",
        b"moof",
        b"traf",
        b"mvex",
        b"dinf",
        b"udta",
        b"tref",
    )
)
_LOOKED_AT: Final = _INSIDE | {b"stsz", b"stz2", b"trun", b"elst", b"cmov"}  # libavformat finds a moov in a free, too


def check_boxes(read: Read, size: int, name: str) -> None:
    """Refuse an MP4 whose index claims what its bytes cannot hold.

    Args:
        read: reads bytes by offset and length.
        size: bytes of the file.
        name: name of the file, for messages.

    Raises:
        DataError: a table claims more samples than the file has bytes, or the index is compressed.
    """
    claims = _Claims(size, name)
    at = 0
    for _ in range(_BOXES):
        if at + _HEADER > size:
            return
        head = bytes(read(at, min(2 * _HEADER, size - at)))
        length, kind, header = _length(head, size - at)
        if length < header:
            return  # no box: the demuxer says what it makes of it
        if kind in _LOOKED_AT:
            inside = min(length, size - at)
            if inside > INDEX_BYTES:
                raise claims.refuse(kind, f"takes {inside} bytes, more than {INDEX_BYTES}")
            claims.walk(kind, read(at, inside)[header:], 0)
        at += length
    raise claims.refuse(b"last", f"is one of more than {_BOXES}")


def _length(head: bytes, rest: int) -> tuple[int, bytes, int]:
    """A box's length with its header, its kind, and the length of its header."""
    length, kind = struct.unpack_from(">I4s", head)
    if length == 1 and len(head) == 2 * _HEADER:  # the length follows in 64 bits
        return struct.unpack_from(">Q", head, _HEADER)[0], kind, 2 * _HEADER
    return (rest if length == 0 else length), kind, _HEADER


@final
class _Claims:
    """What the tables of one file claim in all."""

    def __init__(self, size: int, name: str) -> None:
        self._size, self._name = size, name
        self._bytes = 0  # that the samples claimed so far take at least
        self._samples = 0  # with a size each

    def refuse(self, kind: bytes, what: str) -> DataError:
        msg = (
            f"{self._name}: its {kind.decode('latin-1')} box {what}. Restore the file, write it anew "
            "(ffmpeg -i in.mp4 -c copy out.mp4), or filter its rows out"
        )
        return DataError(msg)

    def walk(self, kind: bytes, body: memoryview, depth: int) -> None:
        if kind == b"cmov":
            raise self.refuse(kind, "is a compressed index, which nothing bounds")
        if kind in (b"stsz", b"stz2") and len(body) >= 12:  # noqa: PLR2004
            self._sizes(kind, *struct.unpack_from(">II", body, 4))
        elif kind == b"trun" and len(body) >= 8:  # noqa: PLR2004
            self._sizes(kind, 0, struct.unpack_from(">I", body, 4)[0])
        elif kind == b"elst" and len(body) >= 8 and struct.unpack_from(">I", body, 4)[0] > _EDITS:  # noqa: PLR2004
            raise self.refuse(kind, f"has more than {_EDITS} edits")
        elif kind == b"stbl":
            self._chunks(body)
        if kind in _INSIDE and depth < _DEPTH:
            for child, inside in _children(body):
                self.walk(child, inside, depth + 1)

    def _sizes(self, kind: bytes, constant: int, count: int) -> None:
        constant = 0 if kind == b"stz2" else constant
        self._bytes += count * max(constant, 1)
        self._samples += 0 if constant else count
        if self._bytes > self._size or self._samples > LONGEST:
            raise self.refuse(
                kind, f"claims {count} samples, in all {self._bytes} bytes or more, of a file of {self._size}"
            )

    def _chunks(self, stbl: memoryview) -> None:
        """Refuse runs of chunks that hold more samples than there are bytes."""
        tables = dict(_children(stbl))
        runs, offset_table = tables.get(b"stsc"), tables.get(b"stco", tables.get(b"co64"))
        if runs is None or offset_table is None or len(runs) < 8 or len(offset_table) < 8:  # noqa: PLR2004
            return
        held = (len(runs) - 8) // 12
        runs_R3 = np.frombuffer(runs, ">u4", held * 3, 8).reshape(-1, 3).astype(np.float64)
        ends = np.append(runs_R3[1:, 0], min(struct.unpack_from(">I", offset_table, 4)[0], len(offset_table) // 4) + 1)
        total = float((np.maximum(ends - runs_R3[:, 0], 0) * runs_R3[:, 1]).sum()) if held else 0.0
        if total > self._size:
            raise self.refuse(b"stsc", f"claims {total:.0f} samples, of a file of {self._size} bytes")


def _children(body: memoryview) -> Iterator[tuple[bytes, memoryview]]:
    at = 0
    while at + _HEADER <= len(body):
        length, kind, header = _length(bytes(body[at : at + 2 * _HEADER]), len(body) - at)
        if length < header:
            return
        yield kind, body[at + header : at + length]
        at += length
