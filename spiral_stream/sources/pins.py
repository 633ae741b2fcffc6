"""What the files of a relation were like when it was registered: size, time of change, inode.

A reference names a file whose bytes nobody holds. Its pin tells, at the cost of one look-up and one ``fstat`` that an
open needs anyway, whether they may have changed since. Pins lie in one file beside the manifest, 32 bytes for each
distinct name, sorted by a hash of the name and memory-mapped, so that memory grows with the files in use. A file that
was not there when it was registered has no pin: it may still come. Damage to the file of pins can only make a file
look changed.

Size and time are part of the shard's content key. The inode is not, since a copy of the same files has others; it is
compared on the host that registered it, for file systems that keep inodes.
"""

import os
import platform
import struct
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple, final

import numpy as np
import xxhash
from numpy.typing import NDArray

from spiral_stream.errors import SourceError

UInt64 = NDArray[np.uint64]
Int64 = NDArray[np.int64]

ABSENT: Final = -1  # size of a file that was not there, or no file
SUFFIX: Final = ".pins"
_MAGIC: Final = b"spipins\x01"
_HEADER: Final = struct.Struct("<8s Q Q 40x")  # magic, entries, host
_ENTRY_BYTES: Final = 32
_LASTING: Final = frozenset(("ext2", "ext3", "ext4", "xfs", "zfs", "f2fs", "btrfs", "tmpfs"))  # keep their inodes


class Pin(NamedTuple):
    """One file at one time."""

    size: int
    mtime_ns: int
    inode: int  # 0 where it says nothing


NOT_THERE: Final = Pin(ABSENT, 0, 0)


def pin_of(facts: os.stat_result) -> Pin:
    """The pin of a file, from its ``stat``."""
    return Pin(facts.st_size, facts.st_mtime_ns, facts.st_ino if _keeps_inodes(facts.st_dev) else 0)


def name_hash(name: str) -> int:
    """64 bits of a reference, or of a file's name within its source."""
    return xxhash.xxh3_64_intdigest(name.encode("utf-8", "surrogatepass"))


@final
class Pins:
    """The pins of one relation, memory-mapped. Thread-safe."""

    def __init__(self, path: Path, relation: str) -> None:
        """Open a file of pins.

        Raises:
            SourceError: it is missing or cut.
        """
        self._relation = relation
        try:
            with path.open("rb") as file:
                head = file.read(_HEADER.size)
                size = os.fstat(file.fileno()).st_size
                magic, count, host = _HEADER.unpack(head)
                if magic != _MAGIC or size != _HEADER.size + count * _ENTRY_BYTES:
                    raise ValueError("it is cut, or no file of pins")  # noqa: TRY301
                data = (
                    np.memmap(file, np.uint64, "r", _HEADER.size, (4, count)) if count else np.empty((4, 0), np.uint64)
                )
        except (OSError, ValueError, struct.error) as error:
            msg = f'{relation}: pins {path}: {error}. Write them again with catalog.refresh("{relation}")'
            raise SourceError(msg) from error
        self._names: UInt64 = data[0]
        self._sizes, self._mtimes = data[1].view(np.int64), data[2].view(np.int64)
        self._inodes: UInt64 = data[3]
        self._same_host = host == _host()

    def __len__(self) -> int:
        return len(self._names)

    def fault(self, name: str, facts: os.stat_result) -> str | None:
        """What differs of a file, in words, and the way out; None where it is what was registered."""
        key = np.uint64(name_hash(name))
        at = found = int(np.searchsorted(self._names, key))
        while found < len(self._names) and self._names[found] == key:  # more than one where hashes collide
            if self._fits(found, facts):
                return None
            found += 1
        if found == at:
            return f"was not among the files of {self._relation} when it was registered. {self._way_out}"
        size, when = int(self._sizes[at]), int(self._mtimes[at])
        if (size, when) == (facts.st_size, facts.st_mtime_ns):
            what = f"another file of {size:,} bytes and the same time took its place"
        else:
            what = f"it had {size:,} bytes of {_shown(when)}, now {facts.st_size:,} of {_shown(facts.st_mtime_ns)}"
        return f"changed since registration: {what}. {self._way_out}"

    def _fits(self, at: int, facts: os.stat_result) -> bool:
        size = int(self._sizes[at])
        if size == ABSENT:
            return True
        inode = int(self._inodes[at]) if self._same_host else 0
        return size == facts.st_size and int(self._mtimes[at]) == facts.st_mtime_ns and inode in (0, facts.st_ino)

    @property
    def _way_out(self) -> str:
        return f'Take the data as it is now with catalog.refresh("{self._relation}"), or restore the file'


def write_pins(path: Path, entries: int, parts: Iterable[UInt64]) -> None:
    """Write a file of pins.

    Args:
        path: to be written.
        entries: how many there are.
        parts: runs of entries sorted by their hash, shape [4, n] each: hash of the name, size, time and inode.
    """
    with path.open("wb") as file:
        file.write(_HEADER.pack(_MAGIC, entries, _host()))
        at = 0
        for part in parts:
            for row in range(4):
                file.seek(_HEADER.size + 8 * (row * entries + at))
                file.write(np.ascontiguousarray(part[row]).tobytes())
            at += part.shape[1]


def _shown(mtime_ns: int) -> str:
    try:
        return f"{datetime.fromtimestamp(mtime_ns // 10**9, UTC):%Y-%m-%d %H:%M:%S}.{mtime_ns % 10**9:09d}"
    except (OverflowError, OSError, ValueError):
        return f"time {mtime_ns} ns"


def _host() -> int:
    return xxhash.xxh3_64_intdigest(platform.node().encode())


@lru_cache(maxsize=64)
def _keeps_inodes(device: int) -> bool:
    """Whether the file system of a device gives a file the same inode for good; network and FUSE ones may not."""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    for line in lines:
        left, _, right = line.partition(" - ")
        if left.split(" ")[2:3] == [wanted]:
            return right.split(" ", 1)[0] in _LASTING
    return False
