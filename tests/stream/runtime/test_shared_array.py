"""Processes share a few numbers, where /dev/shm can be written and where it cannot."""

import multiprocessing
from multiprocessing import heap
from typing import Any

import pytest

from spiral_stream.runtime.shared_array import shared_array


def refuse(_: object, size: int) -> str:
    raise OSError(30, f"no room for {size}")


def add(array: Any, at: int, value: int) -> None:
    array[at] += value


@pytest.mark.crossed
@pytest.mark.parametrize("is_writable", [True, False])
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_spawned_process_sees_and_changes_them(
    method: str, is_writable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_writable:
        monkeypatch.setattr("multiprocessing.heap.BufferWrapper._heap", heap.Heap())
        monkeypatch.setattr("multiprocessing.heap.Arena._choose_dir", refuse)
    array = shared_array(3)
    array[1] = 40
    process = multiprocessing.get_context(method).Process(target=add, args=(array, 1, 2))
    process.start()
    process.join(100)

    assert process.exitcode == 0
    assert [array[0], array[1], array[2]] == [0, 42, 0]
