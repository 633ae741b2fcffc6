"""Sequences of unequal length as addresses in memory: the form of a token column between stages.

The sequences lie where they were read or made: in a mapped cache file, an Arrow buffer, the result of a tokenizer.
Choosing, splitting and joining them moves addresses, never tokens. The fields copy each token once, to its place in
the batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.errors import DataError
from spiral_stream.fields import _tokens

Int64 = NDArray[np.int64]
UInt64 = NDArray[np.uint64]

FEW_BYTES: Final = 16 << 20  # that are brought into memory at a time
MOST_FIELDS: Final = 16  # that one call writes
_COPY: Final = 0  # the items as they are: `sequence.TokenFill.TOKENS`


@final
@dataclass(frozen=True, slots=True, eq=False)
class Ragged:
    """S sequences of little-endian integers, all signed or all unsigned. Item sizes may differ between sequences."""

    addresses: UInt64  # [S] where each begins; aligned to the item size
    lengths: Int64  # [S] items
    item_bytes: NDArray[np.uint8]  # [S] 1, 2, 4 or 8
    signed: bool
    owners: tuple[Any, ...]  # keep the memory alive
    is_near: bool = False  # see `near`

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def nbytes(self) -> int:
        """Bytes of all items."""
        return int(self.lengths @ self.item_bytes.astype(np.int64))

    def take(self, indices: Int64) -> "Ragged":
        """Return the sequences at these places, in this order."""
        return Ragged(
            self.addresses[indices], self.lengths[indices], self.item_bytes[indices], self.signed, self.owners
        )

    def run(self, first: int, last: int) -> "Ragged":
        """Return sequences [first, last), as views."""
        some = slice(first, last)
        found = self.addresses[some], self.lengths[some], self.item_bytes[some]
        return Ragged(*found, self.signed, self.owners, self.is_near)

    def near(self, most_bytes: int = FEW_BYTES) -> "Ragged":
        """Bring the items into memory, if they are few, so that they can be copied at once, without a wait for a disk.

        A field of few items is then written without giving up the interpreter's lock: another thread that waits for the lock
        would take it, and give it back 20 us later. That costs an eighth of the CPU time of small batches.
        """
        if not _tokens.touch(self.addresses, self.lengths, self.item_bytes, most_bytes):
            return self
        return Ragged(self.addresses, self.lengths, self.item_bytes, self.signed, self.owners, is_near=True)

    def write(
        self,
        specs: tuple[int, ...],
        outs_BT: tuple[NDArray[Any], ...],
        rows_B: int,
        width_T: int,
        lengths: Int64,
        rows: Int64 | None = None,
        starts: Int64 | None = None,
        offsets: Int64 | None = None,
        numbers: Int64 | None = None,
    ) -> int:
        """Write pieces of the sequences to fields of a batch, padding included, in one call.

        Args:
            specs: of each of F fields, at most `MOST_FIELDS`: what it writes (`sequence.TokenFill`), padding, bytes of an item.
            outs_BT: F arrays of shape [B, T], C-contiguous; overwritten.
            rows_B: B.
            width_T: T.
            lengths: shape [S], items of each piece.
            rows: shape [S], the row of each piece; None lays piece i in row i.
            starts: shape [S], where each begins in its row; None is the row's begin.
            offsets: shape [S], where each begins in its sequence; None is the sequence's begin.
            numbers: shape [S], the number of each piece in its row, for segments; None counts those that have an item.

        Returns:
            The first piece with an item that does not fit one of the fields, or -1.

        Raises:
            ValueError: a piece is outside the batch or its sequence, or overlaps another; nothing was written.
        """
        return _tokens.fill(
            *(specs, outs_BT, self.signed, self.is_near, rows_B, width_T),
            *(self.addresses, self.lengths, self.item_bytes, rows, starts, offsets),
            lengths,
            numbers,
        )

    def arrow(self) -> pa.Array:
        """Return the sequences as an Arrow array of ``large_list<int64>``: a copy."""
        ends = np.concatenate([[0], np.cumsum(self.lengths)])
        flat = np.empty(int(ends[-1]), dtype=np.int64)
        row = np.zeros(len(self), dtype=np.int64)
        refused = self.write((_COPY, 0, flat.itemsize), (flat,), 1, len(flat), self.lengths, row, ends[:-1])
        if refused >= 0:
            msg = "an item is above 2**63 - 1, the largest of int64; store the column as int64"
            raise DataError(msg, row=refused)
        return pa.LargeListArray.from_arrays(pa.array(ends), pa.array(flat))

    @classmethod
    def of_flat(cls, values: NDArray[Any], offsets: Int64) -> "Ragged":
        """Wrap sequences that lie end to end in one array, without a copy.

        Args:
            values: shape [N], of any integer type.
            offsets: shape [S + 1], int64: where each sequence begins in ``values``; last, where the last one ends.
        """
        size = values.dtype.itemsize
        starts = np.uint64(values.ctypes.data) + offsets[:-1].astype(np.uint64) * np.uint64(size)
        sizes = np.full(len(starts), size, dtype=np.uint8)
        return cls(starts, np.diff(offsets), sizes, values.dtype.kind == "i", (values,))

    @classmethod
    def of_arrow(cls, column: pa.Array) -> "Ragged":
        """Wrap a list column of integers, without a copy. A null list becomes an empty sequence.

        Args:
            column: ``list<int>`` or ``large_list<int>``. An item that is null becomes 0; `null_items` finds them.
        """
        offsets = column.offsets.to_numpy().astype(np.int64)
        items = column.values.fill_null(0) if column.values.null_count else column.values
        values = items.to_numpy(zero_copy_only=False)
        made = cls.of_flat(values, offsets)
        if not column.null_count:
            return made
        null = column.is_null().to_numpy(zero_copy_only=False)
        return cls(made.addresses, np.where(null, 0, made.lengths), made.item_bytes, made.signed, made.owners)

    @classmethod
    def concat(cls, parts: Sequence["Ragged"]) -> "Ragged":
        """Join several, in order. They are all signed or all unsigned."""
        if len(parts) == 1:
            return parts[0]
        assert len({p.signed for p in parts}) == 1, "signed and unsigned tokens in one column"
        return cls(
            np.concatenate([p.addresses for p in parts]),
            np.concatenate([p.lengths for p in parts]),
            np.concatenate([p.item_bytes for p in parts]),
            parts[0].signed,
            tuple(owner for p in parts for owner in p.owners),
        )
