"""The ledger of a cache: one file per finished part, which appears whole or not at all and shows damage."""

import base64
import json
import os
import uuid
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.errors import DamageError
from spiral_stream.integrity import seal
from spiral_stream.integrity.publish import write_file

Mask = NDArray[np.bool_]
Stamp = tuple[int, int, int]  # inode, time of the last change in ns, size


@final
@dataclass(frozen=True, slots=True, eq=False)
class LedgerEntry:
    """One finished part: a fragment with some rows of one source shard."""

    path: Path  # of the ledger file
    key: str  # content key of the shard
    mask: Mask  # [rows of the shard] which of them it holds
    bytes: int  # of payload
    fragment: dict[str, Any]  # as Lance describes it
    covered: int  # rows that it holds
    sums: str  # digest of the part's sums
    refused: int = 0  # rows that have no payload

    @property
    def file(self) -> str:
        """The fragment's data file."""
        name: str = self.fragment["files"][0]["path"]
        return name

    @property
    def stem(self) -> str:
        """The beginning of the names of all files of the part."""
        return Path(self.file).stem


@final
class Ledger:
    """The finished parts of one cache. Thread-safe; an entry is read again only where its file is another one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: dict[str, tuple[Stamp, LedgerEntry]] = {}  # by the file's name

    def enter(self, key: str, mask: Mask, payload_bytes: int, fragment: str, sums: str, refused: int = 0) -> Path:
        """Enter a finished part; returns its file.

        Raises:
            OSError: the file cannot be written.
        """
        facts = {
            "key": key,
            "rows": len(mask),
            "covered": "all" if mask.all() else base64.b64encode(np.packbits(mask).tobytes()).decode(),
            "bytes": payload_bytes,
            "refused": refused,
            "sums": sums,
            "fragment": json.loads(fragment),
        }
        path = self.folder / f"{key}.{uuid.uuid4().hex}.json"
        write_file(path, seal.sealed_json(facts))
        return path

    def files(self) -> list[Path]:
        """Return the ledger's files, in the order in which parts count."""
        return [self.folder / name for name in sorted(self._names())]

    def entries(self) -> Iterator[LedgerEntry]:
        """All parts.

        Raises:
            DamageError: an entry is not what was written; says who mends it.
        """
        for path in self.files():
            entry = self._entry(path)
            if entry is not None:
                yield entry

    def since(self, seen: set[str]) -> list[LedgerEntry]:
        """Return the parts that were entered since, and remember their names.

        Raises:
            DamageError: an entry is not what was written; says who mends it.
        """
        new = [name for name in self._names() if name not in seen]
        seen.update(new)
        found = (self._entry(self.folder / name) for name in new)
        return [entry for entry in found if entry is not None]

    def read(self, path: Path) -> LedgerEntry | None:
        """Return what a file holds now; see `read`."""
        with suppress(OSError):  # `read` says what is wrong
            stamp = _stamp(path)
            entry = read(path)
            if entry is not None:
                self._known[path.name] = stamp, entry
            return entry
        return read(path)

    def _entry(self, path: Path) -> LedgerEntry | None:
        known = self._known.get(path.name)
        with suppress(OSError):
            if known is not None and known[0] == _stamp(path):
                return known[1]
        return self.read(path)

    def _names(self) -> list[str]:
        with suppress(FileNotFoundError, NotADirectoryError):
            return [name for name in os.listdir(self.folder) if name.endswith(".json") and name[0] != "."]  # noqa: PTH208
        return []

    def needed(self, first: Collection[str] = ()) -> list[LedgerEntry]:
        """Parts that add a row which no part before has; of those that readers do not see, the largest come first.

        Args:
            first: data files of parts that count before all others, so that what readers see is never exchanged.
        """
        seen: dict[str, Mask] = {}
        out = []
        for entry in sorted(self.entries(), key=lambda entry: (entry.file not in first, -entry.covered)):
            have = seen.get(entry.key)
            if have is None or (entry.mask & ~have).any():
                out.append(entry)
                seen[entry.key] = entry.mask if have is None else have | entry.mask
        return out


def read(path: Path) -> LedgerEntry | None:
    """Return the entry of a ledger file; None if it was removed.

    Raises:
        DamageError: it is not what was written.
        CacheError: the operating system refuses.
    """
    try:
        with seal.reading(path):
            data = path.read_bytes()
    except DamageError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise
    return parse(path, data)


def parse(path: Path, data: bytes) -> LedgerEntry:
    """Return the entry in the bytes of a ledger file.

    Raises:
        DamageError: it is not what was written.
    """
    try:
        facts = seal.parse_json(path, data)
        with seal.reading(path):
            rows, covered = int(facts["rows"]), facts["covered"]
            if covered == "all":
                mask = np.ones(rows, dtype=np.bool_)
            else:
                bits = np.frombuffer(base64.b64decode(covered, validate=True), dtype=np.uint8)
                mask = np.unpackbits(bits, count=rows).astype(np.bool_)
            held, refused = int(facts["bytes"]), int(facts["refused"])
            entry = LedgerEntry(
                *(path, facts["key"], mask, held, facts["fragment"], int(mask.sum()), facts["sums"], refused)
            )
            if not isinstance(entry.key, str) or not entry.stem:
                raise seal.damaged(path, f"it names no part: {entry.key!r}")
            return entry
    except DamageError as error:
        said = str(error).removesuffix(seal.MENDED)
        msg = f"cache: {said}stream.materialize() builds what it stood for again"
        raise DamageError(msg) from error


def _stamp(path: Path) -> Stamp:
    found = os.stat(path)  # noqa: PTH116  half the time of Path.stat
    return found.st_ino, found.st_mtime_ns, found.st_size
