"""When batches lie in pinned (page-locked) memory, and how it is allocated.

Fields for a CUDA device do: the device reads pinned memory without the CPU, while the loop works. Everything else lies in
pageable memory. Slots are used again (`runtime.slots`), so a stream allocates a few batches once.
"""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from spiral_stream.extras import need
from spiral_stream.runtime.slots import Allocate, pageable

need("torch", "spiral_stream.adapters.pinned_memory")
import torch  # noqa: E402


def memory_for(device: torch.device | None) -> Allocate:
    """Return what allocates memory for batches that go to a CUDA device; None for those that stay on the host."""
    return pageable if device is None else pinned_for(device)


@cache
def pinned_for(device: torch.device) -> Allocate:
    """Return what allocates page-locked memory, which the device reads without the CPU.

    PyTorch rounds its size up to a power of two.
    """

    def allocate(nbytes: int) -> NDArray[np.uint8]:
        with torch.cuda.device(device):  # else a thread of ours opens the first device, for half a gigabyte of it
            memory: NDArray[np.uint8] = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True).numpy()
        return memory

    return allocate
