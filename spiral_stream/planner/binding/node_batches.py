"""Which batch of an epoch each position belongs to, and which node reads it: arithmetic, without forming a batch.

Positions are laid out as batches take them from the lanes. Of a formation, windows stand for batches. The end of an epoch,
where lanes have ended and others go on, is left out.
"""

import os
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.batching.lanes import Lanes
from spiral_stream.planner.binding.bindings import Bound
from spiral_stream.planner.stages import Stages
from spiral_stream.sampling.nodes import Nodes

Int64 = NDArray[np.int64]


@final
@dataclass(frozen=True, slots=True)
class Dealing:
    """How an epoch is dealt to nodes.

    Args:
        lanes: of the epoch.
        nodes: those of the run.
        by_node: whether nodes have lanes of their own; else ranks take turns.
    """

    lanes: int
    nodes: Nodes
    by_node: bool

    def dealt(
        self, stages: Stages, bound: Bound, total: int, positions: Int64, begun: int = 0
    ) -> tuple[Int64, Int64, Int64]:
        """Return where positions of an epoch go.

        Args:
            stages: of the stream.
            bound: of the run.
            total: positions that the epoch has.
            positions: shape [P].
            begun: the batch from which on ranks take turns.

        Returns:
            The batch of each position, its place in the batch, and the node that reads it; shape [P] each.
        """
        size = stages.batches.batch_size if stages.formation is None else stages.formation.window_size
        begins = Lanes(total, self.lanes).begins().astype(np.int64)
        lane = np.searchsorted(begins, positions, side="right") - 1
        within = positions - begins[lane]
        batch = within // size * self.lanes + lane
        member = (batch - begun) // bound.merge % self.nodes.world_size
        whose = member % self.nodes.count if self.by_node else member // self.nodes.ranks_per_node
        return batch, within % size, whose


def nodes_of(bound: Bound) -> Nodes:
    """Return the nodes of a run: as bound, or as torchrun says; each rank is one otherwise."""
    said = os.environ.get("LOCAL_WORLD_SIZE", "1")
    local = bound.ranks_per_node or (int(said) if said.isdecimal() else 1)
    return Nodes(bound.world_size, local if local and bound.world_size % local == 0 else 1)
