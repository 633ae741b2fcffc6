"""Runs of rows, laid end to end in a keyed order: where each begins, and which one holds a position."""

from collections.abc import Callable
from typing import final

import numpy as np

from spiral_stream.sampling.order import Arrangement, UInt64
from spiral_stream.sampling.orders.permutation import permute, unpermute
from spiral_stream.seeding import combine


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


@final
class Units(Arrangement):
    """Units of rows in the order of a layout: each lies whole, its rows in their order or permuted by key."""

    def __init__(self, rows: UInt64, layout: Layout, row_key: int | None = None) -> None:
        """Lay the units.

        Args:
            rows: shape [U], uint64: rows per unit, in row order.
            layout: of these units.
            row_key: permutes the rows inside each unit; None leaves them in their order.
        """
        self._rows, self._layout = rows, layout
        self._starts = np.concatenate((np.zeros(1, dtype=np.uint64), np.cumsum(rows, dtype=np.uint64)))
        self._key = None if row_key is None else np.uint64(row_key)
        self.size = int(self._starts[-1])

    def rows(self, positions: UInt64) -> UInt64:
        units, offsets = self._layout.at(np.asarray(positions, dtype=np.uint64))
        return self._starts[units] + self._inside(permute, units, offsets)

    def positions(self, rows: UInt64) -> UInt64:
        wanted = np.asarray(rows, dtype=np.uint64)
        units = np.searchsorted(self._starts, wanted, side="right") - 1
        return self._layout.begin(units) + self._inside(unpermute, units, wanted - self._starts[units])

    def ranks(self, rows: UInt64) -> UInt64:
        """Return the position of each row, as sorted rows do."""
        return self.positions(rows)

    def _inside(
        self, moved: Callable[..., UInt64], units: np.ndarray[tuple[int], np.dtype[np.int64]], offsets: UInt64
    ) -> UInt64:
        if self._key is None:
            return offsets
        return moved(offsets, self._rows[units], combine(self._key, units.astype(np.uint64)))
