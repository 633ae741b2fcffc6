"""Batch slots: memory that batches are written into, and that is used again.

A fresh array of 38 MB costs page faults with every batch: 46 ms in new shared memory, 4 ms in new pages, 1.6 ms in a slot
that is used again. A slot returns to the pool only when no array, slice or tensor of its batch is alive: the base of these
arrays is a small `_slots.Lease`, which returns the memory when it dies (docs/decisions/0034). Pinned memory comes from
`adapters.cuda`.
"""

import threading
from collections.abc import Callable
from math import prod
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.host_dtypes import host_dtype
from spiral_stream.runtime import _slots

Allocate = Callable[[int], NDArray[np.uint8]]
_Known = tuple[np.dtype[Any], int, list[NDArray[np.uint8]]]  # dtype, bytes of a slot, and the free ones of that size


LINE: Final = 64  # bytes of a cache line; in an aligned slot, the pixel kernel writes whole lines (10 % faster)


def pageable(nbytes: int) -> NDArray[np.uint8]:
    """Allocate ordinary memory that begins at a cache line."""
    memory = np.empty(nbytes + LINE, dtype=np.uint8)
    start = -memory.ctypes.data % LINE
    return memory[start : start + nbytes]


@final
class Slots:
    """The slots of one stream, by size. Thread-safe.

    Args:
        allocate: returns new memory of a number of bytes.
    """

    def __init__(self, allocate: Allocate = pageable) -> None:
        self.allocated = 0  # slots made so far; a steady loop makes no more
        self.allocate = allocate
        self._free: dict[int, list[NDArray[np.uint8]]] = {}
        self._known: dict[tuple[tuple[int, ...], str, int], _Known] = {}  # by the shape of a row, dtype and rows
        self._lock = threading.Lock()

    def take(self, shape: tuple[int, ...], dtype: str, rows: int) -> NDArray[Any]:
        """Return an array in a free slot, or in a new one if none is free.

        Args:
            shape: [B, ...], of the array.
            dtype: its dtype, by the name that a field has for it.
            rows: rows that the slot has room for, at least B.
        """
        known = self._known.get((shape[1:], dtype, rows))
        kind, nbytes, free = self._learned(shape[1:], dtype, rows) if known is None else known
        assert shape[0] <= rows, (shape, rows)
        try:
            memory = free.pop()  # of several threads one gets it
        except IndexError:
            memory = self._new(nbytes)
        lease: Any = _slots.Lease(memory, free)
        return np.ndarray(shape, kind, lease)  # 0.4 us, with what its end takes

    def _learned(self, shape: tuple[int, ...], dtype: str, rows: int) -> _Known:
        kind = host_dtype(dtype)
        nbytes = rows * prod(shape) * kind.itemsize
        with self._lock:
            free = self._free.setdefault(nbytes, [])
            self._known[shape, dtype, rows] = kind, nbytes, free
        return kind, nbytes, free

    def _new(self, nbytes: int) -> NDArray[np.uint8]:
        with self._lock:
            self.allocated += 1
        return self.allocate(nbytes)
