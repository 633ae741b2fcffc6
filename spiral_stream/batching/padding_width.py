"""How wide a batch of sequences is padded: to its longest sequence, rounded up to what its fields ask for.

The fields of one column share a width, so they share a multiple, and so do all columns where a formation cuts batches by
their width. Packed rows are as wide as `packing` says, and need no rule.
"""

from collections.abc import Iterable
from math import lcm

import numpy as np

from spiral_stream.batching.formation import Int64


def common_multiple(multiples: Iterable[int]) -> int:
    """Return what the width has to be a multiple of, given what each field asks for (``pad_to_multiple_of``)."""
    return lcm(*multiples)


def padded(longest: Int64, multiple: int) -> Int64:
    """Return the width T of batches from the length of their longest sample; any shape, int64. No batch is 0 wide."""
    widths: Int64 = np.maximum(-(-longest // multiple), 1) * multiple
    return widths
