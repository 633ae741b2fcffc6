"""Which batches a process of a `DeviceMesh` gets: its coordinate along the data-parallel dimensions decides.

Ranks that differ only along other dimensions (tensor, pipeline, context parallel) need equal batches. A dimension counts
as data-parallel by its name only if everybody who uses the name means that. A dimension with an unknown name, or one that
also holds context-parallel ranks, is refused, not guessed. torchtitan's ``fsdp`` holds context-parallel ranks in versions
that also have a ``batch`` dimension: pass the mesh of ``batch`` there.
"""

from collections.abc import Iterable
from typing import Any, Final, final

import numpy as np

from spiral_stream.arguments import as_integer
from spiral_stream.errors import BindError, shown

# Names of mesh dimensions in the documents of DeviceMesh and FSDP2, torchtitan, accelerate, Megatron-FSDP, NeMo and verl.
DATA_DIMS: Final = frozenset(
    (
        *("dp", "ddp", "data", "data_parallel", "batch"),
        *("dp_replicate", "dp_shard", "dp_outer", "dp_inter", "replicate", "shard", "fsdp"),
    )
)
SAME_DATA_DIMS: Final = frozenset(
    (
        *("tp", "tensor", "tensor_parallel", "model", "model_parallel", "mp"),
        *("pp", "pipe", "pipeline", "pipeline_parallel", "stage"),
        *("cp", "context", "context_parallel", "sp", "seq", "sequence", "sequence_parallel", "ulysses", "ring"),
    )
)
_CONTEXT: Final = "it holds context-parallel ranks, which need equal batches"
_FOREIGN: Final = (AttributeError, TypeError, KeyError, IndexError)  # of what only looks like a mesh of torch
_EXPERT: Final = "in some meshes expert-parallel ranks are data-parallel ones, in others they are not"
_MIXED: Final = {
    **dict.fromkeys(("dp_shard_cp", "dp_cp", "dp_cp_shard", "hsdp", "loss"), _CONTEXT),
    **dict.fromkeys(("ep", "etp", "efsdp", "expert", "dp_shard_in_ep", "dp_shard_mod_ep"), _EXPERT),
}

_GROUPS: Final = "groups"


@final
class RankGroups:
    """The mesh of ``replication=``: groups of neighbouring ranks, each of which gets equal batches.

    Args:
        rank: of this process.
        world_size: all ranks; a multiple of ``each``.
        each: how many ranks a group has.
    """

    mesh_dim_names = (_GROUPS, "within")

    def __init__(self, rank: int, world_size: int, each: int) -> None:
        self.mesh = np.arange(world_size).reshape(-1, each)
        self._rank = rank // each

    def __getitem__(self, name: str) -> "RankGroups":
        assert name == _GROUPS, name
        return self

    def size(self) -> int:
        """Return how many groups there are."""
        return len(self.mesh)

    def get_local_rank(self) -> int:
        """Return which group the process is in."""
        return self._rank


def in_groups(replication: Any, rank: int, world_size: int) -> tuple[RankGroups, tuple[str, ...]]:
    """Return the mesh that ``bind(replication=k)`` is short for, and its data-parallel dimension: k neighbours get equal batches.

    Args:
        replication: k.
        rank: of this process.
        world_size: all ranks.

    Raises:
        BindError: k is no number from 1 up, or groups of k ranks do not fill the world.
    """
    each = as_integer(replication)
    if each is None or each < 1:
        msg = f"bind: replication={shown(replication)}. Give how many neighbouring ranks get equal batches, from 1 up"
        raise BindError(msg)
    if world_size % each:
        msg = (
            f"bind: groups of replication={each} ranks do not fill a world of {world_size}. Give a divisor of it, or "
            "bind(mesh=...) where groups are no neighbours"
        )
        raise BindError(msg)
    if not 0 <= rank < world_size:
        msg = f"bind: rank={rank} of world_size={world_size}; ranks count from 0. Give a rank in [0, {world_size})"
        raise BindError(msg)
    return RankGroups(rank, world_size, each), (_GROUPS,)


def rank_in_mesh(mesh: Any, dp_dims: Any = None) -> tuple[int, int]:
    """Return rank and size along a mesh's data-parallel dimensions, in the mesh's order.

    Args:
        mesh: a ``torch.distributed.device_mesh.DeviceMesh`` with names.
        dp_dims: its data-parallel dimensions; None finds them by their names.

    Raises:
        BindError: the names do not say which dimensions are data-parallel, or the mesh lacks one of ``dp_dims``.
    """
    rank, size = 0, 1
    for name in data_dims(mesh, dp_dims):
        try:
            along = mesh[name]
            rank, size = rank * along.size() + along.get_local_rank(), size * along.size()
        except (AssertionError, RuntimeError, ValueError) as error:
            msg = f"bind: this process has no place along {name!r} of the mesh ({error!s:.200}). Give the mesh that it is part of"
            raise BindError(msg) from error
        except _FOREIGN as error:
            raise _no_mesh(mesh) from error
    return int(rank), int(size)


def data_dims(mesh: Any, dp_dims: Any = None) -> tuple[str, ...]:
    """Return the data-parallel dimensions of a mesh, in its order; arguments and errors as of `rank_in_mesh`."""
    given = getattr(mesh, "mesh_dim_names", "")
    if not (given is None or isinstance(given, tuple | list)) or not all(isinstance(name, str) for name in given or ()):
        raise _no_mesh(mesh)
    names = tuple(given or ())
    if not names:
        msg = (
            "bind: the mesh has no names for its dimensions. Give init_device_mesh(..., mesh_dim_names=...), or bind rank "
            "and world size"
        )
        raise BindError(msg)
    try:
        return _by_name(mesh, names) if dp_dims is None else _named_dims(names, dp_dims)
    except _FOREIGN as error:
        raise _no_mesh(mesh) from error


def _no_mesh(mesh: Any) -> BindError:
    axes = getattr(mesh, "axis_names", None)
    ours = "; of a mesh of JAX, rank=jax.process_index() and world_size=jax.process_count()" if axes is not None else ""
    msg = (
        f"bind: mesh is {shown(mesh)}, which is no mesh of torch. Give a torch.distributed.device_mesh.DeviceMesh, or bind rank "
        f"and world size{ours}"
    )
    return BindError(msg)


def _by_name(mesh: Any, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the dimensions that are data-parallel by name. A dimension of one rank may have any name."""
    data = tuple(name for name in names if name in DATA_DIMS)
    unknown = [name for name in names if name not in DATA_DIMS | SAME_DATA_DIMS and mesh[name].size() > 1]
    if unknown or not data:
        found = (
            f"the name {unknown[0]!r} does not say whether it is data-parallel"
            if unknown
            else "none is data-parallel by name"
        )
        why = f" ({_MIXED[unknown[0]]})" if unknown and unknown[0] in _MIXED else ""
        msg = (
            f"bind: the mesh has dimensions {names}; {found}{why}. Ranks along data-parallel ones get different batches, "
            'all others the same. Name them, for example bind(mesh=mesh, dp_dims=("dp",)), or dp_dims=() for none'
        )
        raise BindError(msg)
    return data


def _named_dims(names: tuple[str, ...], dp_dims: Any) -> tuple[str, ...]:
    dims = tuple(dp_dims) if isinstance(dp_dims, Iterable) and not isinstance(dp_dims, str) else (None,)
    if not all(isinstance(name, str) for name in dims):
        msg = f'bind: dp_dims={shown(dp_dims)}. Give the names of mesh dimensions: dp_dims=("dp_replicate", "dp_shard")'
        raise BindError(msg)
    foreign = [name for name in dims if name not in names]
    if foreign:
        msg = (
            f"bind: dp_dims names {shown(foreign[0])}, and the mesh has dimensions {names}. Name some of them. A flattened "
            "dimension is a mesh of its own: bind(mesh=flattened, dp_dims=...)"
        )
        raise BindError(msg)
    return tuple(name for name in names if name in dims)
