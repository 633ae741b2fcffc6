"""Streams one after the other: where the samples of each stand in an epoch, all of the first, then the second.

An epoch has the same quotas as a mixture's. Everything is a search in the sums of the quotas; memory is O(streams).
"""

from typing import final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.sampling.mixing.slices import Int64


@final
class EpochInTurn:
    """One epoch; see `slices.Epoch`, whose place it takes."""

    def __init__(self, number: int, quotas: Int64) -> None:
        """Lay the streams end to end.

        Args:
            number: the epoch's.
            quotas: shape [K], int64, 0 or more, not all 0.
        """
        self.number, self.quotas, self.total = number, quotas, int(quotas.sum())
        self._ends = np.cumsum(quotas)
        self._begins: Int64 = self._ends - quotas

    def split(self, positions: Int64) -> tuple[Int64, Int64]:
        """Map positions to streams, and to how many samples of the stream come before in the epoch; shape [P] each."""
        streams = np.searchsorted(self._ends, positions, side="right").astype(np.int64)
        return streams, positions - self._begins[streams]

    def join(self, streams: Int64, samples: Int64) -> Int64:
        """Map samples to positions: the inverse of `split`."""
        return self._begins[streams] + samples

    def border(self, position: int) -> tuple[int, Int64]:
        """Return the position itself, since every one is a border, and the samples of each stream before it; shape [K]."""
        return position, np.clip(position - self._begins, 0, self.quotas)

    def shares(self, position: int) -> NDArray[np.float64]:
        """Return 1 for the stream that stands at a position, and 0 for the others; shape [K], float64."""
        out = np.zeros(len(self.quotas))
        out[self.split(np.array([min(position, self.total - 1)]))[0][0]] = 1.0
        return out

    def ahead(self, position: int, taken: Int64) -> NDArray[np.float64]:
        """Return zeros: no stream is ahead of its turn; shape [K], float64."""
        del position
        return np.zeros(len(taken))
