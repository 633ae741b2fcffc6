"""The laws of `spiral_stream.testing` hold for every plan, and notice streams that break them."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream import testing
from spiral_stream.sampling.order import Arrangement, Order, Population, UInt64
from tests.fixtures.streams import FIXED, ORDERS, RANDOM, TAILS, maker

pytestmark = pytest.mark.usefixtures("no_threads_left")

WORLDS = (1, 2, 3, 4, 6)
EVERY = list(itertools.product(ORDERS, TAILS, (1, 3)))


@pytest.mark.parametrize(("order", "tail", "lanes"), EVERY)
def test_every_order_tail_and_lane_count_keeps_the_laws(catalog: sp.Catalog, order: str, tail: str, lanes: int) -> None:
    transforms = RANDOM if lanes == 1 else FIXED
    make = maker(catalog, order=ORDERS[order], last=TAILS[tail], lanes=lanes, transforms=transforms, batch_size=55)

    testing.check_replay(make)
    testing.check_resume(make)
    testing.check_elastic(make, WORLDS[1:] if lanes == 1 else (2, 6))  # held against world size 1


@settings(max_examples=6)
@given(
    order=st.sampled_from(sorted(ORDERS)),
    tail=st.sampled_from(sorted(TAILS)),
    lanes=st.integers(1, 5),
    batch_size=st.integers(20, 120),
    limit=st.integers(20, 240),
    transforms=st.sampled_from([RANDOM, FIXED]),
    world=st.sampled_from(WORLDS),
    prefetch=st.integers(1, 4),
)
def test_drawn_plans_keep_the_laws(
    catalog: sp.Catalog,
    order: str,
    tail: str,
    lanes: int,
    batch_size: int,
    limit: int,
    transforms: Any,
    world: int,
    prefetch: int,
) -> None:
    relation = catalog.table("lance").limit(limit)

    def make() -> sp.PreparedStream:
        from tests.fixtures.streams import plan

        options = {"order": ORDERS[order], "last": TAILS[tail], "lanes": lanes, "batch_size": batch_size}
        return plan(relation, transforms=transforms, **options).to_numpy(prefetch=prefetch)

    testing.check_replay(make)
    testing.check_resume(make)
    testing.check_elastic(make, (world,))
    testing.check_loops(lambda: make().bind(rank=world - 1, world_size=world))


class Biased(Order):
    """Reads its first row twice and its last never."""

    def arrange(self, population: Population, pass_number: int) -> Arrangement:
        total = population.total

        class Twice(Arrangement):
            size = total

            def rows(self, positions: UInt64) -> UInt64:
                return np.where(positions == total - 1, np.uint64(0), positions)

            def positions(self, rows: UInt64) -> UInt64:
                return rows

        return Twice()


def test_an_order_that_repeats_a_row_is_noticed() -> None:
    population = Population(np.array([10], dtype=np.uint64), np.zeros(1, dtype=np.uint64))

    with pytest.raises(AssertionError, match="does not read every row exactly once"):
        testing.check_order(Biased(), population)


def forgetful(make: Callable[[], sp.PreparedStream]) -> Callable[[], sp.PreparedStream]:
    """Streams that cannot be resumed."""

    def made() -> sp.PreparedStream:
        stream = make()
        stream.load_state_dict = lambda _: None  # type: ignore[method-assign]
        return stream

    return made


def every_second(loop: testing.Loop) -> testing.Loop:
    """A loop whose every second pass is empty."""
    turns = itertools.count()
    return lambda stream, steps: loop(stream, steps) if next(turns) % 2 == 0 else iter(())


def restless(make: Callable[[], sp.PreparedStream]) -> Callable[[], sp.PreparedStream]:
    """Streams that give other random bits each time."""
    seeds: Iterator[int] = itertools.count()
    return lambda: make().bind(run_seed=next(seeds))


def test_streams_that_break_a_law_are_noticed(catalog: sp.Catalog) -> None:
    make = maker(catalog, batch_size=40)

    with pytest.raises(AssertionError, match="after step 2: loading the state moves the place"):
        testing.check_resume(forgetful(make), [2])
    with pytest.raises(AssertionError, match="islice: pass 1 has 0 batches, not 6"):
        testing.check_loops(make, {"islice": every_second(testing.LOOPS["islice"])})
    with pytest.raises(AssertionError, match="batch 0 differs when the stream is replayed"):
        testing.check_replay(restless(make))
    with pytest.raises(AssertionError, match="world size 2: global batch 0 differs"):
        testing.check_elastic(restless(make), (2,))
