"""The proportions of a mixture as they change during a run: the share of each stream at each sample.

A `Schedule` gives weights at sample numbers of the run. Between two of these each stream's share moves on a straight
line; before the first and after the last it is constant. `Course` lays a schedule over epochs and integrates it in exact
integers, so quotas are the same on every machine. A course keeps O(points * streams) integers. An integral costs 0.2 us
per stream with two points, and more with many, since the integers grow with the digits of every point's weights.
"""

import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.errors import PlanError, shown
from spiral_stream.sampling.order import check_integer

Weight = Fraction | int | float
Objects = NDArray[np.object_]  # of Python integers, which do not overflow

FOREVER: Final = 2**63  # epochs


def in_integers(weights: Sequence[Weight]) -> list[int]:
    """Return the smallest integers in the same proportion; a float counts as the binary fraction that it is.

    Raises:
        PlanError: there is no weight, one is not a finite number of 0 or more, or all are 0.
    """
    exact = [_exact(k, weight) for k, weight in enumerate(weights)]
    if not any(exact):
        msg = f"mix: the weights are {tuple(weights)!r}. Give each stream a number, at least one of them above 0"
        raise PlanError(msg)
    unit = math.lcm(*(weight.denominator for weight in exact))
    integers = [weight.numerator * (unit // weight.denominator) for weight in exact]
    common = math.gcd(*integers)
    return [weight // common for weight in integers]


def _exact(k: int, weight: Weight) -> Fraction:
    if isinstance(weight, numbers.Integral) and not isinstance(weight, bool):
        weight = int(weight)  # a NumPy integer would overflow inside a Fraction
    fit = isinstance(weight, numbers.Real) and not isinstance(weight, bool) and weight >= 0
    fit = fit and (isinstance(weight, numbers.Rational) or math.isfinite(weight))
    if not fit:
        msg = f"mix: the weight of stream {k} is {shown(weight)}. Give a finite number of 0 or more"
        raise PlanError(msg)
    return Fraction(weight) if isinstance(weight, numbers.Rational) else Fraction(float(weight))


@final
@dataclass(frozen=True, slots=True)
class Schedule:
    """Weights of K streams at sample numbers since the run's start, ascending.

    Only their proportion at a point counts. A jump is two points one sample apart.
    """

    points: tuple[tuple[int, tuple[Weight, ...]], ...]

    def __post_init__(self) -> None:
        if not self.points:
            msg = "mix: the schedule has no point. Give (sample number, weights) at least once"
            raise PlanError(msg)
        for sample, _ in self.points:
            check_integer("mix: schedule", "sample number", sample, least=0)
        for (before, first), (after, second) in pairwise(self.points):
            if after <= before:
                msg = f"mix: the schedule has sample {after} after sample {before}. Give its points in ascending order"
                raise PlanError(msg)
            if len(first) != len(second):
                msg = (
                    f"mix: the schedule has {len(first)} weights at sample {before}, {len(second)} at sample {after}. "
                    "Give one weight for each stream, 0 where it rests"
                )
                raise PlanError(msg)
        weights_KI = zip(*(in_integers(weights) for _, weights in self.points), strict=True)
        idle = [k for k, stretch_weights in enumerate(weights_KI) if not any(stretch_weights)]
        if idle:
            msg = (
                f"mix: stream {idle[0]} has weight 0 at every point of the schedule. "
                "Leave the stream out, or give it a weight at some point"
            )
            raise PlanError(msg)

    @property
    def streams(self) -> int:
        return len(self.points[0][1])

    @property
    def moves(self) -> tuple[int, int]:
        """From which sample to which one the shares move, not counting jumps; (0, 0) if they do not."""
        pieces = [
            (before, after)
            for (before, first), (after, second) in pairwise(self.points)
            if after - before > 1 and in_integers(first) != in_integers(second)
        ]
        return (pieces[0][0], pieces[-1][1]) if pieces else (0, 0)


def shortest_stretch(points: Sequence[tuple[int, Sequence[Weight]]]) -> int | None:
    """Return the fewest samples in which a schedule moves from one share to another, or rests next to a jump.

    Args:
        points: `Schedule.points`.

    Returns:
        None if the shares are constant or only jump: a jump takes one sample, and slices need not resolve it.
    """
    first, integers = points[0][0], [in_integers(weights) for _, weights in points]
    lengths = [after - before for (before, _), (after, _) in pairwise(points)]
    moves = [before != after for before, after in pairwise(integers)]
    if first > 0:
        lengths, moves = [first, *lengths], [False, *moves]
    jumps = [False, *(moved and length == 1 for length, moved in zip(lengths, moves, strict=True)), False]
    next_to_jump = [before or after for before, after in zip(jumps[:-2], jumps[2:], strict=True)]
    long_enough = [n for n, moved, near in zip(lengths, moves, next_to_jump, strict=True) if n > 1 and (moved or near)]
    return min(long_enough, default=None)


@final
class Course:
    """A schedule over epochs of ``total`` positions, each epoch cut into ``slices``.

    Places are counted in ticks. A sample has ``slices`` ticks, so nominal border b of an epoch lies at tick ``b * total``.
    Integrals are in units of ``1 / (2 * span * slices**2)`` of a sample's share, where ``span`` is the least common multiple
    of the pieces' lengths; in these units every integral is an integer.
    """

    def __init__(self, schedule: Schedule, total: int, slices: int) -> None:
        starts = [sample for sample, _ in schedule.points]
        weights_IK = _over_one_sum([weights for _, weights in schedule.points])
        if starts[0] > 0:
            starts, weights_IK = [0, *starts], np.concatenate((weights_IK[:1], weights_IK))
        lengths = [after - before for before, after in pairwise(starts)]
        span = math.lcm(*lengths)
        self._total, self._slices = total, slices
        self._sum = 2 * span * slices * int(weights_IK[0].sum())
        self._starts = np.array(starts, dtype=np.int64)
        # In piece i the integral over its first d ticks is d * (level + d * slope).
        self._level_IK = weights_IK * (2 * span * slices)
        self._slope_IK = np.zeros_like(weights_IK)
        self._before_IK = np.zeros_like(weights_IK)
        for i, length in enumerate(lengths):
            self._slope_IK[i] = (weights_IK[i + 1] - weights_IK[i]) * (span // length)
            ticks = length * slices
            self._before_IK[i + 1] = self._before_IK[i] + ticks * (self._level_IK[i] + ticks * self._slope_IK[i])

    def level(self, epoch: int) -> int:
        """Return how many epochs, from this one on, have constant shares; 0: the shares move in this epoch."""
        moving = (self._slope_IK != 0).any(axis=1)
        for i in range(self._stretch(epoch * self._total), moving.size):
            if moving[i]:
                return max(0, int(self._starts[i]) // self._total - epoch)
        return FOREVER

    def integrals(self, epoch: int, streams: NDArray[np.int64], ticks: Objects) -> Objects:
        """Return each stream's share, summed from the epoch's start to a tick; arguments broadcast.

        Args:
            epoch: the epoch.
            streams: any shape, int64.
            ticks: any shape, Python integers in [0, total * slices].

        Returns:
            the broadcast shape, Python integers in the units of the class.
        """
        origin = np.array(epoch * self._total * self._slices, dtype=object)
        return np.asarray(self._until(streams, ticks + origin) - self._until(streams, origin), dtype=object)

    def integral(self, epoch: int) -> Objects:
        """Return the integral of each stream's share over an epoch; shape [K]."""
        ticks = np.array(self._total * self._slices, dtype=object)
        return self.integrals(epoch, np.arange(self._level_IK.shape[1]), ticks)

    def shares(self, epoch: int, position: int) -> NDArray[np.float64]:
        """Return the shares at a position of an epoch; shape [K], float64, summing to 1."""
        sample = epoch * self._total + position
        i = self._stretch(sample)
        ticks = (sample - int(self._starts[i])) * self._slices
        return np.asarray((self._level_IK[i] + 2 * ticks * self._slope_IK[i]) / self._sum, dtype=np.float64)

    def _stretch(self, sample: int) -> int:
        return int(np.searchsorted(self._starts, sample, side="right")) - 1

    def _until(self, streams: NDArray[np.int64], ticks: Objects) -> Objects:
        samples = np.asarray(ticks // self._slices, dtype=np.int64)
        pieces = np.searchsorted(self._starts, samples, side="right") - 1
        ticks_of = ticks - self._starts[pieces].astype(object) * self._slices
        slope, level = self._slope_IK[pieces, streams], self._level_IK[pieces, streams]
        return np.asarray(self._before_IK[pieces, streams] + ticks_of * (level + ticks_of * slope), dtype=object)


def _over_one_sum(weights: list[tuple[Weight, ...]]) -> Objects:
    """Integers in each point's proportion, with the same sum at every point; shape [I, K].

    With one sum, shares are linear between points and add up to the same everywhere.
    """
    integers = [in_integers(stretch) for stretch in weights]
    target = math.lcm(*(sum(stretch) for stretch in integers))
    return np.array([[weight * (target // sum(stretch)) for weight in stretch] for stretch in integers], dtype=object)
