"""A pass over rows without replacement, in which a row of twice the weight is twice as likely to come next.

Method: each row draws an arrival time, exponential with its weight as rate, and rows are read as they arrive (Efraimidis
and Spirakis, "Weighted random sampling with a reservoir", Information Processing Letters 97, 2006, whose key
``u ** (1 / w)`` is ``exp(-time)``). This has the distribution of drawing one row after the other from those that are left.

A pass is cut by time into parts of about 2**20 rows, or 1/64 of the rows. The times that cut it come from evenly spaced
rows, and one scan counts the rows of each part. The rows of a part are found and sorted by another scan when a position
of it is first asked for; the last two parts are kept. Memory: 32 bytes per row of a part. Cost: per part, 30 ns and one
read of the weight for every row of the relation, so below 2 us per sample for a whole pass.
"""

from collections.abc import Iterator
from typing import Final, final

import numpy as np

from spiral_stream.sampling.memo import memo
from spiral_stream.sampling.order import Arrangement, Float64, RowWeights, UInt64
from spiral_stream.seeding import combine, fractions

_PART_ROWS: Final = 1 << 20
_MOST_PARTS: Final = 64
_SCANNED: Final = 1 << 16  # rows at a time
_LOOKED_AT: Final = 1 << 14  # rows whose times cut the pass
_LN2: Final = 0.6931471805599453
_TERMS: Final = 12  # of the series: the first that is left out is below 2**-53


@final
class WeightedPass(Arrangement):
    """Rows of weight above 0 by arrival time. Thread-safe."""

    def __init__(self, total: int, weights: RowWeights, pass_key: int, part_rows: int = _PART_ROWS) -> None:
        """Count the rows of each part.

        Args:
            total: rows, those of weight 0 too.
            weights: of the rows.
            pass_key: decides the times.
            part_rows: about how many rows a part has, unless there were more than 64 parts.
        """
        self.size, self._total, self._weights, self._key = weights.positive, total, weights, np.uint64(pass_key)
        parts = -(-self.size // max(part_rows, -(-self.size // _MOST_PARTS)))
        self._cuts = self._cut(parts)  # [Q - 1] times between the parts
        self._begins = self._counted()  # [Q + 1] the position at which each part begins, and the end
        self._part = memo(self._sorted, 2)

    def rows(self, positions: UInt64) -> UInt64:
        wanted = np.asarray(positions, dtype=np.uint64).astype(np.int64)
        parts = np.searchsorted(self._begins, wanted, side="right") - 1
        out = np.empty(len(wanted), dtype=np.uint64)
        for part in np.unique(parts).tolist():
            at = np.flatnonzero(parts == part)
            out[at] = self._part(part)[wanted[at] - self._begins[part]]
        return out

    def positions(self, rows: UInt64) -> UInt64:
        """Return the position at which each row is read; a row of weight 0 has none, and gets ``size``."""
        wanted = np.asarray(rows, dtype=np.uint64)
        times = self._times(wanted)
        parts = np.searchsorted(self._cuts, times, side="right")
        out = np.full(len(wanted), self.size, dtype=np.uint64)
        for part in np.unique(parts[np.isfinite(times)]).tolist():
            at = np.flatnonzero((parts == part) & np.isfinite(times))
            part_order = self._part(part)
            by_row = np.argsort(part_order)
            out[at] = by_row[np.searchsorted(part_order, wanted[at], sorter=by_row)] + self._begins[part]
        return out

    def positions_of(self, row: int) -> list[int]:
        found = int(self.positions(np.array([row], dtype=np.uint64))[0])
        return [found] if found < self.size else []

    def _times(self, rows: UInt64) -> Float64:
        """The arrival times of rows; infinite for weight 0."""
        uniforms = 1.0 - fractions(combine(self._key, rows))  # in (0, 1]
        weights = self._weights.of(rows)
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            times = np.minimum(minus_log(uniforms) / weights, np.finfo(np.float64).max)
        return np.where(weights > 0, times, np.inf)

    def _cut(self, parts: int) -> Float64:
        if parts <= 1:
            return np.empty(0)
        some = np.unique(np.linspace(0, self._total - 1, _LOOKED_AT).astype(np.uint64))
        times = np.sort(self._times(some))
        times = times[np.isfinite(times)]
        if not len(times):
            return np.empty(0)
        return np.unique(times[(np.arange(1, parts) * len(times)) // parts])

    def _counted(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        counts = np.zeros(len(self._cuts) + 1, dtype=np.int64)
        if len(counts) == 1:
            counts[0] = self.size
        else:
            for rows in self._scan():
                times = self._times(rows)
                parts = np.searchsorted(self._cuts, times[np.isfinite(times)], side="right")
                counts += np.bincount(parts, minlength=len(counts))
        return np.concatenate([[0], np.cumsum(counts)])

    def _sorted(self, part: int) -> UInt64:
        """The rows of a part by time; rows of equal time by number."""
        found, moments = [], []
        for rows in self._scan():
            times = self._times(rows)
            inside = np.isfinite(times) & (np.searchsorted(self._cuts, times, side="right") == part)
            found.append(rows[inside])
            moments.append(times[inside])
        return np.concatenate(found)[np.argsort(np.concatenate(moments), kind="stable")]

    def _scan(self) -> Iterator[UInt64]:
        """All rows, some at a time."""
        for at in range(0, self._total, _SCANNED):
            yield np.arange(at, min(at + _SCANNED, self._total), dtype=np.uint64)


def minus_log(values: Float64) -> Float64:
    """Return ``-log(values)`` of numbers in (0, 1], the same to the last bit on every machine.

    The logarithms of C libraries differ in the last bit, which would swap rows. This one takes products and sums only:
    with ``values = m * 2**e`` and m in [sqrt(1/2), sqrt(2)), ``log(m) = 2 * atanh(s)`` of ``s = (m - 1) / (m + 1)``.
    """
    mantissa, exponent = np.frexp(values)
    small = mantissa < np.sqrt(0.5)
    mantissa, exponent = np.where(small, mantissa * 2, mantissa), exponent - small
    s = (mantissa - 1) / (mantissa + 1)
    square, series = s * s, np.zeros_like(s)
    for term in range(_TERMS, -1, -1):
        series = series * square + 1 / (2 * term + 1)
    return np.asarray(-(2 * s * series + exponent * _LN2))
