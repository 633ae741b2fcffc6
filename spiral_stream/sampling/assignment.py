"""Which batches of the global sequence a rank delivers.

`batches_of` and `owner` are the whole rule: each step takes ``merge`` consecutive batches per rank. `cursor` says at which
batch a step begins, and `batching.tail` what happens at the end of an epoch.
"""

from dataclasses import dataclass
from typing import Final, final

from spiral_stream.arguments import class_door
from spiral_stream.errors import PlanError, shown
from spiral_stream.params import RuntimeParam
from spiral_stream.sampling.order import check_integer

MOST_LANES: Final = 2**16  # each has a place in the state and in EXPLAIN


@final
@class_door(PlanError)
@dataclass(frozen=True, slots=True)
class DataParallel:
    """Batch g of the epoch goes to rank ``(g // merge) % world_size``; the sequence itself never depends on the ranks.

    ``lanes`` divides the order into that many slices of equal size, which take turns in the global sequence (see
    `batching.lanes`). It belongs to the plan and its fingerprint; rank, world size and ``merge`` (batches that a rank
    concatenates per step) belong to the run. So does ``bind(ranks_per_node=)``, which deals the batches of a step to nodes,
    and so gives each node lanes of its own (see `sampling.nodes`).

    Examples:
        >>> one = spiral.DataParallel(rank=1, world_size=2)
        >>> half = photos.sample(order=shuffle, assignment=one).collate(
        ...     batch_size=8, fields={"width": spiral.Stack("width")}
        ... )
        >>> len(half.to_numpy())
        3
    """

    rank: int | RuntimeParam
    world_size: int | RuntimeParam
    lanes: int = 1

    def __post_init__(self) -> None:
        if isinstance(self.lanes, str):
            msg = (
                f"DataParallel: lanes={shown(self.lanes)}. Lanes belong to the plan, and may not depend on where it runs: give "
                "a number that your numbers of nodes divide, such as lanes=12, and bind(ranks_per_node=8) in the run"
            )
            raise PlanError(msg)
        check_integer("DataParallel", "lanes", self.lanes, least=1, most=MOST_LANES)
        for name, value, least, fitting in (
            ("rank", self.rank, 0, "data_parallel_rank"),
            ("world_size", self.world_size, 1, "data_parallel_world_size"),
        ):
            if not isinstance(value, RuntimeParam):
                check_integer("DataParallel", name, value, least=least)
            elif value.name != fitting:
                msg = (
                    f"DataParallel: {name} is RuntimeParam({value.name!r}). "
                    f"Give RuntimeParam({fitting!r}) or an integer"
                )
                raise PlanError(msg)
        if isinstance(self.rank, int) and isinstance(self.world_size, int) and self.rank >= self.world_size:
            msg = (
                f"DataParallel: rank {self.rank} of world_size {self.world_size}; "
                f"ranks count from 0. Give a rank in [0, {self.world_size})"
            )
            raise PlanError(msg)


def batches_of(rank: int, first: int, merge: int) -> range:
    """Return the batch numbers that a rank gets at a step.

    Args:
        rank: the rank.
        first: the step's first batch.
        merge: batches that a rank concatenates in each step.
    """
    start = first + rank * merge
    return range(start, start + merge)


def owner(batch: int, world_size: int, merge: int) -> tuple[int, int]:
    """Return the step at which a batch is due, and the rank that gets it; batch 0 begins step 0."""
    return divmod(batch // merge, world_size)
