"""Decoded columns that were used last, bounded in bytes."""

import threading
from collections import OrderedDict
from typing import final

import pyarrow as pa


@final
class Recent:
    """Decoded columns by (file, row group, name), least recently used out first; bounded in bytes."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._held_bytes = 0
        self._columns: OrderedDict[tuple[int, int, str], pa.ChunkedArray] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: tuple[int, int, str]) -> pa.ChunkedArray | None:
        with self._lock:
            found = self._columns.get(key)
            if found is not None:
                self._columns.move_to_end(key)
            return found

    def put(self, key: tuple[int, int, str], column: pa.ChunkedArray) -> None:
        with self._lock:
            if key in self._columns:
                return
            self._columns[key] = column
            self._held_bytes += column.nbytes
            while self._held_bytes > self._limit_bytes and len(self._columns) > 1:
                _, oldest = self._columns.popitem(last=False)
                self._held_bytes -= oldest.nbytes

    def clear(self) -> None:
        with self._lock:
            self._columns.clear()
            self._held_bytes = 0
