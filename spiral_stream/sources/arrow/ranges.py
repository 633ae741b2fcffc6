"""Rows of Arrow record batches by range: which bytes of their buffers hold them, and the arrays that these bytes make.

What bytes hold the values of a text or a list is known when its offsets are. So reading goes in rounds: each round asks for
ranges of many buffers together, and arrays are made when all have come. Nothing else of a batch is read.
"""

from collections.abc import Callable, Generator, Sequence
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.sources.arrow.messages import BatchPlaces

Range = tuple[Any, ...]  # first byte in the file, and bytes
Runs = NDArray[np.int64]  # [R, 2]: first row of a run of neighbours in an array, and one past its last
Rounds = Generator[list[Range], list[memoryview], pa.Array]  # yields ranges, is sent their bytes, returns an array
_Made = Callable[[], pa.Array]

_t = pa.types
_LONG: Final = (_t.is_large_string, _t.is_large_binary, _t.is_large_list)
_TEXT: Final = (_t.is_string, _t.is_binary, _t.is_large_string, _t.is_large_binary)
_LIST: Final = (_t.is_list, _t.is_map, _t.is_large_list)


def stored_type(kind: pa.DataType) -> pa.DataType:
    """Return the type that values are stored in: of an extension type, what it stores."""
    return stored_type(kind.storage_type) if isinstance(kind, pa.BaseExtensionType) else kind


def unread_type(kind: pa.DataType) -> pa.DataType | None:
    """Return a type within a type whose values are not read by range; None if there is none."""
    kind = stored_type(kind)
    if _any(kind, _LIST) or _t.is_fixed_size_list(kind) or (_t.is_struct(kind) and kind.num_fields):
        found = (unread_type(child) for child in _children(kind))
        return next((each for each in found if each is not None), None)
    known = _t.is_null(kind) or _any(kind, _TEXT) or _is_fixed(kind)
    return None if known else kind


@final
class ColumnPlaces:
    """One column of one batch.

    Args:
        kind: its type.
        block: the batch.
        node: its place among the arrays of the batch, depth first.
        buffer: the place of its first buffer.
    """

    def __init__(self, kind: pa.DataType, block: BatchPlaces, node: int = 0, buffer: int = 0) -> None:
        self.kind, self._block, self._buffer = stored_type(kind), block, buffer
        self._type = kind
        self.children: list[ColumnPlaces] = []
        self.end_node, self.end_buffer = node + 1, buffer + _own_buffers(self.kind)
        for child in _children(self.kind):
            made = ColumnPlaces(child, block, self.end_node, self.end_buffer)
            self.children.append(made)
            self.end_node, self.end_buffer = made.end_node, made.end_buffer

    def taken(self, runs: Runs) -> Rounds:
        """Read runs of rows, in their order."""
        found = yield from self._taken(runs)
        return found if self._type is self.kind else pa.ExtensionArray.from_storage(self._type, found)

    def _taken(self, runs: Runs) -> Rounds:
        rows = int((runs[:, 1] - runs[:, 0]).sum())
        if _t.is_null(self.kind):
            return pa.nulls(rows)
        if _any(self.kind, _TEXT) or _any(self.kind, _LIST):
            return (yield from self._by_offsets(runs, rows))
        if _t.is_struct(self.kind):
            own, *children = yield from together([self.valid(runs), *(child.taken(runs) for child in self.children)])
            return pa.StructArray.from_arrays(children, fields=list(self.kind.fields), mask=pa.array(~own))
        if _t.is_fixed_size_list(self.kind):
            size = self.kind.list_size
            own, values = yield from together([self.valid(runs), self.children[0].taken(runs * size)])
            return pa.FixedSizeListArray.from_arrays(values, type=self.kind, mask=pa.array(~own))
        own, data = yield from together([self.valid(runs), self._fixed(runs)])
        return pa.Array.from_buffers(self.kind, rows, [_packed(own), pa.py_buffer(data)])

    def valid(self, runs: Runs) -> Rounds:
        """Read which rows of runs are not null: [P], bool."""
        return (yield from self._bits(0, runs))

    def _bits(self, number: int, runs: Runs) -> Rounds:
        """Read bits of one of its buffers; all are set where there is no buffer."""
        start, size = self._place(number)
        if not size:
            return np.ones(int((runs[:, 1] - runs[:, 0]).sum()), np.bool_)
        _need_within(runs, 8 * size)
        first, last = runs[:, 0] // 8, -(-runs[:, 1] // 8)
        found = yield list(zip((start + first).tolist(), (last - first).tolist(), strict=True))
        parts = [
            np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")[begin - 8 * at : end - 8 * at]
            for (begin, end), at, data in zip(runs.tolist(), first.tolist(), found, strict=True)
        ]
        return np.concatenate([np.empty(0, np.uint8), *parts]).astype(np.bool_)

    def _fixed(self, runs: Runs) -> Rounds:
        """Read values that have one size."""
        if _t.is_boolean(self.kind):
            bits = yield from self._bits(1, runs)
            return np.packbits(bits, bitorder="little").tobytes()
        return (yield from self._bytes(1, runs * (self.kind.bit_width // 8)))

    def _bytes(self, number: int, runs: Runs) -> Rounds:
        """Read runs of bytes of one of its buffers, joined."""
        start, size = self._place(number)
        _need_within(runs, size)
        found = yield [(start + begin, end - begin) for begin, end in runs.tolist()]
        return b"".join(found)

    def _by_offsets(self, runs: Runs, rows: int) -> Rounds:
        """Read texts or lists: their offsets, and then their values."""
        item = np.dtype("<i8" if _any(self.kind, _LONG) else "<i4")
        wanted = runs[runs[:, 1] > runs[:, 0]]
        own, data = yield from together(
            [self.valid(wanted), self._bytes(1, (wanted + np.array([0, 1])) * item.itemsize)]
        )
        found = np.frombuffer(data, item).astype(np.int64)
        counts = wanted[:, 1] - wanted[:, 0] + 1  # offsets of each run
        lasts = np.cumsum(counts) - 1
        inner = np.stack([found[lasts - counts + 1], found[lasts]], axis=1)
        lengths = np.delete(np.diff(found), lasts[:-1])
        if len(lengths) and lengths.min() < 0:
            msg = "its offsets go back"
            raise ValueError(msg)
        offsets = pa.py_buffer(np.concatenate([[0], np.cumsum(lengths)]).astype(item))
        if self.children:
            values = yield from self.children[0].taken(inner)
            return pa.Array.from_buffers(self.kind, rows, [_packed(own), offsets], children=[values])
        values = yield from self._bytes(2, inner)
        return pa.Array.from_buffers(self.kind, rows, [_packed(own), offsets, pa.py_buffer(values)])

    def _place(self, number: int) -> tuple[int, int]:
        start, size = self._block.buffers[self._buffer + number].tolist()
        return start, size


def columns_of(schema: pa.Schema, block: BatchPlaces) -> dict[str, ColumnPlaces]:
    """Return the columns of a batch by name.

    Raises:
        ValueError: the batch has other arrays than its schema.
    """
    found, node, buffer = {}, 0, 0
    for field in schema:
        found[field.name] = column = ColumnPlaces(field.type, block, node, buffer)
        node, buffer = column.end_node, column.end_buffer
    if (node, buffer) != (len(block.nodes), len(block.buffers)):
        msg = f"a batch has {len(block.nodes)} arrays and {len(block.buffers)} buffers; its schema has {node} and {buffer}"
        raise ValueError(msg)
    return found


def together(all_of: Sequence[Rounds]) -> Generator[list[Range], list[memoryview], list[Any]]:
    """Read several at once: what each asks for in a round is asked for together."""
    results: list[Any] = [None] * len(all_of)
    asked: dict[int, list[Range]] = {}

    def step(at: int, data: list[memoryview] | None) -> None:
        try:
            asked[at] = next(all_of[at]) if data is None else all_of[at].send(data)
        except StopIteration as done:
            asked.pop(at, None)
            results[at] = done.value

    for at in range(len(all_of)):
        step(at, None)
    while asked:
        found = yield [each for ranges in asked.values() for each in ranges]
        begin = 0
        for at, ranges in list(asked.items()):
            step(at, found[begin : begin + len(ranges)])
            begin += len(ranges)
    return results


def _need_within(runs: Runs, size: int) -> None:
    """Refuse runs that do not lie in a buffer.

    Raises:
        ValueError: some do not.
    """
    if len(runs) and not 0 <= runs.min() <= runs.max() <= size:
        msg = f"its offsets or counts lead from {runs.min():,} to {runs.max():,} in a buffer of {size:,}"
        raise ValueError(msg)


def _any(kind: pa.DataType, tests: Sequence[Callable[[pa.DataType], bool]]) -> bool:
    return any(test(kind) for test in tests)


def _is_fixed(kind: pa.DataType) -> bool:
    return bool(_t.is_primitive(kind) or _t.is_decimal(kind) or _t.is_fixed_size_binary(kind))


def _own_buffers(kind: pa.DataType) -> int:
    """How many buffers an array has, without those of its children."""
    if _t.is_null(kind):
        return 0
    if _t.is_struct(kind) or _t.is_fixed_size_list(kind):
        return 1
    return 3 if _any(kind, _TEXT) else 2


def _children(kind: pa.DataType) -> list[pa.DataType]:
    if _t.is_map(kind):
        return [pa.struct([kind.key_field, kind.item_field])]
    if _t.is_struct(kind):
        return [kind.field(at).type for at in range(kind.num_fields)]
    return [kind.value_type] if _any(kind, _LIST) or _t.is_fixed_size_list(kind) else []


def _packed(valid: NDArray[np.bool_]) -> pa.Buffer | None:
    return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
