"""One file of the node cache: what is here of a remote file, and a checksum of every page of it.

``<digest>.node`` has a head, one 64-bit XXH3 sum per page of 4 KiB, 0 where the page is missing, and then the bytes, with
holes. Bytes are written before their sums, so a process may be killed at any moment: a page without its sum is not there,
and one that differs from its sum is fetched again. A file can be made by several processes at once, since all write the same.

Nobody holds a file. Whoever reads or fills it has it open, and goes on with it where it is removed meanwhile: its sums and
its bytes are one file, so they always belong together.

Pages are verified when they are read. What a process has verified it trusts until it ends, as long as the file is the same:
its head carries the moment of its birth. A page that differs from its sum is taken out and fetched again, once per process.
"""

import json
import os
import re
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, Self, final

import numpy as np
import xxhash
from numpy.typing import NDArray

from spiral_stream.errors import CacheError, DamageError, cut
from spiral_stream.integrity.faults import failed
from spiral_stream.storage.local import exactly
from spiral_stream.storage.ranges import GAP_BYTES

PAGE: Final = 1 << 12  # bytes that have a sum
BLOCK: Final = 1 << 16  # bytes that come for less than these: a request costs more
PART: Final = 1 << 23  # bytes that one request asks for at most
NODE: Final = ".node"
_MAGIC: Final = b"\x93NODE\r\n\x02"
_HEAD: Final = struct.Struct("<8sQQQ")  # mark, size of the remote file, birth, 0
_SUMS_AT: Final = 1024
_NEAR: Final = GAP_BYTES // PAGE  # pages between two that are fetched, which come with them
_AT_ONCE: Final = 256  # pages that are read and summed together
_SECRETS: Final = re.compile(r"(?<=//)[^/@\s]*@|\?[^\s'\")]*")  # a user with a password; a signed query

Pages = NDArray[np.int64]  # numbers, ascending
Range = tuple[int, int]  # offset and length in bytes


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
        """The name of its file on the node."""
        return str(xxhash.xxh3_128_hexdigest(json.dumps([self.uri, self.version, self.size]).encode()))

    @property
    def pages(self) -> int:
        """How many pages it has."""
        return -(-self.size // PAGE)

    def __str__(self) -> str:
        return printable(self.uri)


def printable(text: str) -> str:
    """Return a URI, or another's message, without users, passwords and signed queries."""
    return cut(_SECRETS.sub("", text))


def refused(error: OSError, *where: object) -> CacheError:
    """Return the error to raise for one of the operating system."""
    said = failed(error, "Set $SPIRAL_NODE_CACHE to a folder on a local disk that can be written", *where)
    return CacheError(str(said).replace("$SPIRAL_CACHE", "$SPIRAL_NODE_CACHE"))


def pages_of(first: int, stop: int, *, exact: bool = False) -> tuple[int, int]:
    """Return the first page, and the one after the last, that come for bytes: for a few of them, whole blocks.

    Args:
        first: the first byte.
        stop: the byte after the last.
        exact: whether no more come than those that they lie in.
    """
    unit = BLOCK if stop - first < BLOCK and not exact else PAGE
    return first // unit * (unit // PAGE), -(-stop // unit) * (unit // PAGE)


def wanted_pages(key: NodeKey, ranges: Sequence[Range], *, exact: bool = False) -> Pages:
    """Return the pages that come for ranges of a file; ``exact`` is that of `pages_of`.

    Raises:
        CacheError: the file ends before.
    """
    for offset, length in ranges:
        if offset < 0 or length < 0 or offset + length > key.size:
            request = f"{length:,} from byte {offset:,} on were asked for. Ask for what it has"
            msg = f"{key}: it has {key.size:,} bytes; {request}"
            raise CacheError(msg)
    wanted = [pages_of(offset, offset + length, exact=exact) for offset, length in ranges if length]
    pages = [np.arange(first, min(stop, key.pages), dtype=np.int64) for first, stop in wanted]
    if len(pages) == 1:
        return pages[0]
    return np.unique(np.concatenate(pages)) if pages else np.empty(0, np.int64)


def between(pages: Pages) -> Pages:
    """Return the pages of small gaps between others: a request for both sides brings them too."""
    gaps = np.diff(pages)
    small = np.flatnonzero((gaps > 1) & (gaps <= _NEAR))
    return np.concatenate(
        [np.empty(0, np.int64), *(np.arange(pages[at] + 1, pages[at + 1], dtype=np.int64) for at in small.tolist())]
    )


def runs(pages: Pages) -> Iterator[tuple[int, int]]:
    """Yield the first page, and the one after the last, of each run of neighbours."""
    if len(pages):
        cuts = np.flatnonzero(np.diff(pages) != 1) + 1
        for each in np.split(pages, cuts):
            yield int(each[0]), int(each[-1]) + 1


def bytes_at(pages: int) -> int:
    """Return where the bytes of a file of so many pages begin in the node's: head and sums come before them."""
    return -(-(_SUMS_AT + 8 * pages) // PAGE) * PAGE


def node_file(root: Path, key: NodeKey) -> Path:
    """Return where a remote file lies on the node."""
    return Path(f"{root}/files/{key.digest[:2]}/{key.digest}{NODE}")  # joined at once: every `/` of a path costs 2 us


def described(path: Path) -> tuple[str, str, int, int]:
    """Return URI, version, size, and how many bytes are here, of what a file of the node is about."""
    try:
        with path.open("rb") as file:
            head = file.read(_SUMS_AT)
            mark, size, _, _ = _HEAD.unpack(head[: _HEAD.size])
            if mark != _MAGIC:
                return "", "", 0, 0
            uri, version = json.loads(head[_HEAD.size :].split(b"\n")[0])
            sums = np.frombuffer(file.read(-(-size // PAGE) * 8), np.uint64)
    except (OSError, ValueError, struct.error):
        return "", "", 0, 0
    return str(uri), str(version), int(size), min(int(size), int(np.count_nonzero(sums)) * PAGE)


def sums_of(data: memoryview | bytes) -> NDArray[np.uint64]:
    """Return the sums of pages that lie one after the other; none is 0."""
    found = [xxhash.xxh3_64_intdigest(data[at : at + PAGE]) or 1 for at in range(0, len(data), PAGE)]
    return np.array(found, np.uint64)


@final
class KnownPages:
    """What a process knows of a file, also while it has it not open. A bit that is lost to another thread costs a look."""

    __slots__ = ("birth", "damaged", "verified")

    def __init__(self, pages: int) -> None:
        self.damaged: set[int] = set()
        self.forget(pages, 0)

    def forget(self, pages: int, birth: int) -> None:
        """Begin anew: the file is another one."""
        self.birth, self.verified = birth, np.zeros(-(-pages // 8), np.uint8)

    def unverified(self, pages: Pages) -> Pages:
        """Return those that were not compared with their sums."""
        found: Pages = pages[self.verified[pages >> 3] >> (pages & 7).astype(np.uint8) & 1 == 0]
        return found

    def verify(self, pages: Pages, *, right: bool = True) -> None:
        """Note that pages are what was written, or that nobody knows."""
        bits = (1 << (pages & 7)).astype(np.uint8)
        if right:
            np.bitwise_or.at(self.verified, pages >> 3, bits)
        else:
            np.bitwise_and.at(self.verified, pages >> 3, ~bits)


@final
class NodeFile:
    """A file of the node, opened; a context manager. For one thread.

    Args:
        root: the folder of the cache.
        key: of the remote file.
        known: what this process knows of it.
        make: whether it is made where it is not there.

    Raises:
        FileNotFoundError: it is not there, and is not to be made.
        OSError: it cannot be opened or made.
    """

    def __init__(self, root: Path, key: NodeKey, known: KnownPages, *, make: bool = False) -> None:
        self.key, self.path, self._known, self._at = key, node_file(root, key), known, bytes_at(key.pages)
        self.handle = _opened(self.path, make=make)
        try:
            birth, has_size = self._head()
            if not birth:
                birth = self._bear()
            if known.birth != birth or not has_size:
                known.forget(key.pages, birth)
        except OSError:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close it."""
        handle, self.handle = self.handle, -1
        if handle >= 0:
            os.close(handle)

    def _head(self) -> tuple[int, bool]:
        """When it was made, 0 if it is none of ours; and whether it has its size, which is given back where it was cut."""
        head = os.pread(self.handle, _HEAD.size, 0)
        mark, size, birth, _ = _HEAD.unpack(head) if len(head) == _HEAD.size else (b"", 0, 0, 0)
        if mark != _MAGIC or size != self.key.size:
            return 0, False
        if os.fstat(self.handle).st_size == self._at + size:
            return birth, True
        os.ftruncate(self.handle, self._at + size)
        return birth, False

    def _bear(self) -> int:
        """Write the head of a new file. What another process writes meanwhile stays; what is no file of ours goes."""
        if os.pread(self.handle, 1, 0) not in (b"", b"\0", _MAGIC[:1]):
            os.ftruncate(self.handle, 0)
        birth = int.from_bytes(os.urandom(8), "little") | 1
        named = json.dumps([str(self.key), cut(self.key.version, 60)], ensure_ascii=False).encode()
        os.ftruncate(self.handle, self._at + self.key.size)
        head = _HEAD.pack(_MAGIC, self.key.size, birth, 0) + named[: _SUMS_AT - _HEAD.size - 1] + b"\n"
        os.pwrite(self.handle, head, 0)
        return birth

    def extents(self, first: int, stop: int) -> list[Range]:
        """Return the bytes on the disk that pages need: their own, and those of head and sums."""
        begin, end = first * PAGE, min(stop * PAGE, self.key.size)
        return [(0, self._at), (self._at + begin, end - begin)]

    def stamp(self, requested_ns: int) -> None:
        """Note when it was asked for, since what goes for others follows from the order of asks, and not from when bytes came."""
        with suppress(OSError):
            os.utime(self.handle, ns=(requested_ns, requested_ns))

    def read(self, offset: int, length: int) -> memoryview:
        """Return bytes whose pages are here (`missing`)."""
        return memoryview(exactly(self.handle, length, self._at + offset))

    def write(self, offset: int, data: memoryview) -> None:
        """Write whole pages, and then their sums."""
        sums, at = sums_of(data), self._at + offset
        while len(data):
            done = os.pwrite(self.handle, data, at)
            at, data = at + done, data[done:]
        self._write_sums(offset // PAGE, sums)

    def _write_sums(self, first: int, sums: NDArray[np.uint64]) -> None:
        os.pwrite(self.handle, sums.tobytes(), _SUMS_AT + 8 * first)

    def forget(self, first: int, stop: int) -> None:
        """Take pages for missing: what came for them was damaged on the way."""
        self._write_sums(first, np.zeros(stop - first, np.uint64))
        self._known.verify(np.arange(first, stop, dtype=np.int64), right=False)

    def missing(self, pages: Pages) -> Pages:
        """Verify those pages that are here and were not verified yet; return those that have to be fetched.

        Raises:
            DamageError: a page was fetched again, and is not what was written once more.
        """
        absent = [np.empty(0, np.int64)]
        for first, stop in runs(self._known.unverified(pages)):
            numbers = np.arange(first, stop, dtype=np.int64)
            written = np.frombuffer(os.pread(self.handle, 8 * len(numbers), _SUMS_AT + 8 * first), np.uint64)
            absent.append(numbers[written == 0])
            for begin, end in runs(np.flatnonzero(written)):
                absent += [
                    self._wrong(first + at, written[at : min(at + _AT_ONCE, end)]) for at in range(begin, end, _AT_ONCE)
                ]
        return np.concatenate(absent) if len(absent) == 2 else np.sort(np.concatenate(absent))  # noqa: PLR2004

    def _wrong(self, first: int, written: NDArray[np.uint64]) -> Pages:
        """Compare pages with their sums, and take out those that differ."""
        data = self.read(first * PAGE, min(len(written) * PAGE, self.key.size - first * PAGE))
        found = np.zeros(len(written), np.uint64)  # a file that was cut has less, and 0 is no sum
        found[: -(-len(data) // PAGE)] = sums_of(data)
        is_right = found == written
        numbers = np.arange(first, first + len(written), dtype=np.int64)
        self._known.verify(numbers[is_right])
        wrong: Pages = numbers[~is_right]
        for page in wrong.tolist():
            if page in self._known.damaged:
                start, stop = page * PAGE, min((page + 1) * PAGE, self.key.size)
                msg = (
                    f"{self.path}: bytes {start:,} to {stop:,} of {self.key} are not what was written, again after they were "
                    "fetched anew. Look at the disk, and set $SPIRAL_NODE_CACHE to a folder on another one"
                )
                raise DamageError(msg)
            self._known.damaged.add(page)
            self._write_sums(page, np.zeros(1, np.uint64))
        return wrong


def _opened(path: Path, *, make: bool) -> int:
    flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if make else 0)
    try:
        return os.open(path, flags, 0o666)
    except FileNotFoundError:
        if not make:
            raise
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, flags, 0o666)
