"""Which memory batches lie in."""

import pytest
import torch

from spiral_stream.adapters.pinned_memory import allocator, pinned
from spiral_stream.runtime.buffers import pageable


def test_only_batches_that_go_to_a_cuda_device_are_pinned() -> None:
    assert allocator(to_cuda=True) is pinned
    assert allocator(to_cuda=False) is pageable


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no memory can be pinned without a CUDA device")
def test_pinned_memory_is_page_locked() -> None:
    memory = pinned(4096)

    assert (memory.nbytes, torch.from_numpy(memory).is_pinned()) == (4096, True)
