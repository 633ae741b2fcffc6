"""The samples of a chapter's windows, held until the batches that contain them are built.

Samples are numbered in the order in which they joined the chapter, and batches refer to them by number. A window's
columns are forgotten once the last of its samples is delivered; places and positions stay, for they are small.
Cost: O(samples of the batch) per batch, however many windows there are.
"""

from typing import final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.runtime.columns.samples import Samples
from spiral_stream.sampling.order import UInt64

Int64 = NDArray[np.int64]


@final
class HeldSamples:
    """The samples of one chapter. Not thread-safe."""

    def __init__(self) -> None:
        self.count = 0  # samples so far; the next one gets this number
        self._windows: list[Samples] = []
        self._positions: list[UInt64] = []  # of each window's samples, in the epoch
        self._firsts = np.empty(64, dtype=np.int64)  # the number of each window's first sample; grows by doubling
        self._pending: list[int] = []  # samples of each window that no delivered batch has begun
        self._oldest = 0  # the first window with pending samples

    def add(self, samples: Samples, positions: UInt64) -> None:
        """Add a window.

        Args:
            samples: at least one.
            positions: where each of them, or the sample it was made from, stands in the epoch; shape [S].
        """
        at = len(self._windows)
        if at == len(self._firsts):
            self._firsts = np.concatenate((self._firsts, np.empty_like(self._firsts)))
        self._firsts[at] = self.count
        self._windows.append(samples)
        self._positions.append(positions)
        self._pending.append(len(samples))
        self.count += len(samples)

    def repeat(self, numbers: Int64) -> None:
        """Expect further deliveries of samples: one for each of these numbers."""
        for at, more in _counted(self._window_of(numbers)):
            self._pending[at] += more

    def take(self, numbers: Int64) -> Samples:
        """Return samples in the order of ``numbers``; shape [S]."""
        window = self._window_of(numbers)
        if len(window) and window.min() == (at := int(window.max())):  # most batches are of one window
            return self._windows[at].take(numbers - self._firsts[at])
        by = np.argsort(window, kind="stable")
        parts = [
            self._windows[at].take(numbers[by][window[by] == at] - self._firsts[at])
            for at in np.unique(window).tolist()
        ]
        back = np.empty(len(by), dtype=np.int64)
        back[by] = np.arange(len(by))
        return Samples.concat(parts).take(back)

    def release(self, begun: Int64, unfinished: Int64 | None = None) -> None:
        """Note that a batch is delivered, and forget the columns of windows that no later batch needs.

        Args:
            begun: numbers of the samples that the batch delivers, or delivers the first piece of.
            unfinished: numbers of samples of which later batches may deliver further pieces: their windows, and those
                after them, are held.
        """
        end = len(self._windows)
        if unfinished is not None:
            end = int(self._window_of(unfinished).min(initial=end))
        for at, count in _counted(self._window_of(begun)):
            self._pending[at] -= count
            if not self._pending[at] and at < end:
                self.forget(at)
        while self._oldest < end and not self._pending[self._oldest]:
            self.forget(self._oldest)
            self._oldest += 1

    def positions_of(self, wanted: NDArray[np.bool_]) -> UInt64:
        """Return the positions of the samples that ``wanted`` selects, ascending and each once; shape [count], bool."""
        return np.unique(np.concatenate([np.empty(0, dtype=np.uint64), *self._positions])[wanted])

    def positions_and_parts(self, numbers: Int64) -> tuple[UInt64, Int64]:
        """Return the position of each sample, and which part of its parent it is; shape [S] each, in the order of ``numbers``."""
        positions, parts = np.empty(len(numbers), dtype=np.uint64), np.empty(len(numbers), dtype=np.int64)
        window = self._window_of(numbers)
        for at in np.unique(window).tolist():
            mine = np.flatnonzero(window == at)
            offsets = numbers[mine] - self._firsts[at]
            positions[mine], parts[mine] = self._positions[at][offsets], self._windows[at].parts[offsets]
        return positions, parts

    def numbers_of(self, stream: int, row: int) -> Int64:
        """Return the numbers of the samples that come from a surviving row of a stream."""
        found = [
            self._firsts[at] + np.flatnonzero((window.stream_rows.streams == stream) & (window.stream_rows.rows == row))
            for at, window in enumerate(self._windows)
        ]
        return np.concatenate([np.empty(0, dtype=np.int64), *found])

    def holds_columns(self) -> int:
        """Return how many windows still have their columns."""
        return sum(bool(window.columns) for window in self._windows)

    def forget(self, window: int) -> None:
        if self._windows[window].columns:
            self._windows[window] = self._windows[window].only(())

    def _window_of(self, numbers: Int64) -> Int64:
        return self._firsts[: len(self._windows)].searchsorted(numbers, side="right") - 1


def _counted(windows: Int64) -> list[tuple[int, int]]:
    """Each window that occurs, and how often."""
    if not len(windows):
        return []
    first = int(windows.min())
    if first == windows.max():
        return [(first, len(windows))]
    counts = np.bincount(windows - first)
    (some,) = counts.nonzero()
    return list(zip((some + first).tolist(), counts[some].tolist(), strict=True))
