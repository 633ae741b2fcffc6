"""Who has how much of some rows, and whether that moves with time.

Concentration: the share of the largest value and of the ten largest; the effective number
of values, exp(entropy), which is V for V equal ones and 1 where one has all; and the
Herfindahl-Hirschman index, the chance that two rows drawn with replacement agree. Drift along
an axis (time, or places in an order): eta squared, the part of the axis's variance that lies
between values, and the total variation between its tenths and the whole. Both are above 0 for
any sample, so each comes with what a random one has: (V - 1) / (N - 1), and the exact mean
deviation of the hypergeometric distribution (de Moivre's form; Johnson and Kotz, Biometrika 44).
"""

from dataclasses import dataclass
from math import exp, lgamma
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

TENTHS: Final = 10
_LARGEST: Final = 10  # values that are counted together

Int64 = NDArray[np.int64]
# N rows, V values


@final
@dataclass(frozen=True, slots=True)
class Concentration:
    """How unevenly rows are spread over values.

    Examples:
        >>> spread = catalog.concentration("photos", "label")
        >>> spread.values, spread.largest_rows
        (3, 16)
    """

    values: int  # V
    largest: int  # which value: its code
    largest_rows: int
    ten_rows: int  # of the ten largest together
    rows: int  # N
    effective: float  # in [1, V]
    index: float  # Herfindahl-Hirschman, in [1 / V, 1]


@final
@dataclass(frozen=True, slots=True)
class Drift:
    """How far values move along an axis, and how far they would by chance.

    Examples:
        >>> drift = catalog.drift("photos", "label", along="taken")
        >>> 0 <= drift.explained <= 1
        True
    """

    explained: float  # eta squared, in [0, 1]; NaN where the axis does not vary
    explained_by_chance: float
    tenths: float  # total variation of the first and last tenth to the whole, mean of the two
    tenths_by_chance: float


def concentration(codes_N: Int64) -> Concentration:
    """Return the concentration of rows.

    Args:
        codes_N: shape [N], the value of each row, 0-based; N at least 1.
    """
    counts = np.bincount(codes_N)
    ordered = np.sort(counts[counts > 0])[::-1]
    share = ordered / ordered.sum()
    return Concentration(
        values=len(ordered),
        largest=int(np.argmax(counts)),
        largest_rows=int(ordered[0]),
        ten_rows=int(ordered[:_LARGEST].sum()),
        rows=int(ordered.sum()),
        effective=float(np.exp(-(share * np.log(share)).sum())),
        index=float((share**2).sum()),
    )


def drift(codes_N: Int64, axis_N: NDArray[Any]) -> Drift:
    """Measure how far values move along an axis.

    Args:
        codes_N: shape [N], the value of each row, 0-based.
        axis_N: shape [N], a number for each row: a time, a place.
    """
    values = len(np.unique(codes_N))
    return Drift(
        explained=explained(codes_N, axis_N),
        explained_by_chance=(values - 1) / max(1, len(codes_N) - 1),
        tenths=tenths(codes_N, axis_N),
        tenths_by_chance=tenths_by_chance(np.bincount(codes_N)),
    )


def explained(codes_N: Int64, axis_N: NDArray[Any]) -> float:
    """Eta squared: the part of the axis's variance that lies between the values; NaN where it does not vary."""
    axis = axis_N.astype(np.float64)
    axis -= axis.mean()  # nanoseconds since 1970 squared would leave no digits
    total = float((axis**2).sum())
    if total <= 0:
        return float("nan")
    counts = np.bincount(codes_N)
    sums = np.bincount(codes_N, weights=axis)
    return float(np.clip((sums[counts > 0] ** 2 / counts[counts > 0]).sum() / total, 0.0, 1.0))


def tenths(codes_N: Int64, axis_N: NDArray[Any]) -> float:
    """Total variation of the first and of the last tenth along the axis to the whole, the mean of the two."""
    order = np.argsort(axis_N, kind="stable")
    size = max(1, len(order) // TENTHS)
    whole = np.bincount(codes_N) / len(codes_N)
    ends = [np.bincount(codes_N[part], minlength=len(whole)) / size for part in (order[:size], order[-size:])]
    return float(np.mean([0.5 * np.abs(end - whole).sum() for end in ends]))


def tenths_by_chance(counts_V: Int64) -> float:
    """Return the mean of `tenths` if the axis is a random order of the rows; exact.

    Args:
        counts_V: shape [V], rows of each value.
    """
    return distance_by_chance(counts_V, max(1, int(counts_V.sum()) // TENTHS))


def distance_by_chance(counts_V: Int64, size: int) -> float:
    """Return the mean total variation of some rows drawn at random to the whole; exact.

    Args:
        counts_V: shape [V], rows of each value.
        size: rows that are drawn, without replacement.
    """
    rows = int(counts_V.sum())
    different, times = np.unique(counts_V[counts_V > 0], return_counts=True)
    each = [_mean_deviation(rows, count, size) for count in different.tolist()]
    return float(0.5 * (np.array(each) * times).sum() / size)


def _mean_deviation(rows: int, marked: int, drawn: int) -> float:
    """E|X - E X| of the marked rows among those drawn without replacement."""
    above = drawn * marked // rows + 1
    left = rows - marked - drawn + above
    if above > min(marked, drawn) or left < 0:
        return 0.0
    up = (marked, rows - marked, drawn, rows - drawn)
    down = (above, marked - above, drawn - above, left, rows)
    log = sum(lgamma(n + 1) for n in up) - sum(lgamma(n + 1) for n in down)
    return 2 * above * left / rows * exp(log)
