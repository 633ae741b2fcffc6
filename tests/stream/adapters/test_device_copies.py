"""Copies ahead of the loop, by a device that takes its time: order, errors in their place, and no host memory given back early.

The device here is a thread that copies for real, from the slots that batches are written into, some time after it was told
to. What a CUDA device does is tested in tests/gpu.
"""

import queue
import threading
import time
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spiral_stream.adapters.device_copies import CopiesAhead, Copy
from spiral_stream.runtime.batch.pending_batch import Batch
from tests.fixtures.host_batches import SIZE, Host

WAIT_S = 30.0


class LateCopy(Copy):
    def __init__(self) -> None:
        self.copied = threading.Event()
        self.values = np.full(SIZE, -1)

    def done(self) -> bool:
        return self.copied.is_set()

    def wait(self) -> None:
        assert self.copied.wait(WAIT_S)

    def hand_over(self) -> Any:
        return self.values  # the loop goes on while the device copies; it looks at the values later


class Device:
    """Copies in the order of the orders it gets, each ``delays_ms`` later; half of a batch at a time."""

    def __init__(self, delays_ms: list[int], *, full_at: int | None = None) -> None:
        self._delays_ms, self._full_at = delays_ms, full_at
        self._orders: queue.Queue[tuple[int, int, LateCopy] | None] = queue.Queue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self.begun = 0

    def begin(self, batch: Batch) -> Copy:
        number = batch.numbers.start
        if number == self._full_at:
            raise MemoryError(number)
        copy = LateCopy()
        address = batch.fields["x"].ctypes.data  # as a device: it does not keep the batch alive
        self._orders.put((number, address, copy))
        self.begun += 1
        return copy

    def _run(self) -> None:
        while (order := self._orders.get()) is not None:
            number, address, copy = order
            source = np.ctypeslib.as_array((np.ctypeslib.ctypes.c_int64 * SIZE).from_address(address))
            copy.values[: SIZE // 2] = source[: SIZE // 2]
            time.sleep(self._delays_ms[number % len(self._delays_ms)] / 1_000)
            copy.values[SIZE // 2 :] = source[SIZE // 2 :]
            copy.copied.set()

    def close(self) -> None:
        self._orders.put(None)
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()


delays = st.lists(st.sampled_from([0, 0, 1, 3]), min_size=1, max_size=5)


@given(st.integers(1, 4), st.integers(0, 12), delays, st.frozensets(st.integers(0, 11)), st.integers(1, 13))
def test_batches_arrive_whole_and_in_order_and_memory_is_given_back_after_the_copy(
    ahead: int, count: int, delays_ms: list[int], slow: frozenset[int], most: int
) -> None:
    device, host = Device(delays_ms), Host(count, slow=slow)
    batches = CopiesAhead(device.begin, ahead).run(host)
    had = list(islice(batches, most))
    batches.close()
    made = host.slots.allocated
    freed = [host.slots.take((SIZE,), "int64", SIZE) for _ in range(made)]
    for values in freed:
        values[:] = -7  # somebody else's
    device.close()
    assert [np.unique(values).tolist() for values in had] == [[number] for number in range(min(count, most))]
    assert host.slots.allocated == made <= ahead + 2  # all had been given back
    assert host.given <= min(count, most) + ahead


@given(st.integers(1, 4), st.integers(0, 6), delays, st.booleans())
def test_an_error_comes_after_the_batches_before_it(ahead: int, at: int, delays_ms: list[int], on_device: bool) -> None:
    device = Device(delays_ms, full_at=at if on_device else None)
    host = Host(9, fails_at=None if on_device else at)
    batches = CopiesAhead(device.begin, ahead).run(host)
    had = list(islice(batches, at))
    with pytest.raises(MemoryError if on_device else ZeroDivisionError, match=str(at)):
        next(batches)
    device.close()
    assert [np.unique(values).tolist() for values in had] == [[number] for number in range(at)]


@pytest.mark.parametrize("ahead", [1, 3])
def test_the_loop_waits_for_the_host_only_if_no_batch_lies_on_the_device(ahead: int) -> None:
    device, host = Device([0]), Host(8, slow=frozenset({2}))
    batches = CopiesAhead(device.begin, ahead).run(host)
    assert len(list(islice(batches, 2))) == 2
    assert host.waited_for == []  # batch 2 is slow, and 0 and 1 were there
    assert next(batches) is not None
    assert host.waited_for == [2]
    batches.close()
    device.close()


def test_copies_that_end_late_hold_a_bounded_number_of_batches() -> None:
    gate = threading.Event()

    class Shut(LateCopy):
        def done(self) -> bool:
            return gate.is_set()

        def wait(self) -> None:
            waited.append(host.given)
            gate.set()

        def hand_over(self) -> Any:
            return host.given  # as CUDA does: the loop goes on while the device copies

    waited: list[int] = []
    host = Host(20)
    batches = CopiesAhead(lambda _: Shut(), 2).run(host)
    for _ in range(3):
        next(batches)
    assert waited[0] == 3  # two were under way and a third one had begun: the fourth waits for the first
    assert host.slots.allocated == 3
    batches.close()
