"""Ranks of a node: bound, or found in torchrun's variables and the mesh; refused where lanes cannot be dealt to nodes."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from spiral_stream import DataParallel, RuntimeParam
from spiral_stream.errors import BindError, PlanError
from tests.stream.planner.binding.test_bindings import SAMPLE, settled

LANES = replace(SAMPLE, assignment=DataParallel(RuntimeParam("rank"), RuntimeParam("world_size"), lanes=4))


@pytest.fixture
def torchrun(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Rank 5 of two nodes of four."""
    for name, value in {"RANK": 5, "WORLD_SIZE": 8, "LOCAL_WORLD_SIZE": 4, "GROUP_RANK": 1}.items():
        monkeypatch.setenv(name, str(value))
    return monkeypatch


class Mesh:
    """What is asked of a `DeviceMesh`."""

    def __init__(self, names: tuple[str, ...], ranks: Any, rank: int) -> None:
        self.mesh_dim_names, self.mesh = names, np.asarray(ranks)
        self._at = tuple(int(each[0]) for each in np.nonzero(self.mesh == rank))

    def __getitem__(self, name: Any) -> Any:
        wanted = (name,) if isinstance(name, str) else name
        kept = tuple(
            slice(None) if each in wanted else at for each, at in zip(self.mesh_dim_names, self._at, strict=True)
        )
        return Mesh(wanted, self.mesh[kept], int(self.mesh[self._at]))

    def size(self) -> int:
        return int(self.mesh.size)

    def get_local_rank(self) -> int:
        return self._at[0]


def test_a_rank_has_its_own_place_where_nothing_is_bound() -> None:
    assert settled(LANES, rank=5, world_size=8).turn == 5
    assert settled(LANES, rank=5, world_size=8, ranks_per_node=4).turn == 3


def test_auto_takes_what_torchrun_says(torchrun: pytest.MonkeyPatch) -> None:
    assert settled(LANES, ranks_per_node="auto").ranks_per_node == 4
    assert settled(LANES, ranks_per_node=2).turn == 6  # the second rank of node 2 of 4
    torchrun.setenv("GROUP_RANK", "0")
    with pytest.raises(BindError, match=r"rank 5 runs on node 0 .* leave ranks_per_node unbound"):
        settled(LANES, ranks_per_node="auto")
    with pytest.raises(BindError, match=r"data_parallel_world_size=4, but \$WORLD_SIZE is 8. .*or bind\(mesh"):
        settled(LANES, rank=1, world_size=4, ranks_per_node="auto")
    torchrun.delenv("LOCAL_WORLD_SIZE")
    with pytest.raises(BindError, match=r"LOCAL_WORLD_SIZE is not set; torchrun sets it. Give the number"):
        settled(LANES, ranks_per_node="auto")


@pytest.mark.parametrize(
    ("names", "ranks", "each"),
    [
        (("dp", "tp"), np.arange(8).reshape(4, 2), 2),
        (("pp", "dp_shard"), np.arange(8).reshape(2, 4), 4),
        (("dp_replicate", "dp_shard", "tp"), np.arange(8).reshape(2, 2, 2), 2),
        (("dp", "tp"), np.arange(8).reshape(2, 4), 1),
        (("tp", "dp"), np.arange(8).reshape(4, 2), 2),
    ],
)
def test_in_a_mesh_the_data_parallel_ranks_of_a_node_count(
    torchrun: pytest.MonkeyPatch, names: tuple[str, ...], ranks: Any, each: int
) -> None:
    found = settled(LANES, mesh=Mesh(names, ranks, 5), ranks_per_node="auto")

    assert found.ranks_per_node == each


@pytest.mark.parametrize("ranks", [np.arange(8), np.arange(12).reshape(3, 4)])
def test_a_mesh_that_does_not_fill_nodes_evenly_is_refused(torchrun: pytest.MonkeyPatch, ranks: Any) -> None:
    torchrun.setenv("LOCAL_WORLD_SIZE", "3" if ranks.ndim == 1 else "6")  # stage 0 is on one node, stage 1 on two
    with pytest.raises(BindError, match=r"do not fill nodes of [36] ranks evenly"):
        settled(LANES, mesh=Mesh(("pp", "dp")[2 - ranks.ndim :], ranks, 5), ranks_per_node="auto")


def test_lanes_that_cannot_be_dealt_to_nodes_are_refused_with_a_number_that_can() -> None:
    with pytest.raises(BindError, match=r"4 lanes cannot be dealt to 3 nodes .* lanes=3\) or a multiple, or leave"):
        settled(LANES, rank=0, world_size=6, ranks_per_node=2)
    with pytest.raises(BindError, match=r"to 2 nodes with merge=4 .* lanes=8\) or a multiple"):
        settled(LANES, rank=0, world_size=4, ranks_per_node=2, merge=4)
    with pytest.raises(BindError, match="8 ranks do not fill nodes of ranks_per_node=3"):
        settled(LANES, rank=0, world_size=8, ranks_per_node=3)
    for value in (0, True, 1.5, "some"):
        with pytest.raises(BindError, match='how many ranks a node has, from 1 up, or "auto"'):
            settled(LANES, ranks_per_node=value)
    with pytest.raises(PlanError, match=r"may not depend on where it runs.*lanes=12, and bind\(ranks_per_node=8\)"):
        DataParallel(0, 1, lanes="nodes")  # type: ignore[arg-type]  # as some would write it
    assert settled(SAMPLE, rank=3, world_size=8, ranks_per_node=8).turn == 3  # one node has all lanes
