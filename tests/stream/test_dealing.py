"""A deal, seen from the ranks: in each microstep batches of neighbouring cost, and nobody waits longer than without it."""

import itertools
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import spiral_stream as sp
from tests.fixtures.examples import few

COSTS = st.floats(0, 1e9, allow_nan=False, width=32) | st.sampled_from([0.0, 1.0, 2.0])
STEPS = st.tuples(st.integers(1, 6), st.integers(1, 2), st.integers(1, 5)).flatmap(
    lambda shape: st.tuples(st.just(shape), st.lists(COSTS, min_size=prod(shape), max_size=prod(shape)))
)
NAMES = itertools.count()


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    return sp.connect(tmp_path_factory.mktemp("catalog"))


def stream_of(catalog: sp.Catalog, costs: list[float], last: Any = sp.DropPartial) -> sp.PreparedStream:
    """One batch of one sample per cost."""
    name = f"rows{next(NAMES)}"
    table = pa.table({"id": range(len(costs)), "cost": pa.array(costs, pa.float64())})
    catalog.register(name, sp.Arrow(table), identity="id")
    plan = catalog.table(name).sample(order=sp.Sequential())
    return plan.collate(batch_size=1, cost="cost", fields={"cost": sp.Stack("cost")}, last=last).to_numpy()


def per_rank(stream: sp.PreparedStream, world: int, **bound: Any) -> NDArray[np.float64]:
    """What each rank has in each microstep: shape [J, W, merge]."""
    ranks = [
        np.array([b["cost"] for b in stream.bind(rank=rank, world_size=world, epoch=0, **bound)])
        for rank in range(world)
    ]
    return np.stack(ranks, axis=1)


@few(30, 300)
@given(step=STEPS)
def test_a_microstep_has_batches_of_neighbouring_cost_and_ranks_wait_little(
    catalog: sp.Catalog, step: tuple[tuple[int, int, int], list[float]]
) -> None:
    (world, merge, _), costs = step
    with stream_of(catalog, costs) as stream:
        dealt = per_rank(stream, world, step_batches=len(costs), merge=merge)
        undealt = per_rank(stream, world, step_batches=len(costs), merge=merge, deal="order")

    assert sorted(dealt.ravel()) == sorted(undealt.ravel()) == sorted(costs)
    assert undealt.ravel().tolist() == costs
    assert all(here.min() >= after.max() for here, after in pairwise(dealt))
    if merge == 1:
        work, before = dealt[..., 0], undealt[..., 0]
        assert work.max(axis=1).sum() <= before.max(axis=1).sum() * (1 + 1e-9)
        sums = work.sum(axis=0)
        assert sums.max() - sums.min() <= max(costs) * (1 + 1e-9)


def test_batches_of_equal_cost_go_by_position(catalog: sp.Catalog) -> None:
    with stream_of(catalog, [1.0] * 8) as stream:
        found = [
            stream.bind(rank=rank, world_size=2, epoch=0, step_batches=8, merge=2).locate(number)
            for rank, number in ((0, 0), (0, 1), (0, 2), (0, 5))
        ]

    assert [(each["step"], each["rank"]) for each in found if each] == [(0, 0), (0, 1), (0, 0), (1, 1)]


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf"), None])
def test_a_cost_that_is_no_finite_number_is_refused(catalog: sp.Catalog, bad: Any) -> None:
    with (
        stream_of(catalog, [1.0, 2.0, bad, 4.0]) as stream,
        pytest.raises(sp.errors.DataError, match="from 0 up count: mend"),
    ):
        next(iter(stream.bind(rank=0, world_size=2, step_batches=4)))
