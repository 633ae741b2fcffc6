"""One file of the node cache: its bytes, a checksum of every block that is there, and the lock of a process that has it open.

Two files per remote file: ``<digest>.data`` has its size and may have holes; ``<digest>.sums`` has a head and one 64-bit
XXH3 sum per block of 64 KiB, 0 where the block is missing. A block is written first and its sum after it, so a process
may be killed at any byte: a block without its sum is not there, and one that differs from its sum is fetched again.
Both files can be made, cut to size and given their heads by several processes at once, since all write the same.

Who reads or fills a file shares a lock on its data; who removes it takes that lock alone. The kernel takes it back from a
process that ends, however it ends.

Blocks are verified when they are read. What a process has verified it trusts until it ends, as long as the file is the same:
its sums carry the moment of their birth. A block that differs from its sum is taken out and fetched again, once per process.
"""

import json
import os
import re
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, final

import numpy as np
import xxhash
from numpy.typing import NDArray

from spiral_stream.errors import CacheError, DamageError, cut
from spiral_stream.integrity.faults import failed
from spiral_stream.integrity.locks import lock_file, unlock, wait_for

BLOCK: Final = 1 << 16  # bytes
PART: Final = 1 << 23  # bytes that one request asks for at most
PART_BLOCKS: Final = PART // BLOCK
DATA: Final = ".data"
SUMS: Final = ".sums"
_MAGIC: Final = b"\x93NODE\r\n\x01"
_HEAD: Final = struct.Struct("<8sQQQ")  # mark, size of the data, birth, 0
_FIRST: Final = 1024  # where the sums begin
_SECRETS: Final = re.compile(r"(?<=//)[^/@\s]*@|\?[^\s'\")]*")  # a user with a password; a signed query


@final
@dataclass(frozen=True)
class NodeKey:
    """What a remote file is known by. Another version or size is another file.

    Args:
        uri: where it lies, without secrets.
        version: its etag or version, as the store says it.
        size: its bytes.
    """

    uri: str
    version: str
    size: int

    @cached_property
    def digest(self) -> str:
        """The name of its files on the node."""
        return str(xxhash.xxh3_128_hexdigest(json.dumps([self.uri, self.version, self.size]).encode()))

    @property
    def blocks(self) -> int:
        """How many blocks it has."""
        return -(-self.size // BLOCK)

    def __str__(self) -> str:
        return printable(self.uri)


def printable(text: str) -> str:
    """Return a URI, or another's message, without users, passwords and signed queries."""
    return cut(_SECRETS.sub("", text))


def refused(error: OSError, *where: object) -> CacheError:
    """Return the error to raise for one of the operating system."""
    said = failed(error, "Set $SPIRAL_NODE_CACHE to a folder on a local disk that can be written", *where)
    return CacheError(str(said).replace("$SPIRAL_CACHE", "$SPIRAL_NODE_CACHE"))


def data_file(root: Path, key: NodeKey) -> Path:
    """Return where the bytes of a remote file lie."""
    return Path(f"{root}/files/{key.digest[:2]}/{key.digest}{DATA}")  # joined at once: every `/` of a path costs 2 us


def opened_data(path: Path, size: int, deadline_s: float) -> int:
    """Open a data file and share it; it is made, and has its size, if need be.

    Raises:
        CacheError: somebody is alone with it for longer than the deadline.
        OSError: it cannot be made.
    """
    handle = wait_for(lambda: _shared(path), path, deadline_s, "a process that removes files", CacheError)
    try:
        if os.fstat(handle).st_size != size:
            os.ftruncate(handle, size)
    except OSError:
        os.close(handle)
        raise
    return handle


def _shared(path: Path) -> int | None:
    while True:
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except FileNotFoundError:
            path.parent.mkdir(parents=True, exist_ok=True)
            continue
        try:
            is_ours = lock_file(handle, alone=False)
            if is_ours and os.fstat(handle).st_nlink:
                return handle
        except OSError:
            os.close(handle)
            raise
        os.close(handle)
        if not is_ours:
            return None


@final
class Sums:
    """The sums of one file, opened."""

    def __init__(self, data: Path, key: NodeKey) -> None:
        """Open them; they are made, or mended, if need be. Share the data before.

        Raises:
            OSError: they cannot be made.
        """
        self._key = key
        self._handle = os.open(f"{data}"[: -len(DATA)] + SUMS, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            self.birth = self._born() or self._bear()
        except OSError:
            self.close()
            raise

    def __enter__(self) -> "Sums":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close them."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)

    @property
    def handle(self) -> int:
        """Their descriptor."""
        return self._handle

    def _born(self) -> int:
        """When the head was written; 0 if it is not that of this file."""
        head = os.pread(self._handle, _HEAD.size, 0)
        if len(head) < _HEAD.size or os.fstat(self._handle).st_size != _FIRST + 8 * self._key.blocks:
            return 0
        mark, size, birth, _ = _HEAD.unpack(head)
        return int(birth) if mark == _MAGIC and size == self._key.size else 0

    def _bear(self) -> int:
        birth = int.from_bytes(os.urandom(8), "little") | 1
        named = json.dumps([str(self._key), cut(self._key.version, 60)], ensure_ascii=False).encode()[
            : _FIRST - _HEAD.size - 1
        ]
        os.ftruncate(self._handle, _FIRST + 8 * self._key.blocks)
        os.pwrite(self._handle, _HEAD.pack(_MAGIC, self._key.size, birth, 0) + named + b"\n", 0)
        return birth

    def read(self, first: int, stop: int) -> NDArray[np.uint64]:
        """Return the sums of some blocks, 0 for those that are missing."""
        found = np.zeros(stop - first, np.uint64)
        data = os.pread(self._handle, 8 * len(found), _FIRST + 8 * first)
        found[: len(data) // 8] = np.frombuffer(data[: len(data) // 8 * 8], np.uint64)
        return found

    def write(self, first: int, sums: NDArray[np.uint64]) -> None:
        """Write the sums of blocks whose bytes are written."""
        os.pwrite(self._handle, sums.tobytes(), _FIRST + 8 * first)

    def extent(self, first: int, stop: int) -> tuple[int, int]:
        """Return offset and length of the sums of some blocks."""
        return _FIRST + 8 * first, 8 * (stop - first)


def described(sums: Path) -> tuple[str, str, int, int]:
    """Return URI, version, size, and how many bytes are there, of what the sums of a file are about."""
    try:
        data = sums.read_bytes()
        mark, size, _, _ = _HEAD.unpack(data[: _HEAD.size])
        if mark != _MAGIC:
            return "", "", 0, 0
        uri, version = json.loads(data[_HEAD.size : _FIRST].split(b"\n")[0])
    except (OSError, ValueError, struct.error):
        return "", "", 0, 0
    there = np.frombuffer(data[_FIRST : len(data) // 8 * 8], np.uint64)
    return str(uri), str(version), int(size), min(int(size), int(np.count_nonzero(there)) * BLOCK)


def sums_of(data: memoryview) -> NDArray[np.uint64]:
    """Return the sums of blocks that lie one after the other; none is 0."""
    return np.array(
        [xxhash.xxh3_64_intdigest(data[at : at + BLOCK]) or 1 for at in range(0, len(data), BLOCK)], np.uint64
    )


def block_runs(blocks: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield the first block, and the one after the last, of each run of neighbours."""
    if len(blocks):
        cuts = np.flatnonzero(np.diff(blocks) != 1) + 1
        for each in np.split(blocks, cuts):
            yield int(each[0]), int(each[-1]) + 1


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

    def stamp(self, requested_ns: int) -> None:
        """Note when it was asked for, since what goes for others follows from the order of asks, and not from when bytes came."""
        with suppress(OSError):
            os.utime(self.handle, ns=(requested_ns, requested_ns))

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
