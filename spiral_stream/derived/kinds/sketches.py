"""How many different values there are, and where their quantiles lie: summaries of shards that merge.

Different values: HyperLogLog (Flajolet et al. 2007) with 2,048 registers of a 64-bit hash, standard error 2.3 %, and
linear counting where few registers are used. A shard with few values keeps their hashes instead.

Quantiles: each shard keeps 65 of its sorted values at equal steps. They are merged once, weighted by the rows they stand
for, so a rank is wrong by at most 1/64 of the rows, however they are spread over shards.
"""

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.derived import _runs

UInt8 = NDArray[np.uint8]
UInt64 = NDArray[np.uint64]

BITS: Final = 11
REGISTERS: Final = 1 << BITS
FEW: Final = REGISTERS // 8  # hashes of as many values take no more bytes than registers
STEPS: Final = 64
_ALPHA: Final = 0.7213 / (1 + 1.079 / REGISTERS)


def registers_of(hashes: UInt64, into: UInt8 | None = None) -> UInt8:
    """Return the registers of some hashes.

    Args:
        hashes: shape [N], evenly spread.
        into: registers of others, which become those of both.
    """
    registers = np.zeros(REGISTERS, np.uint8) if into is None else into
    _runs.registers(np.ascontiguousarray(hashes), registers)
    return registers


def estimated_distinct(registers: UInt8) -> int:
    """Return about how many different values were hashed."""
    unused = int((registers == 0).sum())
    found = _ALPHA * REGISTERS**2 / float(np.exp2(-registers.astype(np.float64)).sum())
    if found <= 2.5 * REGISTERS and unused:
        found = REGISTERS * math.log(REGISTERS / unused)
    return round(found)


def places_of_points(rows: int) -> NDArray[np.int64]:
    """Return which of some sorted values are kept: the first and the last, and those at equal steps between."""
    if rows <= STEPS + 1:
        return np.arange(rows)
    return np.arange(STEPS + 1, dtype=np.int64) * (rows - 1) // STEPS


def quantile_places(order: NDArray[np.int64], weights: NDArray[np.float64], rows: int) -> NDArray[np.int64]:
    """Return which points of all shards are nearest to the minimum, the quartiles and the maximum.

    Args:
        order: shape [P]: the points of all shards, sorted by their value.
        weights: shape [P]: how many values each point stands for.
        rows: how many values there are.

    Returns:
        shape [5]: places in the points as they were given, end to end.
    """
    sorted_weights = weights[order]
    middle = np.cumsum(sorted_weights) - sorted_weights / 2
    at = np.searchsorted(middle, np.array([0.25, 0.5, 0.75]) * rows)
    inner = np.minimum(at, len(order) - 1)
    found: NDArray[np.int64] = order[np.concatenate([[0], inner, [len(order) - 1]])]
    return found
