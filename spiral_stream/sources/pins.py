"""Pins: what each file of a relation was like when it was registered, by size, time of change and inode.

A reference names a file whose bytes nobody holds. Its pin tells, at the cost of one look-up (3 us) and one ``fstat``,
whether they may have changed since. Pins lie in one file next to the manifest, 32 bytes for each distinct reference. A file
that was not there when the relation was registered is not pinned: it may still come. Damage to the file of pins can only
make a file look changed.

Size and time are part of the shard's content key. The inode is not, since a copy of the same files has others; it is
compared on the host that registered it, for file systems that keep inodes.

The file is memory-mapped and sorted by a hash of the name, with three numbers per name. A look-up touches some pages of
it, so that memory grows with the names in use. `Collected` makes it in bounded memory: sorted runs go to disk and are merged
by ranges of the hash. Two names of one hash (once in 5 million relations of a million names) both have their entries.
"""

import os
import platform
import struct
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Final, NamedTuple, Protocol, final

import numpy as np
import xxhash
from numpy.typing import NDArray

from spiral_stream.errors import SourceError
from spiral_stream.storage.store import ObjectStat, what_differs

UInt64 = NDArray[np.uint64]

SPILL: Final = 1 << 20  # entries in memory: 32 MB
_RANGES: Final = 64  # parts of the hash's range that are merged one after the other
_MAGIC: Final = b"spnums\x00\x01"
_HEADER: Final = struct.Struct("<8s Q Q 40x")  # magic, entries, host
_ENTRY_BYTES: Final = 32


def name_hash(name: str) -> int:
    """64 bits of a name."""
    return xxhash.xxh3_64_intdigest(name.encode("utf-8", "surrogatepass"))


@final
class Numbers:
    """A file of numbers by name, memory-mapped. Thread-safe."""

    def __init__(self, path: Path) -> None:
        """Open a file that `Collected` wrote.

        Raises:
            OSError: it cannot be read.
            ValueError: it is cut, or another kind of file.
        """
        with path.open("rb") as file:
            head = file.read(_HEADER.size)
            size = os.fstat(file.fileno()).st_size
            magic, count, host = _HEADER.unpack(head) if len(head) == _HEADER.size else (b"", 0, 0)
            if magic != _MAGIC or size != _HEADER.size + count * _ENTRY_BYTES:
                msg = "it is cut, or another kind of file"
                raise ValueError(msg)
            data = np.memmap(file, np.uint64, "r", _HEADER.size, (4, count)) if count else np.empty((4, 0), np.uint64)
        self._mapped = data
        self._names: UInt64 = np.asarray(data[0])  # plain arrays: a view of a memmap costs 5 us
        self._columns = np.asarray(data[1:]).view(np.int64)
        self.same_host = host == host_number()  # whether it was written here

    def __len__(self) -> int:
        return len(self._names)

    def find(self, name: str) -> list[tuple[int, int, int]]:
        """Return the numbers of a name: none if it is not there, several where hashes collide."""
        key = np.uint64(name_hash(name))
        at = int(self._names.searchsorted(key))
        found = []
        while at < len(self._names) and self._names[at] == key:
            found.append(tuple(self._columns[:, at].tolist()))
            at += 1
        return found


@final
class Collected:
    """Numbers of names on their way to a file."""

    def __init__(self) -> None:
        self._held: list[UInt64] = []  # [4, n] each
        self._count = 0
        self._runs: list[UInt64] = []
        self._spilled: list[IO[bytes]] = []

    def add(self, names: Sequence[str], numbers: Sequence[tuple[int, int, int]]) -> None:
        """Add some names with three numbers each, which fit 64 bits."""
        entries = np.empty((4, len(names)), np.uint64)
        entries[0] = [name_hash(name) for name in names]
        entries[1:] = np.array(numbers, np.int64).reshape(-1, 3).T.view(np.uint64)
        self._held.append(entries)
        self._count += len(names)
        if self._count >= SPILL:
            run = self._sorted()
            file = TemporaryFile()  # noqa: SIM115  closed by `close`
            self._spilled.append(file)
            file.write(run.tobytes())
            file.flush()
            self._runs.append(np.memmap(file, np.uint64, "r", 0, run.shape))

    def write(self, path: Path) -> str:
        """Write all entries, each once: the digest of what is written.

        Raises:
            OSError: it cannot be written.
        """
        self._runs.append(self._sorted())
        state, entries = xxhash.xxh3_128(), 0
        for part in self._merged():
            state.update(np.ascontiguousarray(part.T).tobytes())  # entry by entry, however it was cut
            entries += part.shape[1]
        with path.open("wb") as file:
            file.write(_HEADER.pack(_MAGIC, entries, host_number()))
            at = 0
            for part in self._merged():
                for row in range(4):
                    file.seek(_HEADER.size + 8 * (row * entries + at))
                    file.write(part[row].tobytes())
                at += part.shape[1]
        return state.hexdigest()

    def close(self) -> None:
        """Forget everything."""
        self._held, self._runs = [], []
        for file in self._spilled:
            file.close()

    def __enter__(self) -> "Collected":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _sorted(self) -> UInt64:
        """The numbers, shape [4, n], sorted by hash."""
        out = np.concatenate([np.empty((4, 0), np.uint64), *self._held], axis=1)
        self._held, self._count = [], 0
        return _by_hash(out)

    def _merged(self) -> Iterator[UInt64]:
        """Runs of distinct entries [4, n], ascending by hash."""
        parts = _RANGES if len(self._runs) > 1 else 1
        borders = np.array([at * (2**64 // parts) for at in range(1, parts)], np.uint64)
        cuts: list[list[Any]] = [[0, *np.searchsorted(run[0], borders).tolist(), run.shape[1]] for run in self._runs]
        for at in range(parts):
            pieces = [run[:, cut[at] : cut[at + 1]] for run, cut in zip(self._runs, cuts, strict=True)]
            some = _by_hash(np.concatenate(pieces, axis=1))
            fresh = np.append(True, (some[:, 1:] != some[:, :-1]).any(axis=0))[: some.shape[1]]
            if len(fresh):
                yield np.ascontiguousarray(some[:, fresh])


def _by_hash(entries: UInt64) -> UInt64:
    return np.ascontiguousarray(entries[:, np.lexsort(entries[::-1])])


def host_number() -> int:
    """Return a number that tells this machine from others."""
    return xxhash.xxh3_64_intdigest(platform.node().encode())


_SOURCE_FILE: Final = "\0"  # before the name of a source's own file; no reference holds one
ABSENT: Final = -1  # size of a file that was not there, or no file
SUFFIX: Final = ".pins"
_LASTING: Final = frozenset(("ext2", "ext3", "ext4", "xfs", "zfs", "f2fs", "tmpfs"))  # keep their inodes


class Pin(NamedTuple):
    """One file at one time.

    Examples:
        >>> spiral.sources.Pin(size=1_024, mtime_ns=0, inode=0).size
        1024
    """

    size: int
    mtime_ns: int
    inode: int  # 0 where it says nothing


NOT_THERE: Final = Pin(ABSENT, 0, 0)


def source_file_name(name: str) -> str:
    """Return the name of a source's own file among the pins."""
    return _SOURCE_FILE + name


def pin_of(facts: ObjectStat) -> Pin:
    """Return the pin of a file, or of an object: that has 64 bits of its etag in place of a time."""
    device, inode = facts.inode or (0, 0)
    return Pin(facts.size, _in_64_bits(facts.mark), inode if 0 < inode < 1 << 63 and keeps_inodes(device) else 0)


class Pinned(Protocol):
    """What pins files."""

    def fault(self, name: str, size: int, mark: int, inode: int | None = None, etag: str | None = None) -> str | None:
        """Say how a file differs from what was registered, and the way out; None if it does not.

        Args:
            name: as the reference spells it.
            size: bytes that it has now.
            mark: its time of change, or the mark of an object.
            inode: of a file; None of an object.
            etag: of an object.
        """
        ...

    def object_of(self, name: str) -> ObjectStat | None:
        """Return what an object was like; None if it was not there, or more than one pin may be its."""
        ...


@final
class Pins:
    """The pins of one relation. Thread-safe."""

    def __init__(self, path: Path, relation: str, stored: str = "") -> None:
        """Open a file of pins.

        Args:
            path: of the file.
            relation: its name.
            stored: of rows that the catalog stores: the way out of a file of them that is not as it was. Such a file was
                restored if it has its size and time, whatever its inode is. Others are taken as they are now.

        Raises:
            SourceError: it is missing or cut.
        """
        self._relation, self._stored = relation, stored
        try:
            self._numbers = Numbers(path)
        except (OSError, ValueError) as error:
            msg = f'{relation}: pins {path}: {error}. Write them again with catalog.refresh("{relation}")'
            raise SourceError(msg) from error

    def __len__(self) -> int:
        return len(self._numbers)

    def size(self, name: str) -> int | None:
        """Return the bytes that a file had when it was registered; None if nobody knows."""
        sizes = [size for size, _, _ in self._numbers.find(name) if size != ABSENT]
        return sizes[0] if sizes else None

    def fault(self, name: str, size: int, mark: int, inode: int | None = None, etag: str | None = None) -> str | None:
        """Say how a file differs from what was registered, and the way out; None if it does not."""
        pins, now = self._numbers.find(name), _in_64_bits(mark)
        is_stored = self._stored != "" and name[:1] == _SOURCE_FILE
        by_inode = self._numbers.same_host and not is_stored
        for pin in pins:  # more than one where hashes collide
            if pin[0] == ABSENT:
                return None
            if pin[:2] == (size, now) and (pin[2] == 0 or inode is None or not by_inode or inode == pin[2]):
                return None
        way_out = self._stored if is_stored else f'Take the data as it is now with catalog.refresh("{self._relation}")'
        way_out += ", or restore the file"
        if not pins:
            return f"was not among the files of {self._relation} when it was registered. {way_out}"
        was, when, _ = pins[0]
        if inode is None:
            what = what_differs(was, size, etag)
        elif (was, when) == (size, now):
            what = f"another file of {size:,} bytes and the same time took its place"
        else:
            what = f"it had {was:,} bytes of {_shown(when)}, now {size:,} of {_shown(mark)}"
        return f"changed since registration: {what}. {way_out}"

    def object_of(self, name: str) -> ObjectStat | None:
        """Return what an object was like; None if it was not there, or more than one pin may be its."""
        pins = [Pin(*found) for found in self._numbers.find(name)]
        if len(pins) != 1 or pins[0].size == ABSENT:
            return None
        return ObjectStat(pins[0].size, marked=pins[0].mtime_ns % 2**64)


def _in_64_bits(mark: int) -> int:
    """Return a time of change, or the mark of an object, as 64 bits hold it: some damaged files are dated after 2262."""
    return (mark + 2**63) % 2**64 - 2**63


@final
class SeenPins:
    """Pins objects as they were looked at.

    Args:
        way_out: where one is another now.
    """

    def __init__(self, way_out: str) -> None:
        self._way_out = way_out
        self.seen: dict[str, ObjectStat] = {}

    def fault(self, name: str, size: int, mark: int, inode: int | None = None, etag: str | None = None) -> str | None:
        """Say how an object differs from what was seen, and the way out; None if it does not."""
        del inode
        seen = self.seen[name]
        if (seen.size, seen.mark) == (size, mark):
            return None
        return f"changed while it is being read: {what_differs(seen.size, size, etag)}. {self._way_out}"

    def object_of(self, name: str) -> ObjectStat | None:
        """Return what an object was like when it was looked at; None if it was not."""
        return self.seen.get(name)


def _shown(mtime_ns: int) -> str:
    try:
        return f"{datetime.fromtimestamp(mtime_ns // 10**9, UTC):%Y-%m-%d %H:%M:%S}.{mtime_ns % 10**9:09d}"
    except (OverflowError, OSError, ValueError):
        return f"time {mtime_ns} ns"


@lru_cache(maxsize=64)
def keeps_inodes(device: int) -> bool:
    """Whether the file system of a device keeps the inode of a file; network and FUSE ones may not."""
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
