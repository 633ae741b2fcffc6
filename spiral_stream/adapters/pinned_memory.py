"""Pinned memory: whether the memory of batches is page-locked, and how it is allocated.

Batches lie in pinned memory if some of their fields go to a CUDA device, which then copies them without the CPU, and in
ordinary memory otherwise. `runtime.buffers` keeps the memory and uses it again. Under a Trainer its setting
decides (`trainer`).
"""

import numpy as np
from numpy.typing import NDArray

from spiral_stream.runtime.buffers import Allocate, pageable


def allocator(*, to_cuda: bool) -> Allocate:
    """Return what allocates the memory of batches.

    Args:
        to_cuda: whether fields go to a CUDA device.
    """
    return pinned if to_cuda else pageable


def pinned(nbytes: int) -> NDArray[np.uint8]:
    """Allocate page-locked memory."""
    import torch

    array: NDArray[np.uint8] = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True).numpy()
    return array
