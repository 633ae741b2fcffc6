"""Where the values of an Arrow stream lie: the heads of its messages, read without their bodies.

A stream is a schema and record batches, one message each: a length, a flatbuffer that says where each buffer of the body
lies, and the body (https://arrow.apache.org/docs/format/Columnar.html). Arrow's own reader reads bodies too. So the few
fields of the flatbuffers that are needed are read here.
"""

import struct
from dataclasses import dataclass
from struct import Struct
from typing import Final, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.storage.file_object import WindowedObject

_MAGIC: Final = b"ARROW1"  # of Arrow's other format, which has an index at its end
_MESSAGE: Final = Struct("<Ii")  # the mark of a message, and the bytes of its flatbuffer
_MARK: Final = 0xFFFFFFFF
_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3
_MOST_BYTES: Final = 64 << 20  # of one flatbuffer
_U16, _U32, _I32, _I64 = Struct("<H"), Struct("<I"), Struct("<i"), Struct("<q")


@final
@dataclass(frozen=True, slots=True, eq=False)
class BatchPlaces:
    """One record batch of a file."""

    rows: int
    nodes: NDArray[np.int64]  # [nodes, 2]: length and nulls of each array, depth first
    buffers: NDArray[np.int64]  # [buffers, 2]: first byte in the file, and bytes


def walked(file: WindowedObject) -> tuple[pa.Schema, tuple[BatchPlaces, ...]]:
    """Return the schema of a stream, and its batches that have rows.

    Raises:
        ValueError: it is no stream, ends early, or has what is not read by range; says what.
    """
    if file.at(0, len(_MAGIC)) == _MAGIC:
        msg = "it is an Arrow file with an index at its end (Feather), not a stream"
        raise ValueError(msg)
    schema: pa.Schema | None = None
    blocks: list[BatchPlaces] = []
    at = 0
    while data := _head(file, at):
        try:
            message = _Table.root(data[_MESSAGE.size :])
            kind, body = message.byte(1), at + len(data)
            if schema is None and kind == _SCHEMA:
                schema = pa.ipc.read_schema(pa.py_buffer(data))
            elif schema is not None and kind == _BATCH:
                blocks.append(_block(message.table(2), body, min(message.long(3), file.size - body)))
            else:
                what = "dictionaries" if kind == _DICTIONARY else f"a message of kind {kind}"
                msg = f"it has {what} at byte {at:,}, which nothing reads by range"
                raise ValueError(msg)
            at = body + message.long(3)
        except (IndexError, struct.error) as error:
            msg = f"the message at byte {at:,} is damaged"
            raise ValueError(msg) from error
    if at + _MESSAGE.size != file.size or schema is None:
        raise _ended(at, file.size)
    return schema, tuple(block for block in blocks if block.rows)


def _head(file: WindowedObject, at: int) -> bytes:
    """The head of the message at a byte; none where that is the mark of the end.

    Raises:
        ValueError: there is none.
    """
    begin = file.at(at, _MESSAGE.size)
    if len(begin) < _MESSAGE.size:
        raise _ended(at, file.size)
    mark, length = _MESSAGE.unpack(begin)
    if mark != _MARK or not 0 <= length <= _MOST_BYTES:
        msg = f"there is no Arrow message at byte {at:,}"
        raise ValueError(msg)
    if not length:
        return b""
    data = file.at(at, _MESSAGE.size + length)
    if len(data) < _MESSAGE.size + length:
        raise _ended(at, file.size)
    return data


def _block(batch: "_Table", body: int, size: int) -> BatchPlaces:
    if batch.has(3):
        msg = "its batches are compressed, and then nothing reads rows of them by range"
        raise ValueError(msg)
    rows, nodes, buffers = batch.long(0), batch.pairs(1), batch.pairs(2)
    if (buffers < 0).any() or (buffers > size).any() or (buffers.sum(axis=1) > size).any():
        msg = f"a buffer of the batch at byte {body:,} does not lie in it"
        raise ValueError(msg)
    if len(nodes) and nodes[0, 0] != rows:
        msg = f"the batch at byte {body:,} has {rows:,} rows, and its first column {nodes[0, 0]:,}"
        raise ValueError(msg)
    return BatchPlaces(rows, nodes, buffers + np.array([body, 0]))


def _ended(at: int, size: int) -> ValueError:
    return ValueError(
        f"its rows end at byte {at:,} of {size:,} without Arrow's mark of an end: it was cut, or not closed"
    )


@final
class _Table:
    """A table of a flatbuffer: its fields by number."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data, self._at = data, at
        self._fields = at - _I32.unpack_from(data, at)[0]
        self._count = (_U16.unpack_from(data, self._fields)[0] - 4) // 2

    @classmethod
    def root(cls, data: bytes) -> "_Table":
        """Return the table that a flatbuffer is."""
        return cls(data, _U32.unpack_from(data, 0)[0])

    def has(self, number: int) -> bool:
        """Whether it has a field."""
        return self._place(number) > 0

    def byte(self, number: int) -> int:
        """Return a field of 8 bits."""
        place = self._place(number)
        return self._data[place] if place else 0

    def long(self, number: int) -> int:
        """Return a field of 64 bits, which counts something."""
        place = self._place(number)
        found: int = _I64.unpack_from(self._data, place)[0] if place else 0
        if found < 0:
            raise IndexError(found)
        return found

    def table(self, number: int) -> "_Table":
        """Return a field that is a table."""
        return _Table(self._data, self._followed(number))

    def pairs(self, number: int) -> NDArray[np.int64]:
        """Return a field that is a list of structs of two numbers of 64 bits, shape [N, 2]."""
        if not self.has(number):
            return np.empty((0, 2), np.int64)
        at = self._followed(number)
        count = _U32.unpack_from(self._data, at)[0]
        if at + 4 + 16 * count > len(self._data):
            raise IndexError(count)
        return np.frombuffer(self._data, "<i8", 2 * count, at + 4).reshape(-1, 2).astype(np.int64)

    def _place(self, number: int) -> int:
        """Where a field lies; 0 if it is not there."""
        if number >= self._count:
            return 0
        offset: int = _U16.unpack_from(self._data, self._fields + 4 + 2 * number)[0]
        return self._at + offset if offset else 0

    def _followed(self, number: int) -> int:
        place = self._place(number)
        if not place:
            raise IndexError(number)
        found: int = place + _U32.unpack_from(self._data, place)[0]
        return found
