"""What a run leaves open: the plan's integers, explicit bindings, the process group, the environment, 0 of 1."""

import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spiral_stream
from spiral_stream import BindError, DataParallel, GlobalShuffle, RuntimeParam, Sequential
from spiral_stream.plan.nodes import Sample, Scan
from spiral_stream.planner.bind import Bindings, Bound, settle

ROOT = Path(spiral_stream.__file__).parents[1]
SCAN = Scan("t", pa.schema([("id", pa.utf8())]), ("id",))
RANKS = DataParallel(RuntimeParam("rank"), RuntimeParam("world_size"))
SAMPLE = Sample(SCAN, ("id",), GlobalShuffle(seed=17), RuntimeParam("epoch"), RANKS)


def settled(sample: Sample = SAMPLE, **values: Any) -> Bound:
    return settle(Bindings().updated(**values), sample)


def test_alone_a_process_is_rank_0_of_1_in_epoch_0_with_the_orders_seed() -> None:
    assert settled() == Bound(epoch=0, rank=0, world_size=1, run_seed=17, merge=1)
    assert settled(replace(SAMPLE, order=Sequential())).run_seed == 0


@given(world=st.integers(1, 64), data=st.data(), epoch=st.integers(0, 99), merge=st.integers(1, 9))
def test_what_is_bound_is_what_a_run_goes_with(world: int, data: st.DataObject, epoch: int, merge: int) -> None:
    rank = data.draw(st.integers(0, world - 1))
    long = settled(epoch=epoch, data_parallel_rank=rank, data_parallel_world_size=world, merge=merge, run_seed=-5)
    short = settled(epoch=epoch, rank=np.int64(rank), world_size=np.uint8(world), merge=merge, run_seed=-5)

    assert long == short == Bound(epoch, rank, world, -5, merge)
    assert type(short.rank) is int


def test_the_environment_fills_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")

    assert (settled().rank, settled().world_size) == (3, 8)
    assert (settled(rank=1, world_size=2).rank, settled(rank=1).world_size) == (1, 8)


def test_integers_of_the_plan_hold() -> None:
    fixed = replace(SAMPLE, epoch=4, assignment=DataParallel(1, 3))

    assert settled(fixed) == Bound(4, 1, 3, 17, 1)
    with pytest.raises(BindError, match=r"data_parallel_rank=2, but the plan fixes 1. Leave it unbound, or plan with"):
        settled(fixed, rank=2)


def test_a_later_binding_replaces_an_earlier_one() -> None:
    bindings = Bindings().updated(epoch=1, rank=0, world_size=2).updated(epoch=5)

    assert (bindings.epoch, bindings.data_parallel_world_size) == (5, 2)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"ranks": 3}, "'ranks' is not a binding; there are epoch, data_parallel_rank, .*, mesh"),
        ({"epoch": -1}, "epoch=-1 is out of range; it counts from 0"),
        ({"world_size": 0}, "data_parallel_world_size=0 is out of range; it counts from 1"),
        ({"merge": 0}, "merge=0 is out of range; it counts from 1"),
        ({"merge": None}, "merge=None is a NoneType. Give an integer"),
        ({"epoch": "3"}, "epoch='3' is a str. Give an integer"),
        ({"epoch": 1.0}, r"epoch=1.0 is a float. Give an integer"),
        ({"mesh": 3}, "mesh is 3. Give a torch.distributed.device_mesh.DeviceMesh, or bind rank"),
        ({"rank": True}, "data_parallel_rank=True is a bool. Give an integer"),
        ({"rank": 2, "world_size": 2}, r"rank=2 of data_parallel_world_size=2; .* Bind both, with a rank in \[0, 2\)"),
        ({"rank": 1}, r"rank=1 of data_parallel_world_size=1; ranks count from 0. Bind both"),
    ],
)
def test_a_wrong_binding_says_what_would_be_right(values: dict[str, Any], message: str) -> None:
    with pytest.raises(BindError, match=message):
        settled(**values)


def test_a_smaller_world_does_not_turn_several_processes_into_rank_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("WORLD_SIZE", "8")

    with pytest.raises(BindError, match=r"rank=5 of data_parallel_world_size=4; .*Bind both"):
        settled(world_size=4)


def test_an_environment_that_holds_no_number_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "first")

    with pytest.raises(BindError, match=r"RANK or WORLD_SIZE in the environment is not a number .*. Unset it or bind"):
        settled()


class Mesh:
    """What a `DeviceMesh` of torch looks like from here."""

    def __init__(self, **dims: tuple[int, int]) -> None:
        self.dims = dims
        self.mesh_dim_names = tuple(dims)

    def __getitem__(self, name: str) -> "Mesh":
        return Mesh(**{name: self.dims[name]})

    def size(self) -> int:
        return next(iter(self.dims.values()))[1]

    def get_local_rank(self) -> int:
        return next(iter(self.dims.values()))[0]


def test_ranks_that_share_a_data_parallel_coordinate_are_one() -> None:
    hybrid = Mesh(dp_replicate=(1, 2), dp_shard=(2, 4), tp=(3, 8))

    assert (settled(mesh=hybrid).rank, settled(mesh=hybrid).world_size) == (1 * 4 + 2, 8)
    assert settled(mesh=Mesh(fsdp=(2, 4), cp=(1, 2))).rank == 2
    assert settled(mesh=hybrid, rank=0).rank == 0


def test_a_mesh_without_a_data_parallel_dimension_is_refused() -> None:
    with pytest.raises(BindError, match=r"dimensions \('tp', 'pp'\); none is data-parallel .*dp_dims=\(\) for none"):
        settled(mesh=Mesh(tp=(0, 2), pp=(0, 2)))
    assert settled(mesh=Mesh(tp=(1, 2), pp=(0, 2)), dp_dims=()).world_size == 1


# ---- real meshes


@pytest.fixture
def mesh() -> Iterator[Callable[..., Any]]:
    """Makes meshes of a process group that is only played, as one rank of it sees them."""
    torch = pytest.importorskip("torch")
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    def make(rank: int, **dims: int) -> Any:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        world = math.prod(dims.values())
        torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
        return init_device_mesh("cpu", tuple(dims.values()), mesh_dim_names=tuple(dims))

    yield make
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


MESHES = [
    ({"dp": 2, "tp": 2}, {"dp"}),
    ({"data": 3, "model": 2}, {"data"}),
    ({"data_parallel": 2, "tensor_parallel": 2}, {"data_parallel"}),
    ({"replicate": 2, "shard": 3}, {"replicate", "shard"}),
    ({"ddp": 2, "fsdp": 3}, {"ddp", "fsdp"}),
    ({"pp": 2, "dp_replicate": 2, "dp_shard": 2, "cp": 2, "tp": 1}, {"dp_replicate", "dp_shard"}),
    ({"dp_outer": 2, "dp_shard": 2, "cp": 2}, {"dp_outer", "dp_shard"}),
    ({"pp": 2, "batch": 3, "cp": 2}, {"batch"}),
    ({"tp": 2, "dp": 2, "ep": 1}, {"dp"}),  # one expert group is no question
]


@pytest.mark.parametrize(("dims", "data"), MESHES)
def test_ranks_get_equal_batches_unless_they_differ_along_a_data_parallel_dimension(
    mesh: Callable[..., Any], dims: dict[str, int], data: set[str]
) -> None:
    names, places = list(dims), {}
    for rank in range(math.prod(dims.values())):
        bound = settled(mesh=mesh(rank, **dims))
        coordinate = dict(zip(names, np.unravel_index(rank, tuple(dims.values())), strict=True))
        places.setdefault(tuple(int(coordinate[name]) for name in names if name in data), set()).add(bound.rank)
        assert bound.world_size == math.prod(size for name, size in dims.items() if name in data)
    assert [places[at] for at in sorted(places)] == [{rank} for rank in range(len(places))]


@pytest.mark.parametrize(
    ("dims", "name", "why"),
    [
        ({"dp": 2, "dp_tp": 2}, "dp_tp", "does not say whether it is data-parallel"),
        ({"dp": 2, "datacenter": 2}, "datacenter", "does not say whether it is data-parallel"),
        ({"dp_replicate": 2, "dp_shard_cp": 2, "tp": 2}, "dp_shard_cp", "holds context-parallel ranks"),
        ({"dp": 2, "ep": 2}, "ep", "in some meshes expert-parallel ranks are data-parallel ones"),
        ({"DP": 2}, "DP", "does not say whether it is data-parallel"),
    ],
)
def test_a_dimension_whose_name_says_nothing_for_certain_is_refused(
    mesh: Callable[..., Any], dims: dict[str, int], name: str, why: str
) -> None:
    made = mesh(1, **dims)
    with pytest.raises(
        BindError,
        match=rf"the name '{name}' (?=does not say whether it is data-parallel).*{why}.*bind\(mesh=mesh, dp_dims=",
    ):
        settled(mesh=made)
    assert settled(mesh=made, dp_dims=tuple(dims)).world_size == math.prod(dims.values())
    assert settled(mesh=made, dp_dims=list(dims)[:1]).world_size == next(iter(dims.values()))


def test_a_flattened_dimension_counts_only_where_it_is_named(mesh: Callable[..., Any]) -> None:
    for rank in range(8):
        whole = mesh(rank, dp_replicate=2, dp_shard=2, cp=2)
        joint = whole["dp_shard", "cp"]._flatten("dp_shard_cp")
        data = whole["dp_replicate", "dp_shard"]._flatten("dp")
        assert settled(mesh=whole).rank == settled(mesh=data).rank == rank // 2
        assert settled(mesh=whole, dp_dims=("dp_shard", "dp_replicate")).rank == rank // 2  # in the mesh's order
        with pytest.raises(BindError, match="holds context-parallel ranks"):
            settled(mesh=joint)
        assert settled(mesh=joint, dp_dims=("dp_shard_cp",)).world_size == 4


def test_dp_dims_that_are_not_the_meshs_are_refused(mesh: Callable[..., Any]) -> None:
    whole = mesh(0, dp_replicate=2, dp_shard=2)
    whole._flatten("dp")
    assert settled(mesh=whole, dp_dims=("dp_shard", "dp_shard")).world_size == 2
    for dims, why in (
        (("dq",), r"dp_dims names 'dq', and the mesh has dimensions \('dp_replicate', 'dp_shard'\)"),
        (("dp", "dp_shard"), r"a mesh of its own: bind\(mesh=flattened, dp_dims=\.\.\.\)"),
        ("dp_shard", "Give the names of mesh dimensions"),
        (3, "Give the names of mesh dimensions"),
        ((0,), "Give the names of mesh dimensions"),
    ):
        with pytest.raises(BindError, match=why):
            settled(mesh=whole, dp_dims=dims)
    with pytest.raises(BindError, match=r"Give bind\(mesh=\.\.\., dp_dims="):
        settled(dp_dims=("dp",))
    import torch

    nameless = torch.distributed.device_mesh.init_device_mesh("cpu", (4,))
    with pytest.raises(BindError, match=r"no names for its dimensions. Give init_device_mesh\(\.\.\., mesh_dim_names="):
        settled(mesh=nameless)


# ---- real process groups

PROGRAM = """
import sys
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from tests.stream.planner.test_bind import settled

store, rank, world = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
group = settled()
data, tensor = (init_device_mesh("cpu", (1, world), mesh_dim_names=names) for names in (("tp", "dp"), ("dp", "tp")))
meshes = [settled(mesh=mesh) for mesh in (data, tensor)]
print(*[(each.rank, each.world_size) for each in (group, *meshes)], sep="|")
dist.destroy_process_group()
"""


def test_the_process_group_fills_in_before_the_environment(tmp_path: Path) -> None:
    world = 2
    env = {**os.environ, "PYTHONPATH": str(ROOT), "RANK": "6", "WORLD_SIZE": "7", "OMP_NUM_THREADS": "1"}
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(tmp_path / "store"), str(rank), str(world)],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    answers = [run.communicate(timeout=120) for run in runs]

    assert [run.returncode for run in runs] == [0] * world, answers
    assert [out.strip() for out, _ in answers] == [f"{(rank, world)}|{(rank, world)}|{(0, 1)}" for rank in range(world)]
