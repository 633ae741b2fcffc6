"""What the laws of streams are drawn over: a subject is a kind of stream, its name, and how to draw one."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck
from hypothesis import strategies as st

from spiral_stream.testing import MakeStream
from tests.fixtures.examples import few


@dataclass(frozen=True)
class Subject:
    """A kind of stream that keeps the laws."""

    name: str
    shelf: Callable[[Path], Any]  # makes what its streams read, once; subjects of one function share it
    drawn: st.SearchStrategy[Any]
    make: Callable[[Any, Any], MakeStream]  # (shelf, drawn) -> what makes a new stream each time
    worlds: tuple[int, ...] = (2, 3, 4)
    ranks_per_node: int | None = None
    shared: Callable[[Any], bool] = lambda _: True  # whether several ranks may read what is drawn
    alone: str = ""  # why no several ranks read any of it
    step_batches: int | None = None  # of its optimizer steps, which its streams have bound
    one_shape: tuple[str, ...] = ()  # fields that have one shape on all ranks of a step
    by_day: int = 1  # examples of each law
    by_night: int = 100

    def examples(self, at_most: int = 2) -> Any:
        """Settings of a law over it; one that costs more has fewer examples by day."""
        return few(min(self.by_day, at_most), self.by_night, suppress_health_check=[HealthCheck.too_slow])

    def at(self, make: MakeStream, rank: int, world: int) -> MakeStream:
        """The same stream on one rank of several."""
        if world == 1:
            return make
        return lambda: make().bind(rank=rank, world_size=world, ranks_per_node=self.ranks_per_node)
