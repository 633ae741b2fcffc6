"""Which batch of an optimizer step each rank gets, and when: the deal.

The set of a step is fixed: its ``step_batches`` neighbours in the global sequence. Ranks wait for each other at each
microstep, for the one whose batches cost most. So the batches are sorted by cost and cut into stripes, one per microstep: all
ranks work on batches of neighbouring cost at the same time. Inside a stripe the costliest batch goes to the rank whose
batches so far cost least (longest processing time first, Graham 1969), so the sums per rank come close too. Ties go by
position and by rank. The deal follows from the costs, the ranks and ``merge`` alone (docs/decisions/0087).

Cost: 0.3 us per batch and rank of a stripe.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, final

import numpy as np
from numpy.typing import NDArray

Policy = Literal["cost", "order"]
POLICIES: Final = ("cost", "order")
Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]

# G batches of an optimizer step, W ranks, J microsteps


@final
@dataclass(frozen=True, slots=True)
class StepDeal:
    """How the batches of an optimizer step are dealt: how many they are, over all ranks, and by which policy.

    ``cost`` deals in stripes of neighbouring cost, ``order`` by position, as without a deal.
    """

    step_batches: int
    policy: Policy

    def to_json(self) -> list[Any]:
        """Return the deal as JSON values."""
        return [self.step_batches, self.policy]


def worlds(step_batches: int, merge: int) -> list[int]:
    """Return the numbers of ranks that can share an optimizer step evenly, ascending.

    Args:
        step_batches: of the step, over all ranks.
        merge: batches that a rank concatenates.
    """
    shares = step_batches // merge if step_batches % merge == 0 else 0
    return [world for world in range(1, shares + 1) if shares % world == 0]


def dealt(
    costs: Float64, world_size: int, merge: int, policy: Policy, sizes: Sequence[tuple[int, ...] | None] = ()
) -> Int64:
    """Return which batch stands at each place of a step.

    Args:
        costs: shape [G], finite; of the step's batches, by position. A step at the end of an epoch may have fewer.
        world_size: ranks that share the step.
        merge: batches that a rank concatenates per microstep.
        policy: how.
        sizes: of the batches' pixels, where batches have one (`Membership.size`): batches of one size stay together.

    Returns:
        shape [G]: a permutation of ``range(G)``. Rank r takes places ``[r * merge, (r + 1) * merge)`` of each stripe of
        ``world_size * merge`` places.
    """
    if policy == "order":
        return np.arange(len(costs), dtype=np.int64)
    values, stripe = costs.tolist(), world_size * merge
    by_cost = np.lexsort((np.arange(len(costs)), -costs, _groups(costs, sizes, stripe))).tolist()
    totals, out = [0.0] * world_size, np.empty(len(costs), dtype=np.int64)
    for first in range(0, len(by_cost), stripe):
        some = by_cost[first : first + stripe]
        free = [max(0, min(merge, len(some) - rank * merge)) for rank in range(world_size)]
        here, taken = [0.0] * world_size, [0] * world_size
        for batch in some:
            rank = min((each for each in range(world_size) if free[each]), key=lambda r: (here[r], totals[r], r))
            out[first + rank * merge + taken[rank]] = batch
            free[rank] -= 1
            taken[rank] += 1
            here[rank] += values[batch]
            totals[rank] += values[batch]
    return out


def _groups(costs: Float64, sizes: Sequence[tuple[int, ...] | None], stripe: int) -> Int64:
    """Which batches stay together, shape [G]: those of one size. The costliest comes first, one that fills no stripe last."""
    if len(set(sizes)) < 2:  # noqa: PLR2004  of one size all stay together
        return np.zeros(len(costs), dtype=np.int64)
    known = list(dict.fromkeys(sizes))
    of = np.array([known.index(size) for size in sizes], dtype=np.int64)
    count = np.bincount(of)
    order = np.lexsort((np.arange(len(known)), -np.bincount(of, weights=costs) / count, count % stripe > 0))
    ranked = np.empty(len(known), dtype=np.int64)
    ranked[order] = np.arange(len(known))
    out: Int64 = ranked[of]
    return out


def microsteps(costs: Float64, world_size: int, merge: int) -> Float64:
    """Return what each rank works on in each microstep, in units of cost: shape [G] -> [J, W].

    Args:
        costs: of the batches, by place; zeros stand for places without a batch.
        world_size: ranks.
        merge: batches that a rank concatenates per microstep.
    """
    stripe = world_size * merge
    lacking = -len(costs) % stripe
    full = np.concatenate((costs, np.zeros(lacking))) if lacking else costs
    out: Float64 = full.reshape(-1, world_size, merge).sum(axis=2)
    return out


def waits(per_rank: Float64) -> Float64:
    """Return the share of each microstep that ranks wait for the slowest one: shape [J, W] -> [J], each in [0, 1)."""
    slowest = per_rank.max(axis=1)
    worked = per_rank.mean(axis=1)
    out: Float64 = np.divide(slowest - worked, slowest, out=np.zeros_like(slowest), where=slowest > 0)
    return out


def wait_share(per_rank: Float64 | Sequence[Float64]) -> float:
    """Return the share of all time that ranks wait, microstep by microstep: arrays of shape [J, W]."""
    every = np.concatenate([np.atleast_2d(each) for each in per_rank]) if isinstance(per_rank, Sequence) else per_rank
    slowest = float(every.max(axis=1).sum())
    return 1.0 - float(every.mean(axis=1).sum()) / slowest if slowest > 0 else 0.0
