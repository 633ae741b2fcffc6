"""Pieces of rows in a keyed order, laid end to end: where a piece begins, which piece lies at a place."""

from typing import final

import numpy as np

from spiral_stream.sampling.order import UInt64
from spiral_stream.sampling.permutation import permute


@final
class Layout:
    """Pieces permuted by key and laid end to end; memory O(pieces), a lookup O(log pieces)."""

    def __init__(self, rows: UInt64, own_key: int) -> None:
        """Lay the pieces.

        Args:
            rows: shape [U], uint64: rows of each piece; zeros are allowed.
            own_key: decides the order of the pieces.
        """
        numbers = np.arange(rows.size, dtype=np.uint64)
        self.pieces = permute(numbers, rows.size, np.uint64(own_key)).astype(np.int64)
        ends = np.cumsum(rows[self.pieces], dtype=np.uint64)
        self.begins = np.concatenate((np.zeros(1, dtype=np.uint64), ends))
        self._slot_of = np.empty_like(self.pieces)
        self._slot_of[self.pieces] = np.arange(rows.size)

    def at(self, places: UInt64) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], UInt64]:
        """Which piece lies at each place, and how far into it: two arrays of shape [P], int64 and uint64."""
        # The last of equal begins is the piece that has rows.
        slots = np.searchsorted(self.begins, places, side="right") - 1
        return self.pieces[slots], places - self.begins[slots]

    def begin(self, pieces: np.ndarray[tuple[int], np.dtype[np.int64]]) -> UInt64:
        """Where each piece begins in the layout: shape [P] int64 -> [P] uint64."""
        return self.begins[self._slot_of[pieces]]
