"""What a step's mean should have been, from the steps before it, and how far it stands out.

The window before a step is laid flat by its trend: the median of its later half over that of its earlier half. The median
of what is left, taken to the step, is what was expected. The scale is 1.4826 times the median absolute deviation, or what
90 % of the window stay below divided by 1.282, whichever is larger, since means of losses have a tail; it grows for a step
of fewer samples. A window's own spikes move none of them until they are a tenth of it. O(window) per step.
"""

from typing import Final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from spiral_stream.runs.losses.step_series import Floats, Int64

WINDOW: Final = 64  # steps before
LEAST: Final = 16  # of them; with fewer nothing is expected
_MAD: Final = 1.4826
_TAIL, _TAIL_SDS = 0.9, 1.2816
_FLAT: Final = 1e-3  # of what is expected: no scale is below it
_CHUNK: Final = 1 << 14  # windows at a time: 8 MB each for their values


def expected_of(means: Floats, counts: Int64, window: int = WINDOW) -> tuple[Floats, Floats]:
    """Return what each step was expected to be, and the scale of its deviation.

    Args:
        means: [S], finite, in the order of the steps.
        counts: [S]: samples of each.
        window: steps before, at least `LEAST`.

    Returns:
        [S] and [S]; NaN for the first `LEAST`.
    """
    expected, scale = np.full(len(means), np.nan), np.full(len(means), np.nan)
    for at in range(LEAST, min(window, len(means))):
        expected[at : at + 1], scale[at : at + 1] = _after(means[None, :at], counts[None, :at], counts[at : at + 1])
    if len(means) > window:
        values, samples = sliding_window_view(means[:-1], window), sliding_window_view(counts[:-1], window)
        for begin in range(0, len(values), _CHUNK):
            end = min(begin + _CHUNK, len(values))
            there = slice(window + begin, window + end)
            expected[there], scale[there] = _after(values[begin:end], samples[begin:end], counts[there])
    return expected, scale


def next_expected(means: Floats) -> float:
    """Return what the step after these was expected to be; NaN after fewer than four."""
    if len(means) < 4:  # noqa: PLR2004  two halves with a median
        return float("nan")
    flat, slope = _flat(means[None, :])
    return float(np.median(flat) + slope[0] * _ahead(len(means)))


# S steps, W steps before each


def _after(values_SW: Floats, counts_SW: Int64, counts: Int64) -> tuple[Floats, Floats]:
    flat_SW, slope = _flat(values_SW)
    middle = np.median(flat_SW, axis=1)
    deviation_SW = flat_SW - middle[:, None]
    spread = _MAD * np.median(np.abs(deviation_SW), axis=1)
    tail = np.quantile(deviation_SW, _TAIL, axis=1) / _TAIL_SDS
    expected = middle + slope * _ahead(values_SW.shape[1])
    fewer = np.sqrt(np.maximum(1.0, np.median(counts_SW, axis=1) / counts))
    return expected, np.maximum(np.maximum(spread, tail) * fewer, _FLAT * np.abs(expected))


def _flat(values_SW: Floats) -> tuple[Floats, Floats]:
    """The values without their trend, and the trend per step."""
    width = values_SW.shape[1]
    half = width // 2
    slope = (np.median(values_SW[:, width - half :], axis=1) - np.median(values_SW[:, :half], axis=1)) / (width - half)
    return values_SW - slope[:, None] * (np.arange(width) - (width - 1) / 2), slope


def _ahead(width: int) -> float:
    """Steps from the middle of a window to the step after it."""
    return (width + 1) / 2


def grouped(flags: NDArray[np.bool_], gap: int) -> list[tuple[int, int]]:
    """Return runs of true flags as (first, last); up to ``gap`` false ones do not end a run."""
    found = np.flatnonzero(flags)
    if not len(found):
        return []
    cuts = np.flatnonzero(np.diff(found) > gap + 1)
    firsts, lasts = found[np.append(0, cuts + 1)], found[np.append(cuts, len(found) - 1)]
    return list(zip(firsts.tolist(), lasts.tolist(), strict=True))
