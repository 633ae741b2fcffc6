"""Batch slots: memory that batches are written into, and that is used again.

A fresh array of 38 MB costs page faults with every batch: 46 ms in new shared memory, 4 ms in new pages, 1.6 ms in a slot
that is used again. A slot returns to the pool only when no array, slice or tensor of its batch is alive: the base of these
arrays is a small `_Lease`, which returns the memory when it dies (docs/decisions/0034). Pinned memory comes from
`adapters.pinned_memory`.
"""

import threading
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

Allocate = Callable[[int], NDArray[np.uint8]]


LINE: Final = 64  # bytes of a cache line; in an aligned slot, the pixel kernel writes whole lines (10 % faster)


def pageable(nbytes: int) -> NDArray[np.uint8]:
    """Allocate ordinary memory that begins at a cache line."""
    memory = np.empty(nbytes + LINE, dtype=np.uint8)
    start = -memory.ctypes.data % LINE
    return memory[start : start + nbytes]


class _Lease:
    """One use of a slot; NumPy arrays keep it alive through their ``base``."""

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
    """The slots of one stream, by size. Thread-safe.

    Args:
        allocate: returns new memory of a number of bytes.
    """

    def __init__(self, allocate: Allocate = pageable) -> None:
        self.allocated = 0  # slots made so far; a steady loop makes no more
        self._allocate = allocate
        self._free: dict[int, list[NDArray[np.uint8]]] = {}
        self._lock = threading.Lock()

    def take(self, shape: Sequence[int], dtype: str, rows: int) -> NDArray[Any]:
        """Return an array in a free slot, or in a new one if none is free.

        Args:
            shape: [B, ...], of the array.
            dtype: its dtype, by NumPy's name.
            rows: rows that the slot has room for, at least B.
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
