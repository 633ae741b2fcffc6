"""Values of a plan that are known only when a run starts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, final

from spiral_stream.errors import BindError, PlanError

NAMES: Final = ("epoch", "data_parallel_rank", "data_parallel_world_size")
ALIASES: Final = {"rank": "data_parallel_rank", "world_size": "data_parallel_world_size"}


@final
@dataclass(frozen=True, slots=True)
class RuntimeParam:
    """Stands in a plan for a value that a run binds; never part of the fingerprint.

    ``rank`` and ``world_size`` are short for ``data_parallel_rank`` and
    ``data_parallel_world_size``; ``name`` always holds the long one.
    """

    name: str

    def __post_init__(self) -> None:
        full = ALIASES.get(self.name, self.name)
        if full not in NAMES:
            msg = f"RuntimeParam: {self.name!r} is not a runtime parameter; there are {', '.join(NAMES)}"
            raise PlanError(msg)
        object.__setattr__(self, "name", full)


def resolve(value: int | RuntimeParam, bound: Mapping[str, int]) -> int:
    """The integer that a plan's value stands for in this run.

    Args:
        value: a fixed integer, or a parameter.
        bound: what the run has bound, by full name.

    Raises:
        BindError: the parameter is not bound.
    """
    if isinstance(value, int):
        return value
    if value.name not in bound:
        msg = f"bind: {value.name} is not bound. Call bind({value.name}=...) before the first batch"
        raise BindError(msg)
    return bound[value.name]
