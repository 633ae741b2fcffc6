"""A file of the node cache, as one process has it open: locked, and verified block by block where it is asked for.

What a process has verified once it trusts until it ends, as long as the file is the one that it verified: its sums carry
the moment of their birth. A block that is not what its sum says is taken out and fetched again, once per process.
"""

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.errors import DamageError
from spiral_stream.integrity.locks import unlock
from spiral_stream.storage.node_cache.node_files import BLOCK, NodeKey, Sums, data_file, opened_data, sums_of

_AT_ONCE: Final = 16  # blocks that are read and summed together


@final
class KnownBlocks:
    """What a process knows of a file, also while it does not hold it."""

    __slots__ = ("birth", "damaged", "verified")

    def __init__(self, blocks: int) -> None:
        self.birth = 0
        self.verified = bytearray(blocks)  # 1 where the block was compared with its sum
        self.damaged: set[int] = set()


@final
class NodeFile:
    """A file that this process holds, until it is released as often as it was asked for."""

    def __init__(
        self, root: Path, key: NodeKey, known: KnownBlocks, deadline_s: float, over: Callable[["NodeFile"], None]
    ) -> None:
        """Share it; it is made if it is not there.

        Raises:
            CacheError: somebody is alone with it for longer than the deadline.
            OSError: it cannot be made.
        """
        self.key, self.path = key, data_file(root, key)
        self.known, self._over = known, over
        self.grew = False  # whether anything was fetched
        self._pid, self._times, self._lock = (
            os.getpid(),
            1,
            threading.RLock(),
        )  # the collector may release it in the middle of anything
        self.handle = opened_data(self.path, key.size, deadline_s)
        try:
            with self.sums() as sums:
                if known.birth != sums.birth:
                    known.birth, known.verified = sums.birth, bytearray(key.blocks)
        except OSError:
            os.close(self.handle)
            raise

    def sums(self) -> Sums:
        """Return its sums, opened."""
        return Sums(self.path, self.key)

    def retained(self) -> bool:
        """Hold it once more, unless it has been given up."""
        with self._lock:
            self._times += self._times > 0
            return self._times > 0

    def release(self) -> None:
        """Hold it once less."""
        with self._lock:
            self._times -= 1
            if self._times:
                return
            handle, self.handle = self.handle, -1
        unlock(handle, self._pid)
        self._over(self)

    def stamp(self, asked_ns: int) -> None:
        """Note when it was asked for, since what goes for others follows from the order of asks, and not from when bytes came."""
        with suppress(OSError):
            os.utime(self.handle, ns=(asked_ns, asked_ns))

    def mend_size(self) -> None:
        """Give it its size back, where it was cut; what was lost is found by its sums."""
        if os.fstat(self.handle).st_size != self.key.size:
            self.known.verified = bytearray(self.key.blocks)
            os.ftruncate(self.handle, self.key.size)

    def write(self, offset: int, data: memoryview) -> None:
        """Write bytes, all of them."""
        self.grew = True
        while len(data):
            done = os.pwrite(self.handle, data, offset)
            offset, data = offset + done, data[done:]

    def missing(self, blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Verify those blocks that are there and were not verified yet; return those that have to be fetched.

        Raises:
            DamageError: a block was fetched again, and is not what was written once more.
        """
        verified = np.frombuffer(self.known.verified, np.uint8)
        todo: NDArray[np.int64] = blocks[verified[blocks] == 0]
        if not len(todo):
            return todo
        absent = []
        with self.sums() as sums:
            written = sums.read(int(todo[0]), int(todo[-1]) + 1)[todo - todo[0]]
            absent.append(todo[written == 0])
            there, expected = todo[written != 0], written[written != 0]
            for at in range(0, len(there), _AT_ONCE):
                some = there[at : at + _AT_ONCE]
                wrong = some[self._found(some) != expected[at : at + _AT_ONCE]]
                self._take_out(sums, wrong)
                absent.append(wrong)
                right = np.setdiff1d(some, wrong, assume_unique=True)
                for block in right.tolist():
                    self.known.verified[block] = 1
        return np.sort(np.concatenate(absent))

    def forget(self, first: int, stop: int) -> None:
        """Take blocks for missing: what came for them was damaged on the way."""
        with self.sums() as sums:
            sums.write(first, np.zeros(stop - first, np.uint64))
        self.known.verified[first:stop] = bytes(stop - first)

    def _found(self, blocks: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Sum blocks as they lie on the disk."""
        first, count = int(blocks[0]), len(blocks)
        if int(blocks[-1]) - first + 1 == count:
            return self._summed(first, count)
        return np.concatenate([self._summed(block, 1) for block in blocks.tolist()])

    def _summed(self, first: int, count: int) -> NDArray[np.uint64]:
        size = min((first + count) * BLOCK, self.key.size) - first * BLOCK
        data = os.pread(self.handle, size, first * BLOCK)
        found = np.zeros(count, np.uint64)
        sums = sums_of(memoryview(data))
        found[: len(sums)] = sums  # a file that was cut has less, and 0 is no sum
        return found

    def _take_out(self, sums: Sums, blocks: NDArray[np.int64]) -> None:
        for block in blocks.tolist():
            if block in self.known.damaged:
                start, stop = block * BLOCK, min((block + 1) * BLOCK, self.key.size)
                msg = (
                    f"{self.path}: bytes {start:,} to {stop:,} of {self.key} are not what was written, again after they were "
                    "fetched anew. Look at the disk, and set $SPIRAL_NODE_CACHE to a folder on another one"
                )
                raise DamageError(msg)
            self.known.damaged.add(block)
            sums.write(block, np.zeros(1, np.uint64))
