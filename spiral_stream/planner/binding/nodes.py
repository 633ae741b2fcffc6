"""How many ranks a node has, and whether the plan's lanes can be dealt to nodes."""

import operator
import os
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.arguments import as_integer
from spiral_stream.errors import BindError, shown
from spiral_stream.planner.binding.mesh import data_dims

AUTO: Final = "auto"
_LOCAL: Final = "LOCAL_WORLD_SIZE"


def ranks_per_node(value: Any, world_size: int | None, mesh: Any, dp_dims: Any) -> int:
    """Return how many data-parallel ranks share a node.

    Args:
        value: a number, or "auto".
        world_size: data-parallel ranks as they are bound; None if the environment says it.
        mesh: the run's mesh; None without one.
        dp_dims: its data-parallel dimensions, if they are given.

    Raises:
        BindError: it is no number from 1 up; or "auto", and nothing says it.
    """
    if isinstance(value, str) and value == AUTO:
        return _found(world_size, mesh, dp_dims)
    ranks = as_integer(value)
    if ranks is None or ranks < 1:
        msg = f'bind: ranks_per_node={shown(value)}. Give how many ranks a node has, from 1 up, or "auto"'
        raise BindError(msg)
    return operator.index(value)


def need_lanes(world_size: int, each: int, merge: int, lanes: int) -> None:
    """Refuse nodes that cannot have lanes of their own.

    Raises:
        BindError: says which numbers would do.
    """
    way_out = "leave ranks_per_node unbound (batches stay the same, and nodes share shards)"
    nodes, left = divmod(world_size, each)
    if left:
        msg = f"bind: {world_size} ranks do not fill nodes of ranks_per_node={each}. Bind a divisor, or {way_out}"
        raise BindError(msg)
    if nodes > 1 and lanes % (nodes * merge):
        of = f"{nodes} nodes" if merge == 1 else f"{nodes} nodes with merge={merge}"
        msg = (
            f"bind: {lanes} lanes cannot be dealt to {of} (ranks_per_node={each} of {world_size} ranks). Plan with "
            f"DataParallel(..., lanes={nodes * merge}) or a multiple, or {way_out}"
        )
        raise BindError(msg)


def _found(world_size: int | None, mesh: Any, dp_dims: Any) -> int:
    local = _number(_LOCAL)
    if local is None:
        msg = f'bind: ranks_per_node="auto", and ${_LOCAL} is not set; torchrun sets it. Give the number of ranks of a node'
        raise BindError(msg)
    if mesh is not None:
        return _in_mesh(mesh, dp_dims, local)
    world, rank, node = _number("WORLD_SIZE"), _number("RANK"), _number("GROUP_RANK")
    if world_size is not None and world_size != world:
        msg = (
            f'bind: ranks_per_node="auto" with data_parallel_world_size={world_size}, but $WORLD_SIZE is {world}. Give how many '
            "data-parallel ranks a node has, or bind(mesh=...)"
        )
        raise BindError(msg)
    if rank is not None and node is not None and rank // local != node:
        msg = (
            f"bind: rank {rank} runs on node {node} by $GROUP_RANK; with {local} consecutive ranks per node it would be on node "
            f"{rank // local}. Nodes need equal numbers of consecutive ranks; leave ranks_per_node unbound"
        )
        raise BindError(msg)
    return local


def _in_mesh(mesh: Any, dp_dims: Any, local: int) -> int:
    """How many data-parallel ranks lie on one node, among those that differ in nothing else.

    Ranks that get equal batches have to find the same number, so all of the mesh is looked at.
    """
    names, dims = tuple(mesh.mesh_dim_names), data_dims(mesh, dp_dims)
    axes = [names.index(name) for name in dims]
    others = [axis for axis in range(len(names)) if axis not in axes]
    ranks = np.asarray(mesh.mesh).transpose(*axes, *others)
    ranks_DO = ranks.reshape(int(np.prod(ranks.shape[: len(axes)])), -1)
    found = {_filled(column // local) for column in ranks_DO.T}
    each = found.pop()
    if each is None or found:
        msg = (
            f"bind: the mesh's data-parallel ranks {shown(ranks_DO[:, 0].tolist())} and their kin do not fill nodes of {local} "
            "ranks evenly, one after the other. Leave ranks_per_node unbound"
        )
        raise BindError(msg)
    return each


def _filled(nodes: NDArray[np.int64]) -> int | None:
    """How many neighbours are on each node; None if that differs, or a node comes twice."""
    present, counts = np.unique(nodes, return_counts=True)
    turns = np.count_nonzero(np.diff(nodes)) + 1
    return int(counts[0]) if turns == len(present) and len(set(counts.tolist())) == 1 else None


def _number(name: str) -> int | None:
    said = os.environ.get(name)
    if said is None:
        return None
    if not said.isdecimal():
        msg = f"bind: ${name} is {shown(said)}, which is no number. Unset it, or give ranks_per_node as a number"
        raise BindError(msg)
    return int(said)
