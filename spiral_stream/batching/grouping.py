"""How a pool of samples becomes a window's batches: the interface of the three ways.

`windowed` sorts the pool and treats what is above the budget; a grouping groups
the rest. ``windowed`` has the one without composition, ``stratified`` and
``one_stream`` the others.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.batching.formation import Composition, Int64, Setting
from spiral_stream.errors import PlanError

# S samples, K streams


@final
@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """S samples that no batch holds yet, by key, ties by their number in the chapter."""

    streams: NDArray[np.int32]  # [S]
    lengths: Int64 | None  # [S]
    costs: tuple[Int64, ...]  # [S] each, of the additive limits


class Grouping(ABC):
    """Groups the pools of one chapter, in turn."""

    @abstractmethod
    def group(self, pool: Pool, patience: int, *, final: bool) -> list[Int64]:
        """The batches of a window, in the order they are delivered.

        Args:
            pool: samples that each keep to the limits alone.
            patience: how many of them may wait for the next window.
            final: none may, for there is no other window.

        Returns:
            indices into the pool, ascending in each batch. What no batch holds waits.
        """

    def turn(self, shares: NDArray[np.float64]) -> None:  # noqa: B027  only a composition keeps to shares
        """The targets are these shares from here on; shape [K]."""

    def note(self, streams: NDArray[np.int32]) -> None:  # noqa: B027  only a composition keeps an account
        """Samples of these streams were delivered alone, or dropped."""


def targets(composition: Composition, setting: Setting) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Shares [K] and samples ahead [K] at the chapter's start, float64.

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
