"""Lanes bound to nodes: each node reads its own shards, the batches stay the same, and a run resumes on other nodes."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.fixtures import node_lanes
from tests.fixtures.node_lanes import SHARDS


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Any]:
    rows = node_lanes.sampled(tmp_path_factory.mktemp("lanes"))
    return lambda: node_lanes.stream(rows)


def shards_of(make: Callable[[], Any], world: int, each: int, **bound: Any) -> tuple[list[set[str]], list[Any]]:
    """The shards that each node reads, and the batches in the order of the plan."""
    read: list[set[str]] = [set() for _ in range(world // each)]
    ranks = []
    for rank in range(world):
        with make() as stream:
            got = list(stream.bind(rank=rank, world_size=world, **bound))
        ranks.append(got)
        read[rank // each].update(shard for batch in got for shard in batch["shard"])
    return read, ranks


@pytest.mark.parametrize(("world", "each"), [(4, 2), (8, 2), (8, 4)])
def test_each_node_reads_its_own_shards_alone(make: Callable[[], Any], world: int, each: int) -> None:
    before, _ = shards_of(make, world, each)
    after, _ = shards_of(make, world, each, ranks_per_node=each)

    assert sum(map(len, after)) == len(set.union(*after)) == SHARDS
    assert sum(map(len, before)) > SHARDS or world == 4  # 4 lanes on 4 ranks: each rank has its own already


def test_a_run_goes_on_with_other_nodes(make: Callable[[], Any]) -> None:
    with make() as stream:
        whole = [batch["id"] for batch in stream.bind(rank=0, world_size=1)]
    with make() as stream:
        each = iter(stream.bind(rank=1, world_size=8, ranks_per_node=2))
        got = [next(each)["id"], next(each)["id"]]
        state = stream.state_dict()
        each.close()
    assert got == [whole[4], whole[12]]  # rank 1 is the second of node 0 of 4: it has place 4
    later: dict[int, list[Any]] = {}
    read: list[set[str]] = [set(), set()]
    for rank in range(4):
        with make() as stream:
            stream.bind(rank=rank, world_size=4, ranks_per_node=2).load_state_dict(state)
            rest = list(stream)
        later[rank] = [batch["id"] for batch in rest]
        read[rank // 2].update(shard for batch in rest for shard in batch["shard"])

    assert [later[rank][step] for step in range(len(later[0])) for rank in (0, 2, 1, 3)] == whole[16:]
    assert not read[0] & read[1]


def test_locate_names_the_rank_that_delivers(make: Callable[[], Any]) -> None:
    with make() as stream:
        stream.bind(rank=0, world_size=8, ranks_per_node=2)
        identity = stream.batch(4, epoch=0)["id"][0]
        assert stream.locate(identity) == {"epoch": 0, "batch": 4, "step": 0, "rank": 1}
