"""`bind(replication=k)`: k neighbouring ranks get equal batches, as the mesh gives them; and why workers are no parameter."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spiral_stream as sp
from spiral_stream.errors import BindError, PlanError
from spiral_stream.testing import frozen, same
from tests.fixtures.examples import few
from tests.stream.planner.binding.test_mesh import Mesh

pytestmark = [pytest.mark.usefixtures("no_threads_left"), pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> sp.Catalog:
    catalog = sp.connect(str(tmp_path_factory.mktemp("replication") / "catalog"))
    rows = pa.table({"id": range(97), "shard": [f"s{n // 20}" for n in range(97)]})
    catalog.register("d", sp.Arrow(rows), identity="id", shard="shard")
    return catalog


def stream(catalog: sp.Catalog, lanes: int = 1) -> sp.PreparedStream:
    ranks = sp.DataParallel(sp.RuntimeParam("rank"), sp.RuntimeParam("world_size"), lanes=lanes)
    plan = catalog.table("d").sample(order=sp.GlobalShuffle(seed=3), assignment=ranks)
    return plan.collate(batch_size=3, fields={"id": sp.List("id")}, last=sp.batching.PadPartial).to_numpy()


def batches(run: sp.PreparedStream) -> list[Any]:
    with run:
        return [frozen(batch) for batch in run]


def alike(some: list[Any], others: list[Any]) -> bool:
    return len(some) == len(others) and all(map(same, some, others))


@few(15, 200)
@given(groups=st.integers(1, 4), each=st.integers(1, 4), data=st.data())
def test_neighbours_get_the_batches_of_their_group_as_a_mesh_gives_them(
    catalog: sp.Catalog, groups: int, each: int, data: st.DataObject
) -> None:
    """With lanes and a merge too, from explicit ranks or from torchrun's variables, and a state goes on in other groups."""
    world, merge, epoch = groups * each, data.draw(st.integers(1, 2)), data.draw(st.integers(0, 2))
    lanes, rank = data.draw(st.sampled_from([1, 2])), data.draw(st.integers(0, world - 1))
    rest = {"merge": merge, "epoch": epoch}
    with pytest.MonkeyPatch.context() as patch:
        given_ranks = {"rank": rank, "world_size": world}
        if data.draw(st.booleans()):
            patch.setenv("RANK", str(rank))
            patch.setenv("WORLD_SIZE", str(world))
            given_ranks = {}
        short = stream(catalog, lanes).bind(**given_ranks, replication=each, **rest)
        found = batches(short)

    by_mesh = stream(catalog, lanes).bind(mesh=Mesh(dp=(rank // each, groups), tp=(rank % each, each)), **rest)
    by_hand = stream(catalog, lanes).bind(rank=rank // each, world_size=groups, **rest)
    assert alike(found, batches(by_mesh))
    assert alike(found, batches(by_hand))

    stop = data.draw(st.integers(0, len(found) - 1))
    with stream(catalog, lanes).bind(rank=rank, world_size=world, replication=each, **rest) as begun:
        run = iter(begun)
        assert alike([frozen(next(run)) for _ in range(stop)], found[:stop])
        run.close()  # type: ignore[attr-defined]  # a pass
        state = begun.state_dict()
    resumed = stream(catalog, lanes).bind(rank=0, world_size=6, replication=6, merge=merge)
    resumed.load_state_dict(state)
    alone = stream(catalog, lanes).bind(merge=merge)
    alone.load_state_dict(state)
    assert alike(batches(resumed), batches(alone))


def test_nodes_are_found_as_in_the_mesh(catalog: sp.Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight ranks of two nodes, in pairs: four groups, two on each node."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    auto = stream(catalog, 4).bind(rank=5, world_size=8, replication=2, ranks_per_node="auto")

    assert alike(batches(auto), batches(stream(catalog, 4).bind(rank=2, world_size=4, ranks_per_node=2)))


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"rank": 0, "world_size": 6, "replication": 4}, "do not fill a world of 6. Give a divisor of it"),
        ({"rank": 6, "world_size": 6, "replication": 2}, r"Give a rank in \[0, 6\)"),
        ({"replication": 0}, "Give how many neighbouring ranks get equal batches, from 1 up"),
        ({"replication": True}, "Give how many neighbouring ranks"),
        ({"mesh": Mesh(dp=(0, 2)), "replication": 2}, "Leave replication out"),
    ],
)
def test_what_does_not_fit_is_refused(catalog: sp.Catalog, values: dict[str, Any], says: str) -> None:
    with stream(catalog) as run, pytest.raises(BindError, match=says):
        run.bind(**values)


def test_ranks_are_not_divided_twice(catalog: sp.Catalog) -> None:
    with stream(catalog) as run:
        run.bind(rank=3, world_size=4, replication=2)
        with pytest.raises(
            BindError, match=r"Give them in one call: bind\(rank=\.\.\., world_size=\.\.\., replication=\.\.\.\)"
        ):
            run.bind(replication=2)
        run.bind(epoch=1)
        assert run.bind(rank=3, world_size=4, replication=2).locate(0, 1) is not None


@pytest.mark.parametrize("name", ["worker", "num_workers", "WORKER", "NUM_WORKERS", "worker_id"])
def test_the_place_of_a_worker_is_no_parameter_and_the_refusal_says_what_is(catalog: sp.Catalog, name: str) -> None:
    ways_out = r"share the batches of their rank by themselves.*bind\(rank=.*map\(\.\.\., with_index=True\)"
    with pytest.raises(PlanError, match=ways_out):
        sp.RuntimeParam(name)
    with stream(catalog) as run, pytest.raises(BindError, match=ways_out):
        run.bind(**{name: 2})


def test_variables_of_workers_change_no_batch(catalog: sp.Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = batches(stream(catalog))
    monkeypatch.setenv("WORKER", "1")
    monkeypatch.setenv("NUM_WORKERS", "4")

    assert alike(batches(stream(catalog)), plain)
