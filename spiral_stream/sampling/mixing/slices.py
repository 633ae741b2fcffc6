"""Where the samples of each stream stand in one epoch of a mixture.

The epoch is cut into slices of about 4,096 positions, or fewer if a short schedule moves the shares faster than that. Each
slice holds every stream's share in whole samples. Counts are rounded at the slice's borders, with a keyed phase, so that
the epoch's counts are exact. Each slice is shuffled by key (docs/decisions/0021). All this is arithmetic on positions:
memory is O(streams), and at most 2**20 cells of (slice, stream) while a call runs.

The order, for K streams, their quotas q_k and ``total = sum(q_k)``;
``key`` and ``combine`` are those of `seeding`:

* ``slices = min(max(1, total // size), 2**31)``, where ``size = max(4096, 8 * K)``. Version 2 is for schedules that
  move the shares within ``s < 2 * size`` samples, jumps apart: ``size = max(s // 16, 8 * K)``.
* Stream k has the phase
  ``r_k = combine(key("mixture", 1, seed, epoch), k) % slices``.
* Before border b lie ``taken_k(b) = (b * q_k + r_k) // slices`` samples of stream k;
  their sum over the streams is the border's position. Where a `Schedule` moves the
  shares it is ``floor(q_k * I_k(b) / I_k(slices) + r_k / slices)``, with I_k(b) the
  integral of stream k's share over the first ``b * total / slices`` positions.
* Place p of slice b becomes ``permute(p, size, combine(key("mixture slice", 1, seed,
  epoch), b))``, of which each stream in turn owns as many values as the slice has
  samples of it, in the order of their uses.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.sampling.mixing.schedule import Course
from spiral_stream.sampling.order import UInt64
from spiral_stream.sampling.orders.permutation import permute, unpermute
from spiral_stream.seeding import combine, key

# K streams, S slice borders, P positions. Integers are int64 inside this room: NumPy makes floats of int64 and
# uint64 together.
Int64 = NDArray[np.int64]

VERSION: Final = 1  # of slices of the usual size; golden values pin the order of each version
ADAPTED: Final = 2  # the version of slices that follow a short schedule
SLICE: Final = 4_096  # positions per slice, about
SLICE_PER_STREAM: Final = 8  # positions per slice and stream, at least
_COARSEST: Final = 2  # slices of the usual size that the shortest stretch of a schedule has, or slices adapt to it
_STEPS: Final = 16  # slices that such a stretch gets, where the number of streams allows it
MOST_SLICES: Final = 2**31  # so that a border times a remainder fits 63 bits
_CELLS: Final = 2**20  # of (border, stream) at a time: 8 MiB an array
_FEW_CELLS: Final = 64  # are searched at once
_TABLE: Final = 4  # values of a table of cells for each one that is looked up; above, they are searched


def slice_size(streams: int, stretch: int | None = None) -> int:
    """Return about how many positions a slice has.

    Args:
        streams: K.
        stretch: samples of a schedule's shortest stretch (`shortest_stretch`); None if the shares do not move.
    """
    usual = max(SLICE, SLICE_PER_STREAM * streams)
    if stretch is None or stretch >= _COARSEST * usual:
        return usual
    return max(stretch // _STEPS, SLICE_PER_STREAM * streams)


def slice_count(total: int, size: int) -> int:
    """Return into how many slices of about ``size`` positions an epoch of ``total`` positions is cut."""
    return min(max(1, total // size), MOST_SLICES)


def order_version(streams: int, stretch: int | None) -> int:
    """Return the version of a mixture's order; arguments are those of `slice_size`."""
    return VERSION if slice_size(streams, stretch) == slice_size(streams) else ADAPTED


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Touched:
    """The slices that a call touches: row i lies between borders i and i + 1."""

    begins: Int64  # [S] positions of the borders
    ends: Int64  # [S - 1, K] where each stream's values end; they rise along the rows and from row to row
    ahead: Int64  # [S - 1, K] number of a sample less its value

    def cells(self, values: Int64) -> Int64:
        """Return which cell of ``ends`` each value lies in, all rows end to end; shape [P] -> [P]."""
        ends, begin = self.ends.ravel(), int(self.begins[0])
        if ends.size <= _FEW_CELLS or int(self.begins[-1]) - begin > _TABLE * values.size:
            return np.searchsorted(ends, values, side="right")
        counts = np.diff(ends, prepend=begin)
        return np.repeat(np.arange(ends.size), counts)[values - begin]


@final
class Epoch:
    """One epoch of a mixture: a pure function between positions and samples, numbered from the epoch's start."""

    def __init__(self, seed: int, number: int, quotas: Int64, slices: int, course: Course | None = None) -> None:
        """Lay out an epoch.

        Args:
            seed: the plan's.
            number: the epoch's.
            quotas: shape [K], int64, 0 or more, not all 0, summing to at most 2**62.
            slices: how many (`slice_count`).
            course: the schedule that moves the shares in this epoch; None if they are constant.
        """
        self.number, self.quotas, self.total, self.slices = number, quotas, int(quotas.sum()), slices
        phase_key = np.uint64(key("mixture", VERSION, seed, number))
        phases = combine(phase_key, np.arange(quotas.size, dtype=np.uint64)) % np.uint64(self.slices)
        self._phases = phases.astype(np.int64)
        self._slice_key = np.uint64(key("mixture slice", VERSION, seed, number))
        self._course = course
        # A stream that rests in the whole epoch has integrals of 0, so any total serves.
        self._integrals = (
            np.ones(quotas.size, dtype=object) if course is None else np.maximum(course.integral(number), 1)
        )

    def split(self, positions: Int64) -> tuple[Int64, Int64]:
        """Map positions to samples.

        Args:
            positions: shape [P], int64, each in [0, total).

        Returns:
            streams, shape [P], int64, and samples, shape [P], int64: how many of the stream come before in the epoch.
        """
        streams, samples = np.empty_like(positions), np.empty_like(positions)
        near = self._near(positions)
        for part in _parts(near, 4 * self.quotas.size):
            borders = self._around(near[part])
            touched = self._touch(borders)
            slots = np.searchsorted(touched.begins, positions[part], side="right") - 1
            begins, sizes = touched.begins[slots], np.diff(touched.begins)[slots]
            within = (positions[part] - begins).astype(np.uint64)
            values = begins + permute(within, sizes, self._keys(borders[:-1])[slots]).astype(np.int64)
            cells = touched.cells(values)
            streams[part] = cells - slots * self.quotas.size
            samples[part] = values + touched.ahead.ravel()[cells]
        return streams, samples

    def join(self, streams: Int64, samples: Int64) -> Int64:
        """Map samples to positions: the inverse of `split`.

        Args:
            streams: shape [P], int64, each in [0, K).
            samples: shape [P], int64, each in [0, quota of its stream).

        Returns:
            shape [P], int64, each in [0, total).
        """
        positions = np.empty_like(samples)
        slices = self._slices_of(streams, samples)
        for part in _parts(slices, 2 * self.quotas.size):
            of_stream = slices[part]
            borders = np.unique(np.concatenate((of_stream, of_stream + 1)))
            touched = self._touch(borders)
            slots = np.searchsorted(borders, of_stream)
            begins, sizes = touched.begins[slots], np.diff(touched.begins)[slots]
            values = (samples[part] - touched.ahead[slots, streams[part]] - begins).astype(np.uint64)
            positions[part] = begins + unpermute(values, sizes, self._keys(of_stream)).astype(np.int64)
        return positions

    def border(self, position: int) -> tuple[int, Int64]:
        """Return the first slice border at or after a position in [0, total], and the samples before it, [K] int64."""
        borders = self._around(self._near(np.array([position])))
        taken_SK = self._taken(np.arange(self.quotas.size), borders[:, None])
        begins = taken_SK.sum(axis=1)
        at = int(np.searchsorted(begins, position))
        return int(begins[at]), taken_SK[at]

    def around(self, positions: Int64) -> tuple[Int64, Int64]:
        """Return where the slice of each position begins, and where it ends; shape [P] -> [P] each, int64."""
        begins, ends = np.empty_like(positions), np.empty_like(positions)
        near = self._near(positions)
        for part in _parts(near, 4 * self.quotas.size):
            borders = self._taken(np.arange(self.quotas.size), self._around(near[part])[:, None]).sum(axis=1)
            slots = np.searchsorted(borders, positions[part], side="right")
            begins[part], ends[part] = borders[slots - 1], borders[slots]
        return begins, ends

    def shares(self, position: int) -> NDArray[np.float64]:
        """Return the target share of each stream at a position in [0, total]; shape [K], float64, summing to 1."""
        return self.quotas / self.total if self._course is None else self._course.shares(self.number, position)

    def ahead(self, position: int, taken: Int64) -> NDArray[np.float64]:
        """Return samples taken before a position minus the targets there; shape [K], int64 -> [K], float64."""
        done, totals = np.array(position, dtype=object), np.array(self.total, dtype=object)
        if self._course is not None:
            done = self._course.integrals(self.number, np.arange(taken.size), done * self.slices)
            totals = self._integrals
        return np.asarray(
            (taken.astype(object) * totals - self.quotas.astype(object) * done) / totals, dtype=np.float64
        )

    def _taken(self, streams: Int64, borders: Int64) -> Int64:
        """Samples of a stream before a border; arguments broadcast."""
        quotas, phases = self.quotas[streams], self._phases[streams]
        if self._course is None:
            rounds, rest = quotas // self.slices, quotas % self.slices
            return borders * rounds + (borders * rest + phases) // self.slices
        done = self._course.integrals(self.number, streams, borders.astype(object) * self.total)
        totals = self._integrals[streams]
        exact = quotas.astype(object) * done * self.slices + phases.astype(object) * totals
        return np.asarray(exact // (totals * self.slices), dtype=np.int64)

    def _touch(self, borders: Int64) -> _Touched:
        taken_SK = self._taken(np.arange(self.quotas.size), borders[:, None])
        counts_SK = np.diff(taken_SK, axis=0)
        begins = taken_SK.sum(axis=1)
        ends_SK = np.cumsum(counts_SK, axis=1) + begins[:-1, None]
        return _Touched(begins, ends_SK, taken_SK[1:] - ends_SK)

    def _near(self, positions: Int64) -> Int64:
        """The slice of each position, or a neighbouring one; shape [P] -> [P].

        A border lies within 2 * K positions of ``b * total / slices``: one per stream for its rounding, and one for its
        quota's. That is at most a quarter of a slice, and a float's error is far smaller.
        """
        return np.minimum((positions * (self.slices / self.total)).astype(np.int64), self.slices - 1)

    def _around(self, near: Int64) -> Int64:
        """The borders, ascending, of these slices and their neighbours."""
        return np.unique(np.clip(_distinct(near)[:, None] + np.arange(-1, 3), 0, self.slices))

    def _slices_of(self, streams: Int64, samples: Int64) -> Int64:
        """The slice in which each sample lies, by bisection; shape [P] -> [P]."""
        low, high = np.zeros_like(samples), np.full_like(samples, self.slices)
        for _ in range((self.slices - 1).bit_length()):
            middle = (low + high) >> 1
            after = self._taken(streams, middle) <= samples
            low, high = np.where(after, middle, low), np.where(after, high, middle)
        return low

    def _keys(self, slices: Int64) -> UInt64:
        return combine(self._slice_key, slices.astype(np.uint64))


def _distinct(values: Int64) -> Int64:
    """The distinct values, ascending; positions most often ascend, and then nothing has to be sorted."""
    steps = np.diff(values)
    if values.size and int(steps.min(initial=0)) >= 0:
        return np.concatenate((values[:1], values[1:][steps > 0]))
    return np.unique(values)


def _parts(slices: Int64, cells: int) -> Iterator[Int64 | slice]:
    """Where to find ``slices``, in groups whose distinct values need at most `_CELLS` cells, at ``cells`` each."""
    values = _distinct(slices)
    most = max(1, _CELLS // cells)
    if 0 < values.size <= most:
        yield slice(None)
        return
    group = np.searchsorted(values, slices) // most
    for i in range(-(-values.size // most)):
        yield np.flatnonzero(group == i)
