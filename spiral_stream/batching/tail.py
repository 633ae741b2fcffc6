"""Which batches the ranks deliver at the end of an epoch.

Each step takes ``merge`` consecutive batches per rank, so a *group* of ``world_size * merge`` batches for all ranks
(docs/decisions/0025). An epoch seldom ends with a whole group. What happens then is the plan's tail rule:

* `DropPartial`: the last, incomplete group is not delivered.
* `PadPartial`: it is filled up with batches from the epoch's start.
* `KeepPartial`: it is delivered as it is, so some ranks may make one step fewer.

Whether the last batch itself is short is decided in `fixed`, and in `runtime.chapters` for formations.

A run does not know how many batches an epoch has until it has formed them all, so `admits` only asks whether a batch
exists. `end` and `steps` say the same of an epoch whose batches are counted.
"""

from collections.abc import Callable

from spiral_stream.batching.formation import DropPartial, PadPartial, Tail


def admits(last: Tail, first: int, group: int, due: range, exists: Callable[[int], bool]) -> range | None:
    """Return which batches a rank delivers in a step.

    Args:
        last: the tail rule.
        first: the step's first batch.
        group: batches of the step, over all ranks.
        due: the rank's batches in a complete step.
        exists: whether the epoch has a batch, by number.

    Returns:
        ``due`` or its beginning; None if the epoch has no such step for this rank.
    """
    if isinstance(last, DropPartial):
        return due if exists(first + group - 1) else None
    if isinstance(last, PadPartial):
        return due if exists(first) else None
    there = [number for number in due if exists(number)]
    return range(due.start, there[-1] + 1) if there else None


def end(last: Tail, batches: int, group: int) -> int:
    """Return how many batches all ranks deliver together, repeated ones included.

    Args:
        last: the tail rule.
        batches: batches left in the epoch.
        group: batches of a step, over all ranks.
    """
    if isinstance(last, DropPartial):
        return batches // group * group
    if isinstance(last, PadPartial):
        return -(-batches // group) * group
    return batches


def steps(last: Tail, batches: int, world_size: int, merge: int, rank: int) -> int:
    """Return how many steps a rank makes; all ranks make the same number, except with `KeepPartial`.

    Args:
        last: the tail rule.
        batches: batches left in the epoch.
        world_size: ranks that share them.
        merge: batches that a rank concatenates in each step.
        rank: the rank.
    """
    shares = -(-end(last, batches, world_size * merge) // merge)  # of up to merge batches, dealt to the ranks in turn
    return max(0, -(-(shares - rank) // world_size))
