"""The order of storage, the same in every pass."""

from dataclasses import dataclass
from typing import final

import numpy as np

from spiral_stream.sampling.order import Arrangement, Order, Population, UInt64


@final
@dataclass(frozen=True, slots=True)
class Sequential(Order):
    """Row p stands at position p, in every epoch."""

    @property
    def needs_units(self) -> bool:
        return False

    def arrange(self, population: Population, pass_number: int) -> Arrangement:  # noqa: ARG002  every pass is the same
        return _InStorageOrder(population.total)


@final
class _InStorageOrder(Arrangement):
    def __init__(self, size: int) -> None:
        self.size = size

    def rows(self, positions: UInt64) -> UInt64:
        return np.array(positions, dtype=np.uint64)

    def positions(self, rows: UInt64) -> UInt64:
        return np.array(rows, dtype=np.uint64)
