"""What a step's mean should have been, from the steps before it, and how far it stands out.

A step is forecast from the 16 before it: their median, taken along by their trend, which is the median of the later half
over that of the earlier one. How wrong the forecasts of the last steps were says how wrong this one may be: the scale is
1.4826 times the median absolute deviation of their errors, or what 90 % of them stay below divided by 1.282, whichever is
larger, since means of losses have a tail. It grows for a step of fewer samples. Errors of forecasts are alike while a loss
falls steeply, where its values are not.

For the steps after it, a step that stands out is as the median of the 16 before it, so that a spike hides neither its end
nor the next one. What stands out for longer than the window is the new level. Steps are judged many at a time, and one by
one (0.1 ms each) behind those that stand out.
"""

from typing import Final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from spiral_stream.runs.losses.step_series import Floats, Int64

NEAR: Final = 16  # steps before that a step is forecast from,
FIRST: Final = 8  # and at least
WINDOW: Final = 64  # errors of forecasts that a scale is of,
LEAST: Final = 16  # and at least
_MAD: Final = 1.4826
_TAIL, _TAIL_SDS = 0.9, 1.2816
_FLAT: Final = 1e-3  # of what is expected: no scale is below it
_CHUNK: Final = 1 << 14  # windows at a time: 8 MB for their values

# S steps, W steps before each


def judged(means: Floats, counts: Int64, lowest: float, window: int = WINDOW) -> tuple[Floats, Floats]:
    """Return what each step was expected to be, and its score in robust standard deviations.

    Args:
        means: [S], finite, in the order of the steps.
        counts: [S], positive: samples of each.
        lowest: score of a step that stands out.
        window: errors before a step, at least `LEAST`.

    Returns:
        [S] and [S]; NaN and 0 for the first `FIRST` + `LEAST`, of which nothing is expected.
    """
    ahead, expected, scale = _many(means, counts, window)
    usual, score = means.copy(), _scores(means, expected, scale)
    at = _next(score, lowest, 0)
    while at < len(means):
        since, lasts = 0, 0
        while at < len(means) and since < NEAR + window:  # until what was cleaned is no longer looked at
            ahead[at] = _forecasts(usual[None, max(0, at - NEAR) : at])[0]
            there, before = slice(at, at + 1), slice(max(FIRST, at - window), at)
            errors = usual[before] - ahead[before]
            expected[there], scale[there] = _scaled(errors[None, :], counts[None, before], ahead[there], counts[there])
            score[there] = _scores(means[there], expected[there], scale[there])
            lasts = lasts + 1 if score[at] >= lowest else 0
            since = since + 1 if not lasts else 0
            if 0 < lasts <= window:
                usual[at] = np.median(usual[at - NEAR : at])
            at += 1
        at = _next(score, lowest, at)
    return expected, score


def _scores(means: Floats, expected: Floats, scale: Floats) -> Floats:
    out = np.zeros(len(means))
    there = scale > 0  # not where it is NaN
    out[there] = (means[there] - expected[there]) / scale[there]
    return out


def _next(score: Floats, lowest: float, at: int) -> int:
    """The first step from one on that stands out."""
    found = np.flatnonzero(score[at:] >= lowest)
    return at + int(found[0]) if len(found) else len(score)


def forecast(means: Floats) -> float:
    """Return what the step after these was expected to be; NaN after fewer than `FIRST`."""
    near = means[-NEAR:]
    return float("nan") if len(near) < FIRST else float(_forecasts(near[None, :])[0])


def _many(means: Floats, counts: Int64, window: int) -> tuple[Floats, Floats, Floats]:
    """The forecast of each step, what it was expected to be, and the scale of its deviation; NaN where nothing is."""
    ahead, expected, scale = (np.full(len(means), np.nan) for _ in range(3))
    for at in range(FIRST, min(NEAR, len(means))):
        ahead[at] = _forecasts(means[None, :at])[0]
    if len(means) > NEAR:
        ahead[NEAR:] = _forecasts(sliding_window_view(means[:-1], NEAR))
    errors, samples = (means - ahead)[FIRST:], counts[FIRST:]
    for at in range(LEAST, min(window, len(errors))):
        here = slice(FIRST + at, FIRST + at + 1)
        expected[here], scale[here] = _scaled(errors[None, :at], samples[None, :at], ahead[here], counts[here])
    if len(errors) > window:
        errors_SW, samples_SW = sliding_window_view(errors[:-1], window), sliding_window_view(samples[:-1], window)
        for begin in range(0, len(errors_SW), _CHUNK):
            end = min(begin + _CHUNK, len(errors_SW))
            here = slice(FIRST + window + begin, FIRST + window + end)
            expected[here], scale[here] = _scaled(
                errors_SW[begin:end], samples_SW[begin:end], ahead[here], counts[here]
            )
    return ahead, expected, scale


def _scaled(errors_SW: Floats, samples_SW: Int64, ahead: Floats, counts: Int64) -> tuple[Floats, Floats]:
    middle = np.median(errors_SW, axis=1)
    deviation_SW = errors_SW - middle[:, None]
    spread = _MAD * np.median(np.abs(deviation_SW), axis=1)
    tail = np.quantile(deviation_SW, _TAIL, axis=1) / _TAIL_SDS
    fewer = np.sqrt(np.maximum(1.0, np.median(samples_SW, axis=1) / counts))
    expected = ahead + middle
    return expected, np.maximum(np.maximum(spread, tail) * fewer, _FLAT * np.abs(expected))


def _forecasts(values_SW: Floats) -> Floats:
    """The values after some windows."""
    width = values_SW.shape[1]
    half = width // 2
    slope = (np.median(values_SW[:, width - half :], axis=1) - np.median(values_SW[:, :half], axis=1)) / (width - half)
    flat_SW = values_SW - slope[:, None] * (np.arange(width) - (width - 1) / 2)
    forecasts: Floats = np.median(flat_SW, axis=1) + slope * (width + 1) / 2
    return forecasts


def grouped(score: Floats, lowest: float, gap: int) -> list[tuple[int, int]]:
    """Return runs of steps that stand out as (first, last).

    Args:
        score: [S].
        lowest: of a step that stands out. Its neighbours belong to it down to half of that.
        gap: how many other steps do not end a run.
    """
    flags = score >= lowest
    for near in np.flatnonzero(~flags & (score >= lowest / 2)).tolist() if flags.any() else ():  # few
        flags[near] = near > 0 and flags[near - 1]
    for near in np.flatnonzero(~flags & (score >= lowest / 2)).tolist()[::-1] if flags.any() else ():
        flags[near] = near + 1 < len(flags) and flags[near + 1]
    found = np.flatnonzero(flags)
    if not len(found):
        return []
    cuts = np.flatnonzero(np.diff(found) > gap + 1)
    firsts, lasts = found[np.append(0, cuts + 1)], found[np.append(cuts, len(found) - 1)]
    return list(zip(firsts.tolist(), lasts.tolist(), strict=True))
