"""One epoch of a mixture whose streams each go on in the order of their samples, position by position.

`slices.Epoch` says which stream stands where, and shuffles the samples of a slice as well. Here a slice has the same streams
at the same positions, and each stream's samples ascend along them. So what is left at any position is, of each stream,
everything from some sample on: a place where other shares may take over (docs/decisions/0082).

Cost, on one core: what `Epoch.split` takes for whole slices, so 8,192 consecutive positions cost at most three slices. Random
positions cost a slice of about 4,096 each.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.sampling.mixing.slices import Epoch, Int64

_SLICES: Final = 256  # whole slices that are laid out together: about 1 M positions


class _Slices(NamedTuple):
    """Whole slices, [N] each: their positions, ascending, with stream and sample of each."""

    positions: Int64
    streams: Int64
    samples: Int64


@final
class EpochInOrder:
    """An epoch with the streams of another one, and with samples in order; see `slices.Epoch`.

    Args:
        layout: says which stream stands at each position.
    """

    def __init__(self, layout: Epoch) -> None:
        self._layout = layout
        self.quotas, self.total = layout.quotas, layout.total
        self.border, self.shares, self.ahead = layout.border, layout.shares, layout.ahead

    def split(self, positions: Int64) -> tuple[Int64, Int64]:
        """Map positions to streams, and to how many samples of the stream come before in the epoch; shape [P] each."""
        streams, samples = np.empty_like(positions), np.empty_like(positions)
        for part, laid in self._around(positions):
            at = np.searchsorted(laid.positions, positions[part])
            streams[part], samples[part] = laid.streams[at], laid.samples[at]
        return streams, samples

    def join(self, streams: Int64, samples: Int64) -> Int64:
        """Map samples to positions: the inverse of `split`."""
        out = np.empty_like(samples)
        for part, laid in self._around(self._layout.join(streams, samples)):
            for stream in np.unique(streams[part]).tolist():
                at, here = part[streams[part] == stream], np.flatnonzero(laid.streams == stream)
                out[at] = laid.positions[here[np.searchsorted(laid.samples[here], samples[at])]]
        return out

    def taken(self, position: int) -> Int64:
        """Return how many samples of each stream come before a position in [0, total]; shape [K]."""
        end, taken = self._layout.border(position)
        streams, _ = self._layout.split(np.arange(position, end, dtype=np.int64))
        return taken - np.bincount(streams, minlength=len(taken))

    def _around(self, positions: Int64) -> Iterator[tuple[NDArray[np.int64], _Slices]]:
        """Yield indices of ``positions``, in groups, with all slices that the group lies in."""
        begins, ends = self._layout.around(positions)
        firsts, at = np.unique(begins, return_index=True)
        group = np.searchsorted(firsts, begins) // _SLICES
        for i in range(-(-len(firsts) // _SLICES)):
            slices = slice(i * _SLICES, (i + 1) * _SLICES)
            yield np.flatnonzero(group == i), self._laid_out(firsts[slices], ends[at[slices]])

    def _laid_out(self, begins: Int64, ends: Int64) -> _Slices:
        """Whole slices, by their borders, which ascend."""
        sizes = ends - begins
        positions = np.repeat(begins - np.cumsum(sizes) + sizes, sizes) + np.arange(int(sizes.sum()))
        streams, samples = self._layout.split(positions)
        in_order = np.empty_like(samples)
        in_order[np.argsort(streams, kind="stable")] = samples[np.lexsort((samples, streams))]
        return _Slices(positions, streams, in_order)
