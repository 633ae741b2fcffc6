"""Values that a loop measured on a CUDA device: reduced there, fetched behind its back, whole and in their order.

These tests need PyTorch with CUDA and what `import spiral_stream` needs, but neither Lance, DuckDB nor PyAV.
"""

import random
from typing import Any

import numpy as np
import pytest
import torch

from spiral_stream.adapters.torch import TorchDelivery
from spiral_stream.runtime.batch.keys import TokenSpans
from spiral_stream.runtime.measured import FetchedValue, ValueForm

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

MILLISECOND = 1_500_000  # cycles of a device, about
ROUNDS = 2_000


@pytest.fixture
def device() -> torch.device:
    assert torch.cuda.is_available(), "tests marked gpu need a CUDA device; leave out -m gpu where there is none"
    return torch.device("cuda", 0)


def fetched(value: torch.Tensor, form: ValueForm, mask: Any = None) -> FetchedValue:
    found = TorchDelivery().fetched(value, lambda _: form, mask)
    assert found is not None
    return found


def spans(draw: random.Random, rows: int, width: int) -> TokenSpans:
    """Two pieces in each row, with room between them."""
    lengths = np.array([draw.randint(0, width // 2) for _ in range(2 * rows)])
    starts = np.tile([0, width // 2], rows)
    return TokenSpans(width, np.repeat(np.arange(rows), 2), starts, lengths)


def test_sums_of_a_shard_are_taken_as_they_are_and_their_tokens_counted(device: torch.device) -> None:
    where, rows = spans(random.Random(3), 4, 16), np.arange(8)[::-1].copy()
    sums, mask = torch.rand(8), torch.rand(4, 16) < 0.5
    form = ValueForm(rows, where, summed=True)
    for on in (None, mask, mask.to(device)):
        far, near = fetched(sums.to(device), form, on), fetched(sums, form, None if on is None else mask)
        far.wait()
        for a, b in zip(far.take(), near.take(), strict=True):
            np.testing.assert_array_equal(a, b)


def test_sums_are_those_of_the_host_under_random_delays(device: torch.device) -> None:
    draw, late = random.Random(5), []
    for number in range(ROUNDS):
        where = spans(draw, 8, 32)
        host = torch.full((8, 32), float("nan"))
        for line, start, length in zip(where.lines, where.starts, where.lengths, strict=True):
            host[line, start : start + length] = number + torch.rand(int(length))
        with torch.cuda.device(device):
            if draw.random() < 0.05:
                torch.cuda._sleep(draw.randrange(3 * MILLISECOND))
            late.append((fetched(host.to(device), ValueForm(tokens=where)), fetched(host, ValueForm(tokens=where))))
        if draw.random() < 0.2:
            torch.empty(1 << 20, device=device).fill_(7.0)  # memory that was given back too early would hold this
    for far, near in late:
        far.wait()
        assert far.done()
        np.testing.assert_allclose(far.take()[0], near.take()[0], rtol=1e-12)


def test_the_loop_does_not_wait(device: torch.device) -> None:
    loss = torch.arange(64, dtype=torch.bfloat16, device=device).requires_grad_()
    fetched(loss, ValueForm()).wait()  # makes the side stream and the pinned memory
    torch.cuda.set_sync_debug_mode("error")
    try:
        torch.cuda._sleep(200 * MILLISECOND)
        found = fetched(loss * 2, ValueForm())
        assert not found.done()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    found.wait()
    assert found.take()[0].tolist() == [2.0 * each for each in range(64)]
