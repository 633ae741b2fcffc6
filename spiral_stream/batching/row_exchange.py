"""Which rows of an optimizer step share a batch, so that its batches cost about the same: ``collate(balance="rows")``.

Batches keep how many rows they have. Rows go to batches in rounds: the costliest that are left, one to each batch, the first of
them to the batch with the least so far (longest processing time first, Graham 1969). Then rows of the costliest batch are
exchanged for cheaper ones, as long as that lowers it. Where batches are padded to widths of their own, a row only goes where
it fits, so that budgets of tokens hold and padding does not grow; then the batches as they were formed are the beginning.
Ties go by position. See docs/decisions/0088.

Cost: 0.5 us per row for the rounds, and 60 us per exchange, of which there are at most twice as many as batches.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Final, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.arguments import check, class_door, integer
from spiral_stream.errors import PlanError, shown

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]
MOST_BATCHES: Final = 2**16
_GAIN: Final = 1e-9  # of the costliest batch: an exchange that gains less is none

# R rows of G batches


@final
@class_door(PlanError)
@dataclass(frozen=True, slots=True)
class RowExchange:
    """Rows are exchanged between the batches of an optimizer step, by cost. `collate` makes it of ``balance="rows"``.

    Args:
        step_batches: batches that exchange rows: those of an optimizer step, over all ranks.
    """

    VERSION: ClassVar[int] = 1
    step_batches: int

    def __post_init__(self) -> None:
        check(self, "collate", step_batches=integer(2, MOST_BATCHES, f"an integer in [2, {MOST_BATCHES}]"))


def row_exchange(balance: object, step_batches: int | None) -> RowExchange | None:
    """Return what ``balance=`` and ``step_batches=`` of a `collate` say.

    Raises:
        PlanError: they say nothing that can be done.
    """
    if balance is None and step_batches is None:
        return None
    if balance != "rows":
        found = f"balance={shown(balance)}" if balance is not None else "step_batches without a balance"
        msg = f"collate: {found}. Give balance='rows' with step_batches; a run alone binds its steps: bind(step_batches=...)"
        raise PlanError(msg)
    if step_batches is None:
        msg = "collate: balance='rows' is of the batches of an optimizer step. Say how many they are: step_batches=..."
        raise PlanError(msg)
    return RowExchange(step_batches)


def exchanged(costs: Float64, batches: Int64, lengths: Int64 | None = None, widths: Int64 | None = None) -> Int64:
    """Return the batch of each row.

    Args:
        costs: shape [R], finite.
        batches: shape [R], non-decreasing: the batch that each row was formed into, in [0, G).
        lengths: shape [R]: how wide each row is; None: all rows fit everywhere.
        widths: shape [G]: how wide rows of each batch may be; with ``lengths``.

    Returns:
        shape [R]: as many rows of each batch as before.
    """
    count = int(batches[-1]) + 1 if len(batches) else 0
    if count < 2:  # noqa: PLR2004  nothing to exchange with
        return batches
    found = batches.copy() if lengths is not None else _by_rounds(costs, np.bincount(batches, minlength=count))
    loads = np.bincount(found, weights=costs, minlength=count).astype(np.float64)
    for _ in range(2 * count):
        pair = _best_exchange(costs, found, loads, lengths, widths)
        if pair is None:
            break
        out, back = pair
        moved = costs[out] - costs[back]
        loads[found[out]] -= moved
        loads[found[back]] += moved
        found[out], found[back] = found[back], found[out]
    return found


def _by_rounds(costs: Float64, sizes: Int64) -> Int64:
    """Deal rows to batches, the costliest first: shape [R]."""
    by_cost = np.lexsort((np.arange(len(costs)), -costs))
    found, loads, at = np.empty(len(costs), dtype=np.int64), np.zeros(len(sizes)), 0
    for taken in range(int(sizes.max())):
        have_room = np.flatnonzero(sizes > taken)
        batches = have_room[np.argsort(loads[have_room], kind="stable")]
        rows = by_cost[at : at + len(batches)]
        found[rows] = batches
        loads[batches] += costs[rows]
        at += len(batches)
    return found


def _best_exchange(
    costs: Float64, found: Int64, loads: Float64, lengths: Int64 | None, widths: Int64 | None
) -> tuple[int, int] | None:
    """The row of the costliest batch and the row of another one whose exchange lowers it most; None if none does."""
    heaviest = int(np.argmax(loads))
    mine, others = np.flatnonzero(found == heaviest), np.flatnonzero(found != heaviest)
    moved = costs[mine][:, None] - costs[others][None, :]
    then: Any = np.maximum(loads[heaviest] - moved, loads[found[others]][None, :] + moved)
    if lengths is not None and widths is not None:
        fits = (lengths[mine][:, None] <= widths[found[others]][None, :]) & (lengths[others] <= widths[heaviest])[
            None, :
        ]
        then = np.where(fits, then, np.inf)
    best = int(np.argmin(then))
    if not then.ravel()[best] < loads[heaviest] * (1 - _GAIN):
        return None
    return int(mine[best // len(others)]), int(others[best % len(others)])
