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
    by_day: int = 2  # examples of each law
    by_night: int = 100

    def examples(self, fewer: int = 0) -> Any:
        """Settings of a law over it; one that costs more has fewer examples by day."""
        by_day = max(1, self.by_day - fewer)
        return few(by_day, self.by_night, suppress_health_check=[HealthCheck.too_slow])

    def places(self, drawn: Any) -> st.SearchStrategy[tuple[int, int]]:
        """A rank and the number of ranks, of which each resumes for itself."""
        if self.alone or not self.shared(drawn):
            return st.just((0, 1))
        worlds = st.sampled_from((1, *self.worlds))
        return worlds.flatmap(lambda world: st.tuples(st.integers(0, world - 1), st.just(world)))

    def at(self, make: MakeStream, place: tuple[int, int]) -> MakeStream:
        """The same stream on one rank of several."""
        rank, world = place
        if world == 1:
            return make
        return lambda: make().bind(rank=rank, world_size=world, ranks_per_node=self.ranks_per_node)
