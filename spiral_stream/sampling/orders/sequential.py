"""The order of storage, or of a sort, the same in every pass."""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from spiral_stream.sampling.order import Arrangement, Order, Population, SortedRows, UInt64


@final
@dataclass(frozen=True, slots=True)
class Sequential(Order):
    """Row p stands at position p, in every epoch: as stored, or as the last `sort` before it says (a curriculum).

    `concat` reads streams like that, one after the other. A `mix` is refused, since it draws each stream at random.

    Examples:
        >>> photos.sample(order=spiral.Sequential()).order().rows([0, 1])["photo_id"].to_pylist()
        ['p00', 'p01']
    """

    follows_sort: ClassVar[bool] = True
    goes_in_turn: ClassVar[bool] = True
    needs_units: ClassVar[bool] = False

    def arrange(self, population: Population, pass_number: int) -> Arrangement:  # noqa: ARG002  every pass is the same
        if population.arranged is not None:
            return _Sorted(population.total, population.arranged)
        return _InStorageOrder(population.total)


@final
class _InStorageOrder(Arrangement):
    def __init__(self, size: int) -> None:
        self.size = size

    def rows(self, positions: UInt64) -> UInt64:
        return np.array(positions, dtype=np.uint64)

    def positions(self, rows: UInt64) -> UInt64:
        return np.array(rows, dtype=np.uint64)


@final
class _Sorted(Arrangement):
    def __init__(self, size: int, arranged: SortedRows) -> None:
        self.size, self._arranged = size, arranged

    def rows(self, positions: UInt64) -> UInt64:
        return self._arranged.rows(positions)

    def positions(self, rows: UInt64) -> UInt64:
        return self._arranged.ranks(rows)
