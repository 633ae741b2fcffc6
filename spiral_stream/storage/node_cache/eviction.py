"""How much a node cache holds, which files it evicts, and when an evicted file may enter it again.

The bytes of all files are what the disk says they take. Room is reserved by allocating it on the disk, under one lock for
all processes, before a byte is fetched, so that nobody counts what another one has just taken. A number in the file ``room``
says how much is taken; it is never too small, and counted anew when it says that the cache is full. The least recently used
files go first; whoever reads one goes on with it. When nothing more can go, bytes are fetched without being stored.

Readmission: a cache that is smaller than what is read over and over would hold nothing long enough to be of use, and blocks
would bring more bytes than were asked for. So a nearly full cache does not store a file that it evicted before. The bytes
that this file brings all the same are its debt, counted in its own size; when the debt reaches `TIMES`, the file is stored
until it is evicted once more. Debts begin at a value drawn from the URI, so that files come back one after the other. It is
the rate of bimodal insertion (Qureshi et al. 2007, 1 in 32) without its chance: what is stored follows from what is asked
for, so EXPLAIN can compute it.
"""

import errno
import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import xxhash

from spiral_stream.errors import CacheError
from spiral_stream.integrity.locks import lock_file, unlock, wait_for
from spiral_stream.storage.node_cache.file import NODE, PAGE, NodeFile, NodeKey, bytes_at, described

FULL: Final = 3 / 4  # of the limit: making room frees a 32nd, or one large file
TIMES: Final = 32  # its size, until a file is kept again
_SIZE: Final = 1 << 17  # the debt of a file whose bytes came once
PERIOD: Final = TIMES * _SIZE


def owed(uri: str, debt: int, requested_bytes: int, size: int) -> tuple[int, bool]:
    """Add to the debt of a file what is asked of it.

    Args:
        uri: of the file.
        debt: so far, in [0, PERIOD).
        requested_bytes: bytes.
        size: of the file in bytes; 0 where nobody knows it.

    Returns:
        The debt, in [0, PERIOD), and whether the file is kept from now on.
    """
    more = min(PERIOD, -(-requested_bytes * _SIZE // max(1, size, requested_bytes)))
    drawn = int(xxhash.xxh3_64_intdigest(uri.encode()))
    return (debt + more) % PERIOD, (debt + drawn) % PERIOD + more >= PERIOD


SLACK: Final = 32  # a 32nd of the limit is made free at a time: counting files costs about 5 us for each
DEADLINE_S: Final = 60.0  # for the turn of another process
_USED: Final = struct.Struct("<Q")
_SLOTS: Final = 1 << 20  # files that are remembered as removed, each with 40 bits of its name, `_KEPT`, and its debt
_NAME: Final = -1 << 24
_READMITTED: Final = 1 << 23  # it is kept again
_NO_SPACE: Final = {errno.ENOSPC, errno.EDQUOT}


@final
@dataclass(frozen=True)
class NodeFileFacts:
    """One remote file that lies on the node.

    Args:
        uri: where it comes from, without secrets.
        version: its etag or version.
        size: bytes that it has where it comes from.
        there: bytes of it that are here.
        on_disk: bytes that it takes.
        used: when it was used last, in seconds since 1970.
    """

    uri: str
    version: str
    size: int
    there: int
    on_disk: int
    used: float


@final
@dataclass(frozen=True, slots=True)
class LyingFile:
    """A file that lies in the cache; one of an earlier version of Spiral is never asked for, and goes as any other."""

    path: Path
    on_disk: int
    used_ns: int

    @property
    def digest(self) -> str:
        return self.path.name.removesuffix(NODE)


@final
class Room:
    """The room of one folder.

    Args:
        root: the folder.
        limit: bytes.
    """

    def __init__(self, root: Path, limit: int) -> None:
        self.root, self.limit = root, limit

    def reserve(self, file: NodeFile, first: int, stop: int) -> bool:
        """Allocate room for some pages of an open file; False if there is none for them, or the file was removed.

        Args:
            file: that is to have them.
            first: the first page.
            stop: the one after the last.

        Raises:
            CacheError: another process has its turn for longer than the deadline.
            OSError: the disk is full, and nothing can be removed.
        """
        with self._turn() as counter:
            before, used = os.fstat(file.handle), _number(counter)
            need = needed(file.key.pages, stop - first, is_new=not before.st_blocks)
            if used + need > self.limit:
                used = self._evict(need, file.path)
                _write(counter, used)
            if used + need > self.limit or not before.st_nlink:
                return False
            try:
                for extent in file.extents(first, stop):
                    self._allocate(file, *extent)
            finally:
                _write(counter, used + 512 * (os.fstat(file.handle).st_blocks - before.st_blocks))
        return True

    def _allocate(self, file: NodeFile, offset: int, length: int) -> None:
        try:
            os.posix_fallocate(file.handle, offset, length)
        except OSError as error:
            if error.errno not in _NO_SPACE:
                raise
            self._evict(self.limit - sum(each.on_disk for each in self._lying()) + length, file.path)
            os.posix_fallocate(file.handle, offset, length)

    @property
    def full(self) -> bool:
        """Whether files that were removed are not kept for now."""
        return taken(self.root) >= self.limit * FULL

    def was_removed(self, digest: str) -> bool:
        """Whether a file lay here before and was removed for others."""
        return self._slot(digest) is not None

    def keeps(self, key: NodeKey, requested_bytes: int, *, ahead: bool = False) -> bool:
        """Whether bytes of a file are to be kept while the cache is full: not what was removed, until its debt is due.

        Args:
            key: of the file.
            requested_bytes: how many bytes are asked for.
            ahead: they are asked for before they are used, so that nothing is owed yet.
        """
        slot = self._slot(key.digest)
        if slot is None or slot & _READMITTED or ahead:
            return slot is None or bool(slot & _READMITTED)
        debt, due = owed(key.uri, slot, requested_bytes, key.size)
        self._note(key.digest, debt | _READMITTED * due)
        return due

    def _slot(self, digest: str) -> int | None:
        """What is noted of a file that was removed; None of another one."""
        number = int(digest[:16], 16)
        with suppress(OSError), (self.root / "removed").open("rb") as file:
            noted = int.from_bytes(os.pread(file.fileno(), 8, number % _SLOTS * 8), "little")
            return noted & ~_NAME if noted and noted & _NAME == number & _NAME else None
        return None

    def files(self) -> list[NodeFileFacts]:
        """Return what lies here, what was used last first."""
        lying = sorted(self._lying(), key=lambda each: each.used_ns, reverse=True)
        return [NodeFileFacts(*described(each.path), each.on_disk, each.used_ns / 1e9) for each in lying]

    def clear(self, older_than_s: float = 0.0) -> tuple[int, int]:
        """Remove what nobody used for some time.

        Returns:
            How many files were removed, and their bytes.
        """
        before_ns = time.time_ns() - int(older_than_s * 1e9)
        with self._turn() as counter:
            lying = self._lying()
            gone = [each.on_disk for each in lying if older_than_s <= 0 or each.used_ns < before_ns]
            for each in lying:
                if older_than_s <= 0 or each.used_ns < before_ns:
                    self.remove(each, remember=False)
            _write(counter, sum(each.on_disk for each in lying) - sum(gone))
        return len(gone), sum(gone)

    @contextmanager
    def _turn(self) -> Iterator[int]:
        """One process at a time."""
        handle = os.open(self.root / "room", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            wait_for(lambda: lock_file(handle, alone=True), self.root / "room", DEADLINE_S, late=CacheError)
            yield handle
        finally:
            unlock(handle, os.getpid())

    def _lying(self) -> list[LyingFile]:
        """Everything that lies here; whoever has the turn knows that nothing goes meanwhile."""
        found = []
        with suppress(FileNotFoundError), os.scandir(self.root / "files") as folders:
            for folder in folders:
                if folder.name.startswith("."):  # a process that begins tries whether files can be made here
                    continue
                with os.scandir(folder) as files:
                    for each in files:
                        with suppress(FileNotFoundError):
                            facts = each.stat()  # its time is when it was asked for
                            found.append(LyingFile(Path(each.path), facts.st_blocks * 512, facts.st_mtime_ns))
        return found

    def _evict(self, need: int, keep: Path) -> int:
        """Remove what was used longest ago until some bytes are free; returns the bytes that are left."""
        lying = sorted(self._lying(), key=lambda each: each.used_ns)
        used = sum(each.on_disk for each in lying)
        most = self.limit - need
        goal = most - self.limit // SLACK if used > most else most
        for each in lying:
            if used > goal and each.path != keep:
                self.remove(each)
                used -= each.on_disk
        return used

    def remove(self, lying: LyingFile, *, remember: bool = True) -> None:
        """Remove a file; whoever has it open goes on with it."""
        if remember:  # first: whoever misses the file asks whether it was removed
            with suppress(ValueError):
                self._note(lying.digest, (self._slot(lying.digest) or 0) & ~_READMITTED)
        with suppress(FileNotFoundError):
            lying.path.unlink()

    def _note(self, digest: str, noted: int) -> None:
        """Remember a file as removed. Of two processes at the same moment one may be lost: a debt is due a read later."""
        with suppress(OSError):
            handle = os.open(self.root / "removed", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                number = int(digest[:16], 16)
                os.pwrite(handle, (number & _NAME | noted).to_bytes(8, "little"), number % _SLOTS * 8)
            finally:
                os.close(handle)


def needed(pages: int, more: int, *, is_new: bool) -> int:
    """Return the bytes on the disk that some pages of a file need, its head and sums included where it is new.

    Args:
        pages: of the whole file.
        more: how many are to be here.
        is_new: whether nothing of it is here yet.
    """
    return PAGE * more + bytes_at(pages) * is_new


def taken(folder: Path) -> int:
    """Return about how many bytes a node cache takes; 0 if nobody has counted them."""
    try:
        data = (folder / "room").read_bytes()
    except OSError:
        return 0
    return int(_USED.unpack(data)[0]) if len(data) == _USED.size else 0


def _number(counter: int) -> int:
    data = os.pread(counter, _USED.size, 0)
    return int(_USED.unpack(data)[0]) if len(data) == _USED.size else 1 << 62  # not known: count


def _write(counter: int, used: int) -> None:
    os.pwrite(counter, _USED.pack(max(0, used)), 0)
