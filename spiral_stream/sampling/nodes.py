"""Which batch of a step a rank takes, so that the ranks of a node read the same lanes.

A step takes one batch per rank, and batch g is of lane ``g % lanes`` until a lane ends. The ranks of a node are
neighbours, so by themselves they take neighbouring lanes. With places dealt to the nodes in turn, node n of N gets the
lanes l with ``l % N == n`` and no others. The batches of a step, and their order, are the same either way: only who
gets which differs.
"""

from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True, slots=True)
class Nodes:
    """The nodes of a run: ranks ``n * ranks_per_node`` and up are those of node n.

    Args:
        world_size: all ranks; a multiple of ``ranks_per_node``.
        ranks_per_node: of each node.
    """

    world_size: int
    ranks_per_node: int

    @property
    def count(self) -> int:
        """How many nodes there are."""
        return self.world_size // self.ranks_per_node

    def turn_of(self, rank: int) -> int:
        """Return the place of a rank in each step."""
        node, local = divmod(rank, self.ranks_per_node)
        return local * self.count + node

    def rank_at(self, turn: int) -> int:
        """Return the rank that has a place: the inverse of `place_of`."""
        local, node = divmod(turn, self.count)
        return node * self.ranks_per_node + local
