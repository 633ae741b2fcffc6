"""The copies to a CUDA device: whole, in order, without a wait on the training thread, and nothing left behind.

These tests need PyTorch with CUDA and what `import spiral_stream` needs, but neither Lance, DuckDB nor PyAV.
"""

import gc
import random
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import pytest
import torch

from spiral_stream.adapters.cuda import CudaLink, side_stream
from spiral_stream.adapters.device_copies import CopiesAhead
from spiral_stream.adapters.pinned_memory import pinned_for
from spiral_stream.adapters.torch import TorchDelivery
from spiral_stream.errors import BindError
from spiral_stream.runtime.batch.pending_batch import Batch
from spiral_stream.runtime.delivery import Feed
from tests.fixtures.host_batches import Host

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

MILLISECOND = 1_500_000  # cycles of a device, about
BATCH = 1 << 14  # numbers


@pytest.fixture
def device() -> torch.device:
    assert torch.cuda.is_available(), "tests marked gpu need a CUDA device; leave out -m gpu where there is none"
    return torch.device("cuda", 0)


def host(count: int, device: torch.device, **options: Any) -> Host:
    return Host(count, size=options.pop("size", BATCH), allocate=pinned_for(device), **options)


def copied(feed: Feed, device: torch.device, ahead: int = 2) -> Generator[Any, None, None]:
    return CopiesAhead(CudaLink(device, frozenset({"x"}), {}).begin, ahead).run(feed)


@contextmanager
def nothing_left(device: torch.device) -> Iterator[None]:
    """Whatever happens inside, the device's memory is what it was before."""
    gc.collect()
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    yield
    gc.collect()
    torch.cuda.synchronize(device)
    assert torch.cuda.memory_allocated(device) == before


@contextmanager
def at_most(device: torch.device, nbytes: int) -> Iterator[None]:
    """The device has room for this many bytes."""
    torch.cuda.set_per_process_memory_fraction(nbytes / torch.cuda.get_device_properties(device).total_memory, device)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)


@contextmanager
def no_waiting() -> Iterator[None]:
    """PyTorch refuses every operation that makes this thread wait for the device."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("seed", range(4))
def test_no_batch_of_thousands_is_stale_or_torn_whoever_is_late(device: torch.device, seed: int) -> None:
    drawn, count = random.Random(seed), 2_500
    feed = host(count, device, slow=frozenset(drawn.sample(range(count), 300)))
    side, wrong = side_stream(device), torch.zeros((), dtype=torch.int64, device=device)
    with nothing_left(device):
        batches = copied(feed, device, ahead=drawn.choice([1, 2, 4]))
        for number, batch in enumerate(batches):
            late = drawn.random()
            if late < 0.1:  # the model is late
                torch.cuda._sleep(drawn.randrange(2 * MILLISECOND))
            elif late < 0.2:  # the copies are
                with torch.cuda.stream(side):
                    torch.cuda._sleep(drawn.randrange(2 * MILLISECOND))
            wrong += (batch["x"] != number).sum()  # looked at after the sleep
            del batch
        assert number == count - 1
        assert int(wrong) == 0
        del batches
    assert feed.slots.allocated <= 4 + 2


def test_the_training_thread_never_waits_for_the_device(device: torch.device) -> None:
    total = torch.zeros((), dtype=torch.int64, device=device)
    with no_waiting():
        for batch in copied(host(50, device), device):
            torch.cuda._sleep(MILLISECOND)
            total += batch["x"].sum()
    assert int(total) == BATCH * sum(range(50))


def test_memory_that_the_loop_drops_is_not_used_again_before_its_kernels_ran(device: torch.device) -> None:
    sums = []
    for batch in copied(host(40, device, size=1 << 20), device, ahead=1):
        torch.cuda._sleep(3 * MILLISECOND)
        sums.append(batch["x"].sum())
        del batch
    assert [int(each) for each in sums] == [number << 20 for number in range(40)]


@pytest.mark.parametrize("how", ["break", "error", "closed", "collected", "host"])
def test_a_pass_that_ends_early_leaves_nothing_and_tears_no_batch(device: torch.device, how: str) -> None:
    feed = host(30, device, fails_at=3 if how == "host" else None)
    with nothing_left(device):
        batches, had = copied(feed, device), []
        with torch.cuda.stream(side_stream(device)):
            torch.cuda._sleep(50 * MILLISECOND)  # the copies have not begun when the loop ends
        if how == "break":
            had = list(islice(batches, 3))
        elif how == "host":
            with pytest.raises(ZeroDivisionError):
                had.extend(batches)
        else:
            had = [next(batches) for _ in range(3)]
        if how == "error":
            with pytest.raises(ValueError, match="the model"):
                batches.throw(ValueError("the model"))
        batches.close()
        del batches
        held = [feed.slots.take((BATCH,), "int64", BATCH) for _ in range(feed.slots.allocated)]
        for values in held:
            values[:] = -7
        assert [batch["x"].unique().tolist() for batch in had] == [[0], [1], [2]]
        assert feed.slots.allocated == len(held)
        del had


def test_two_passes_at_once_do_not_mix(device: torch.device) -> None:
    first, second = copied(host(200, device), device), copied(host(200, device), device, ahead=4)
    wrong = torch.zeros((), dtype=torch.int64, device=device)
    for number, (one, other) in enumerate(zip(first, second, strict=True)):
        wrong += (one["x"] != number).sum() + (other["x"] != number).sum()
    assert int(wrong) == 0


def test_later_passes_take_no_more_memory_than_the_first(device: torch.device) -> None:
    def reserved() -> int:
        for batch in copied(host(20, device, size=1 << 20), device):
            batch["x"].sum()
        torch.cuda.synchronize(device)
        return torch.cuda.memory_reserved(device)

    first = reserved()
    assert [reserved() for _ in range(8)] == [first] * 8


def test_a_full_device_names_the_field_and_the_way_out_and_loses_nothing(device: torch.device) -> None:
    class Growing(Host):
        def get(self) -> Batch | None:
            self._size = 1 << 27 if self.given == 4 else BATCH  # 1 GiB
            return super().get()

    with nothing_left(device), at_most(device, 1 << 29):
        batches = copied(Growing(9, size=BATCH, allocate=pinned_for(device)), device)
        had = list(islice(batches, 4))
        with pytest.raises(torch.OutOfMemoryError) as full:
            next(batches)
        assert "field 'x'" in str(full.value.__notes__)
        assert "Lower prefetch" in str(full.value.__notes__)
        assert [batch["x"].unique().tolist() for batch in had] == [[0], [1], [2], [3]]
        del batches, had, full
    assert [int(batch["x"][0]) for batch in copied(host(3, device), device)] == [0, 1, 2]


def test_batches_lie_in_page_locked_memory(device: torch.device) -> None:
    feed = host(3, device)
    for _ in range(3):
        batch = feed.get()
        assert batch is not None
        assert torch.from_numpy(batch.fields["x"]).is_pinned()
    assert pinned_for(device) is pinned_for(torch.device("cuda", 0))


def test_a_device_that_is_not_there_is_refused(device: torch.device) -> None:
    there = torch.cuda.device_count()
    with pytest.raises(BindError, match=rf"cuda:{there}' and this machine has {there} CUDA device"):
        TorchDelivery().need({"x": f"cuda:{there}"})
    assert TorchDelivery().auto() == "cuda"
