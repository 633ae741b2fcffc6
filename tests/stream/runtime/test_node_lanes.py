"""Lanes bound to nodes: each node reads its own shards, the batches stay the same, and a run resumes on other nodes."""

from collections.abc import Callable
from typing import Any

import lance
import pytest

import spiral_stream as sp
from spiral_stream.testing import check_elastic, check_resume
from tests.fixtures import relations

SHARDS = 16


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Any]:
    """Streams of 16 shards of 16 rows in 4 lanes; the size of a block is that of a shard."""
    folder = tmp_path_factory.mktemp("lanes")
    table = relations.imagenet_train(16 * SHARDS, shards=SHARDS, side=8).drop(["image_ref"])
    lance.write_dataset(table, str(folder / "rows.lance"), max_rows_per_file=16)
    catalog = sp.connect(str(folder / "catalog"))
    catalog.register("rows", sp.Lance(str(folder / "rows.lance")))
    ranks = sp.DataParallel(sp.RuntimeParam("rank"), sp.RuntimeParam("world_size"), lanes=4)
    order = sp.ShardAwareShuffle(seed=3, shuffle_block_size=16)
    sampled = catalog.table("rows").sample(identity="sample_id", order=order, assignment=ranks)
    fields = {"id": sp.List("sample_id"), "shard": sp.List("storage_shard")}
    return lambda: sampled.collate(batch_size=4, fields=fields).to_numpy(prefetch=2)


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


def test_any_number_of_nodes_delivers_the_same_batches(make: Callable[[], Any]) -> None:
    check_elastic(make, worlds=(2, 4, 8), ranks_per_node=2)


def test_a_rank_resumes_where_it_was(make: Callable[[], Any]) -> None:
    check_resume(lambda: make().bind(rank=3, world_size=4, ranks_per_node=2))


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
