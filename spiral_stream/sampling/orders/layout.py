"""Runs of rows, laid end to end in a keyed order: where each begins, and which one holds a position."""

from typing import final

import numpy as np

from spiral_stream.sampling.order import UInt64
from spiral_stream.sampling.orders.permutation import permute


@final
class Layout:
    """Pieces permuted by key and laid end to end; memory O(pieces), a lookup O(log pieces)."""

    def __init__(self, rows: UInt64, layout_key: int) -> None:
        """Lay the pieces.

        Args:
            rows: shape [U], uint64: rows per piece; zeros are allowed.
            layout_key: decides the order of the pieces.
        """
        numbers = np.arange(rows.size, dtype=np.uint64)
        self.pieces = permute(numbers, rows.size, np.uint64(layout_key)).astype(np.int64)
        ends = np.cumsum(rows[self.pieces], dtype=np.uint64)
        self.begins = np.concatenate((np.zeros(1, dtype=np.uint64), ends))
        self._slot_of = np.empty_like(self.pieces)
        self._slot_of[self.pieces] = np.arange(rows.size)

    def at(self, positions: UInt64) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], UInt64]:
        """Return which piece lies at each place, and the offset in it: two arrays of shape [P], int64 and uint64."""
        # Of pieces that begin at the same place, only the last has rows.
        slots = np.searchsorted(self.begins, positions, side="right") - 1
        return self.pieces[slots], positions - self.begins[slots]

    def begin(self, pieces: np.ndarray[tuple[int], np.dtype[np.int64]]) -> UInt64:
        """Return where each piece begins in the layout: shape [P] int64 -> [P] uint64."""
        return self.begins[self._slot_of[pieces]]
