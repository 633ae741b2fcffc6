"""The context of an assembler: epoch, lane and chapter, which a factory given to `assemble` is called with.

Samples may not depend on which rank or worker makes them, or another number of ranks would deliver others
(docs/decisions/0023). So a context knows the place in the epoch. A *slot* is a lane: what ``slot`` and ``total_slots``
divide among workers elsewhere, lanes divide here, and any number of ranks takes turns with them.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn, final

import numpy as np

from spiral_stream.errors import PlanError

_OF_A_PROCESS: Final = frozenset(
    (
        *("rank", "world_size", "local_rank", "local_world_size", "node_rank", "num_nodes"),
        *("worker_id", "num_workers", "mesh", "dp_rank", "dp_size"),
    )
)


@final
@dataclass(frozen=True, slots=True)
class Context:
    """The place of an assembler in the epoch.

    Attributes:
        epoch: the epoch whose order is drawn.
        lane: the lane, from 0.
        chapter: the chapter of the lane, from 0.
        lanes: how many lanes the plan has.
        seed: random bits for this place: of the run seed, the epoch, the lane and the chapter.
    """

    epoch: int
    lane: int
    chapter: int
    lanes: int = 1
    seed: int = 0

    @property
    def slot(self) -> int:
        """The lane: the part of the data that this assembler sees."""
        return self.lane

    @property
    def total_slots(self) -> int:
        """How many parts the data has: the lanes."""
        return self.lanes

    @property
    def sample_shuffle_seed(self) -> int:
        """The same as ``seed``."""
        return self.seed

    def generator(self) -> np.random.Generator:
        """Return a generator of random numbers that belongs to this place. Each call returns it anew, from its start."""
        return np.random.Generator(np.random.Philox(key=self.seed))

    if not TYPE_CHECKING:  # a type checker that saw it would take every misspelt name for one of ours

        def __getattr__(self, name: str) -> Any:
            """Refuse what belongs to a process."""
            if name in _OF_A_PROCESS:
                _refuse(name)
            msg = f"a context has epoch, lane, lanes, chapter, seed, slot, total_slots and generator(), no {name!r}"
            raise AttributeError(msg)


def _refuse(name: str) -> NoReturn:
    msg = (
        f"context.{name}: samples may not depend on the process that makes them, or another number of ranks would deliver "
        "others. Use context.slot and context.total_slots, which are lanes, or context.generator()"
    )
    raise PlanError(msg)
