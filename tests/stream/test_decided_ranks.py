"""Decisions on ranks that are replicated or lie in a mesh, as arrays of each framework: the batches and states of plain ranks."""

import importlib.util
import json
from itertools import islice
from typing import Any

import numpy as np
import pytest

import spiral_stream as sp
from tests.fixtures.decisions import SIZES, relation_of
from tests.fixtures.texts import SMALL_PLANS, make_catalog
from tests.stream.planner.binding.test_mesh import Mesh

pytestmark = [SMALL_PLANS, pytest.mark.usefixtures("no_threads_left"), pytest.mark.timeout(300)]

GROUPS, EACH = 2, 2  # data-parallel ranks, and those that have equal batches
BEFORE, AFTER = 3, 4  # steps before and after a decision
SHARES = ({"a": 0, "b": 1, "c": 3}, {"a": 2, "b": 0, "c": 1})
FRAMEWORKS = [
    pytest.param(
        name, marks=pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"{name} is not installed")
    )
    for name in ("numpy", "torch", "jax")
]
WAYS: dict[str, Any] = {
    "replication": lambda group, k: {"rank": group * EACH + k, "world_size": GROUPS * EACH, "replication": EACH},
    "mesh": lambda group, k: {"mesh": Mesh(dp=(group, GROUPS), tp=(k, EACH))},
}


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    return make_catalog(tmp_path_factory.mktemp("decided"), SIZES, shortest=1)


def opened(catalog: sp.Catalog, formed: str, framework: str, **bound: Any) -> Any:
    return getattr(relation_of(catalog, formed, size=900), f"to_{framework}")().bind(**bound)


def plain(batch: Any) -> dict[str, Any]:
    return {name: value if isinstance(value, list) else np.asarray(value).tolist() for name, value in batch.items()}


def run(stream: Any, state: Any = None) -> tuple[list[Any], list[Any]]:
    """The batches of a rank that decides twice, in its loop, and the states in between."""
    batches, states = [], []
    with stream:
        if state is not None:
            stream.load_state_dict(state)
        loop = iter(stream)
        for shares in SHARES:
            batches += [plain(each) for each in islice(loop, BEFORE)]
            stream.decide(shares)
            states.append(json.loads(json.dumps(stream.state_dict())))
        batches += [plain(each) for each in islice(loop, AFTER)]
        states.append(json.loads(json.dumps(stream.state_dict())))
        loop.close()
    return batches, states


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("formed", ["fixed", "packed"])
@pytest.mark.parametrize("way", WAYS)
def test_ranks_with_equal_batches_decide_as_plain_ranks_do(
    catalog: sp.Catalog, way: str, formed: str, framework: str
) -> None:
    wanted = [run(opened(catalog, formed, "numpy", rank=group, world_size=GROUPS)) for group in range(GROUPS)]
    assert wanted[0][0] != wanted[1][0]
    assert wanted[0][1] == wanted[1][1]
    for group in range(GROUPS):
        for k in range(EACH):
            found = run(opened(catalog, formed, framework, **WAYS[way](group, k)))
            assert found[0] == wanted[group][0]
            assert found[1] == wanted[group][1]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_state_of_plain_ranks_goes_on_on_replicated_ones(catalog: sp.Catalog, framework: str) -> None:
    _, states = run(opened(catalog, "fixed", "numpy", rank=0, world_size=GROUPS))
    wanted = [run(opened(catalog, "fixed", "numpy", rank=k, world_size=GROUPS), states[1]) for k in range(GROUPS)]
    for group in range(GROUPS):
        found = run(opened(catalog, "fixed", framework, **WAYS["replication"](group, 1)), states[1])
        assert found == wanted[group]
