"""One remote file as it lies on this node: its bytes, and a checksum of every block that is there.

Two files per remote file: ``<digest>.data`` has its size and may have holes; ``<digest>.sums`` has a head and one 64-bit
XXH3 sum per block of 64 KiB, 0 where the block is missing. A block is written first and its sum after it, so a process
may be killed at any byte: a block without its sum is not there, and one that is not what its sum says is fetched again.
Both files can be made, cut to size and given their heads by several processes at once, since all write the same.

Who reads or fills a file shares a lock on its data; who removes it takes that lock alone. The kernel takes it back from a
process that ends, however it ends.
"""

import fcntl
import json
import os
import re
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, final

import numpy as np
import xxhash
from numpy.typing import NDArray

from spiral_stream.errors import CacheError, cut
from spiral_stream.integrity.faults import failed

BLOCK: Final = 1 << 16  # bytes
PART: Final = 1 << 23  # bytes that one request asks for at most
PART_BLOCKS: Final = PART // BLOCK
DATA: Final = ".data"
SUMS: Final = ".sums"
_MAGIC: Final = b"\x93NODE\r\n\x01"
_HEAD: Final = struct.Struct("<8sQQQ")  # mark, size of the data, birth, 0
_FIRST: Final = 1024  # where the sums begin
_PAUSE_S: Final = 0.002
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
    until = time.monotonic() + deadline_s
    while True:
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except FileNotFoundError:
            path.parent.mkdir(parents=True, exist_ok=True)
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            facts = os.fstat(handle)
            if facts.st_nlink:
                if facts.st_size != size:
                    os.ftruncate(handle, size)
                return handle
        except BlockingIOError:
            if time.monotonic() > until:
                os.close(handle)
                msg = f"{path} is locked by a process that removes files, for {deadline_s:g} s. End it (`fuser {path}`)"
                raise CacheError(msg) from None
            time.sleep(_PAUSE_S)
        except OSError:
            os.close(handle)
            raise
        os.close(handle)


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


def runs_of(blocks: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield the first block, and the one after the last, of each run of neighbours."""
    if len(blocks):
        cuts = np.flatnonzero(np.diff(blocks) != 1) + 1
        for each in np.split(blocks, cuts):
            yield int(each[0]), int(each[-1]) + 1
