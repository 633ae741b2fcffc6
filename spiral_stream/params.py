"""Parameters of a plan whose values are known only when a run starts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, final

from spiral_stream.arguments import class_door
from spiral_stream.errors import BindError, PlanError

NAMES: Final = ("epoch", "data_parallel_rank", "data_parallel_world_size")
ALIASES: Final = {"rank": "data_parallel_rank", "world_size": "data_parallel_world_size"}

_OF_WORKERS: Final = frozenset(("worker", "worker_id", "worker_index", "num_workers", "worker_count", "workers"))


def worker_refusal(where: str, name: object) -> str | None:
    """Return why the place of a worker is no parameter (docs/decisions/0068); None for any other name.

    Args:
        where: how the message begins.
        name: of a parameter or binding; capitals do not matter, for webdataset writes ``WORKER`` and ``NUM_WORKERS``.
    """
    if not isinstance(name, str) or name.lower() not in _OF_WORKERS:
        return None
    return (
        f"{where}: {name!r} would make batches depend on how many workers read. Leave it out: workers of a DataLoader share "
        "the batches of their rank by themselves. Give processes of your own ranks, bind(rank=..., world_size=...); and a "
        "function that needs randomness or its place, map(..., random=True) or map(..., with_index=True)"
    )


@final
@class_door(PlanError)
@dataclass(frozen=True, slots=True)
class RuntimeParam:
    """Stands in a plan for a value that a run binds. The value is not part of the fingerprint.

    Args:
        name: ``"epoch"``, ``"data_parallel_rank"`` (or ``"rank"``), or ``"data_parallel_world_size"`` (or
            ``"world_size"``). The attribute ``name`` always holds the long form.

    Raises:
        PlanError: there is no such parameter.

    Examples:
        >>> fixed = photos.sample(order=shuffle, epoch=spiral.RuntimeParam("epoch"))
    """

    name: str

    def __post_init__(self) -> None:
        full = ALIASES.get(self.name, self.name)
        if full not in NAMES:
            msg = worker_refusal("RuntimeParam", self.name) or (
                f"RuntimeParam: {self.name!r} is not a runtime parameter. Give one of {', '.join(NAMES)}"
            )
            raise PlanError(msg)
        object.__setattr__(self, "name", full)


def resolve(value: int | RuntimeParam, bound: Mapping[str, int]) -> int:
    """Return the integer that a value of the plan means in this run.

    Args:
        value: a fixed integer, or a parameter.
        bound: the run's bindings, by full name.

    Raises:
        BindError: the parameter is not bound.
    """
    if isinstance(value, int):
        return value
    if value.name not in bound:
        msg = f"bind: {value.name} is not bound. Call bind({value.name}=...) before the first batch"
        raise BindError(msg)
    return bound[value.name]
