"""Batch slots: memory that is written in place and used again.

A fresh 38 MB array costs page faults at every batch (46 ms for new shared memory,
4 ms for new pages, 1.6 ms for a slot used again). A slot goes back
to the pool only when no array, slice or tensor of its batch is alive (docs/decisions/0034):
the arrays' base is a small `_Lease` that returns the memory when it dies.
"""

import threading
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

Allocate = Callable[[int], NDArray[np.uint8]]


LINE: Final = 64  # bytes of a cache line; from an aligned slot on, the pixel kernel writes whole lines (10 % faster)


def pageable(nbytes: int) -> NDArray[np.uint8]:
    """Ordinary memory that begins at a cache line."""
    memory = np.empty(nbytes + LINE, dtype=np.uint8)
    start = -memory.ctypes.data % LINE
    return memory[start : start + nbytes]


class _Lease:
    """Owns one use of a slot; NumPy arrays keep it alive through ``base``."""

    __slots__ = ("__array_interface__", "_free", "memory")

    def __init__(
        self, memory: NDArray[np.uint8], shape: tuple[int, ...], dtype: np.dtype[Any], free: list[NDArray[np.uint8]]
    ) -> None:
        self.memory = memory
        self._free = free
        self.__array_interface__ = {
            "version": 3,
            "shape": shape,
            "typestr": dtype.str,
            "data": (memory.ctypes.data, False),
        }

    def __del__(self) -> None:
        self._free.append(self.memory)  # 3 us; weakref.finalize, which keeps a registry, took 20


@final
class Slots:
    """The slots of one stream, by size. Thread-safe."""

    def __init__(self, allocate: Allocate = pageable) -> None:
        self.allocated = 0  # slots ever made; steady state adds none
        self._allocate = allocate
        self._free: dict[int, list[NDArray[np.uint8]]] = {}
        self._lock = threading.Lock()

    def take(self, shape: Sequence[int], dtype: str, rows: int) -> NDArray[Any]:
        """An array in a free slot, or in a new one if none is free.

        Args:
            shape: [B, ...] of the array.
            dtype: NumPy name.
            rows: B of a full batch, which the slot has room for.
        """
        kind = np.dtype(dtype)
        assert shape[0] <= rows, (shape, rows)
        nbytes = rows * prod(shape[1:]) * kind.itemsize
        with self._lock:
            free = self._free.setdefault(nbytes, [])
            memory = free.pop() if free else None
            self.allocated += memory is None
        if memory is None:
            memory = self._allocate(nbytes)
        return np.asarray(_Lease(memory, tuple(shape), kind, free))
