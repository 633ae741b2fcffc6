"""How a pool of samples becomes a window's batches: the interface of the three ways to group them.

`windowed` sorts the pool and handles samples above the budget; a `Grouping` groups the rest. The grouping without
composition is in `windowed`, the others are in `stratified` and `one_stream`.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.batching.formation import Composition, Int64, Setting
from spiral_stream.errors import PlanError

# S samples, K streams

Run = Int64 | slice  # places in a pool: listed, or neighbours


@final
@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """S samples that are in no batch yet, sorted by key, then by their number in the chapter."""

    streams: NDArray[np.int32]  # [S]
    samples: Int64  # [S] their numbers
    lengths: Int64 | None  # [S]
    costs: tuple[Int64, ...]  # [S] per additive limit


class Grouping(ABC):
    """Groups the pools of one chapter, window by window."""

    @abstractmethod
    def group(self, pool: Pool, patience: int, *, final: bool) -> Sequence[Run]:
        """Return the batches of a window, in the order of delivery.

        Args:
            pool: samples that each keep to the limits on their own.
            patience: how many samples may wait for the next window.
            final: whether this is the last window, so that no sample may wait. Where samples are counted the pool is then
                whole batches, and a grouping that `leaves` lets what fills none wait.

        Returns:
            for each batch, places in the pool, ascending. Samples in no batch wait.
        """

    leaves: bool = False  # whether it decides itself what waits after the last window; else the last to join do
    settles: bool = False  # whether it makes the epoch's short batches itself

    def turn(self, shares: NDArray[np.float64]) -> None:  # noqa: B027  only a composition keeps to shares
        """Aim at these shares from here on; shape [K]."""

    def note(self, streams: NDArray[np.int32]) -> None:  # noqa: B027  only a composition keeps an account
        """Count samples that were delivered alone or dropped; their streams, shape [S]."""


def targets(composition: Composition, setting: Setting) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the target shares, and how many samples each stream is ahead at the chapter's start; shape [K], float64.

    Raises:
        PlanError: there is no mixture.
    """
    if setting.shares is None:
        msg = (
            f"collate: composition={type(composition).__name__} of a relation without streams. "
            "Leave the composition out, or mix([Stream(...), ...]) first"
        )
        raise PlanError(msg)
    shares = np.array(setting.shares, dtype=np.float64)
    ahead = np.zeros_like(shares) if setting.ahead is None else np.array(setting.ahead, dtype=np.float64)
    return shares, ahead
