"""Three numbers for each of any number of names, in one memory-mapped file sorted by a hash of the name.

Looking a name up costs 3 us and touches some pages of the file, so that memory grows with the names in use. `Collected`
makes such a file in bounded memory: sorted runs go to disk and are merged by ranges of the hash. Two names of one hash
(once in 5 million relations of a million names) keep both their entries.
"""

import os
import platform
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Final, final

import numpy as np
import xxhash
from numpy.typing import NDArray

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
        self.same_host = host == _host()  # whether it was written here

    def __len__(self) -> int:
        return len(self._names)

    def find(self, name: str) -> list[tuple[int, int, int]]:
        """Return the numbers of a name: none if it is not there, several where hashes collide."""
        key = np.uint64(name_hash(name))
        at = int(np.searchsorted(self._names, key))
        found = []
        while at < len(self._names) and self._names[at] == key:
            a, b, c = self._columns[:, at].tolist()
            found.append((a, b, c))
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
            file.write(_HEADER.pack(_MAGIC, entries, _host()))
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


def _host() -> int:
    return xxhash.xxh3_64_intdigest(platform.node().encode())
