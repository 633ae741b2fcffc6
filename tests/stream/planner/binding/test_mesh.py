"""Ranks of a mesh get equal batches unless they differ along a dimension that is data-parallel."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from spiral_stream.errors import BindError
from tests.stream.planner.binding.test_bindings import settled


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


class Named:
    """What has the names of a mesh, and nothing else of it."""

    mesh_dim_names = ("dp",)


@pytest.mark.parametrize(
    "foreign",
    [Named(), object(), {"dp": 2}, "dp", 3, np.zeros((2, 2)), [("dp", 2)]],
    ids=lambda each: type(each).__name__,
)
@pytest.mark.parametrize("dp_dims", [None, ("dp",)])
def test_what_is_no_mesh_of_torch_is_named(foreign: Any, dp_dims: Any) -> None:
    with pytest.raises(
        BindError, match=r"no mesh of torch. Give a torch.distributed.device_mesh.DeviceMesh, or bind rank and"
    ):
        settled(mesh=foreign, dp_dims=dp_dims)


def test_a_mesh_of_jax_is_named_with_what_to_bind() -> None:
    jax = pytest.importorskip("jax")
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("dp",))
    with pytest.raises(BindError, match=r"rank=jax.process_index\(\) and world_size=jax.process_count\(\)"):
        settled(mesh=mesh)
