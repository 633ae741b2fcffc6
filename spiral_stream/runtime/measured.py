"""Values that a loop measured on a batch, reduced to its samples where they lie, and on their way to the host.

A delivery that knows the loop's arrays begins to fetch them (`Delivery.fetched`). Whoever records them takes them when they are
here, so that the loop does not wait for its device.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.runtime.batch.keys import TokenSpans
from spiral_stream.runtime.columns.samples import Int64


@final
@dataclass(frozen=True, slots=True, eq=False)
class ValueForm:
    """How the shape of a value fits a batch.

    Attributes:
        rows: which of its rows are samples, [S]; None takes all as they are.
        tokens: where the tokens of each sample lie; None if it has no value per token.
        alone: whether it is one number for the batch.
        summed: whether it is a sum per sample already, of ``tokens``.
    """

    rows: Int64 | None = None
    tokens: TokenSpans | None = None
    alone: bool = False
    summed: bool = False


class FetchedValue(ABC):
    """One value that a device still computes, or that is on its way."""

    @abstractmethod
    def done(self) -> bool:
        """Whether it is here."""

    @abstractmethod
    def wait(self) -> None:
        """Wait until it is `done`."""

    @abstractmethod
    def take(self) -> tuple[NDArray[Any], NDArray[Any] | None]:
        """Return it, once it is `done`: a number per sample or for the batch; or the sums of the tokens of each sample.

        Beside sums stands how many tokens count, [S]; None where all do.
        """


def covering_lengths(spans: TokenSpans, rows: int) -> Int64:
    """Return the lengths of runs that cover rows of T places end to end: what lies before a sample, the sample, and so on.

    The last run is what lies behind the last sample, so the tokens of sample i are run ``2 * i + 1`` of ``2 * S + 1``.

    Args:
        spans: where the samples lie, in the order of places.
        rows: B.
    """
    first = spans.lines * spans.width + spans.starts
    ends = first + spans.lengths
    before = first - np.concatenate([[0], ends[:-1]]) if len(first) else first
    last = rows * spans.width - (int(ends[-1]) if len(ends) else 0)
    return np.concatenate([np.stack([before, spans.lengths], axis=1).ravel(), [last]]).astype(np.int64)
