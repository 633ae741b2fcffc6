"""How much of a shared cache a working folder holds: copies of what lies on the store are evicted, least recently used first.

Only files whose record is on the store go, so whoever needs them fetches them again. What a process of this machine reads
or makes stays (locks say so), and so does what the store does not have: plans, selections, formations, derived relations.
A stream makes room when it is opened; what it reads then may go above the limit until it is closed.
"""

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from spiral_stream.cache.store.retained import StoredCache
from spiral_stream.cache.store.sweep import READERS, WRITERS
from spiral_stream.derived.folder import StoredPieces
from spiral_stream.derived.index import record_of
from spiral_stream.derived.part import SUMS
from spiral_stream.errors import CacheError
from spiral_stream.integrity.locks import alone
from spiral_stream.keeping.in_use import unread
from spiral_stream.keeping.share import noted, share_of, working_folders
from spiral_stream.storage.node_cache.cache import limit_said

LIMIT_ENV: Final = "SPIRAL_CACHE_BYTES"
SLACK: Final = 32  # a 32nd of the limit is made free at a time
EVERY_S: Final = 60.0  # how often a process looks
_LOOKED: Final[dict[Path, float]] = {}


@final
@dataclass(frozen=True, slots=True)
class WorkingFolder:
    """What a machine holds of prepared data that lies on a store.

    Attributes:
        uri: of the store, without secrets.
        path: the folder.
        bytes: that it takes.
        limit_bytes: that it may take.
    """

    uri: str
    path: Path
    bytes: int
    limit_bytes: int


@final
@dataclass(frozen=True, slots=True)
class _Copy:
    """Files of one part that the store has too."""

    folder: Path  # of the derivation or cache
    files: tuple[Path, ...]
    bytes: int
    used: float  # in seconds since 1970


def keep_limit(root: Path) -> None:
    """Let a prepared folder go back below its limit, if it is a working folder; at most once a minute per process.

    Raises:
        CacheError: the limit is no number.
    """
    now = time.monotonic()
    if now < _LOOKED.get(root, 0.0) or share_of(root) is None:
        return
    _LOOKED[root] = now + EVERY_S
    taken = _taken(root)
    limit = limit_said(LIMIT_ENV, root, taken)
    if taken > limit:
        make_room(root, taken - limit + limit // SLACK)


def make_room(root: Path, most_bytes: int | None = None, older_than_s: float = 0.0) -> tuple[int, int]:
    """Remove copies that no process of this machine uses, those used longest ago first.

    Args:
        root: the working folder.
        most_bytes: stop once so many are gone; by default all go.
        older_than_s: what was used within so many seconds stays.

    Returns:
        how many files went, and their bytes.
    """
    files = size = 0
    copies = sorted(_copies(root), key=lambda each: each.used)
    before = time.time() - older_than_s
    with ExitStack() as held:
        free: dict[Path, bool] = {}
        for each in copies:
            if (most_bytes is not None and size >= most_bytes) or each.used > before:
                break
            if each.folder not in free:
                free[each.folder] = _is_unused(root, each.folder, held)
            if free[each.folder]:
                for path in each.files:
                    path.unlink(missing_ok=True)
                files, size = files + len(each.files), size + each.bytes
    return files, size


def held_here(node: Path) -> list[WorkingFolder]:
    """Return the working folders next to a node cache.

    Raises:
        CacheError: the limit is no number.
    """
    found = []
    for root, uri in working_folders(node):
        taken = _taken(root)
        found.append(WorkingFolder(uri, root, taken, limit_said(LIMIT_ENV, root, taken)))
    return found


def _is_unused(root: Path, folder: Path, held: ExitStack) -> bool:
    """Whether no process reads or makes it; nobody does until what is held ends."""
    names = (WRITERS, READERS) if folder.parent.name == "caches" else ()
    return held.enter_context(unread(root, folder.name)) and all(
        held.enter_context(alone(folder / name)) for name in names
    )


def _copies(root: Path) -> Iterator[_Copy]:
    """Yield what lies here and on the store; what cannot be read stays."""
    for folder in sorted(root.glob("caches/*/")):
        with suppress(CacheError):
            yield from _copied(folder, _cache_parts(folder))
    for folder in sorted(root.glob("derived/*/*/")):
        with suppress(CacheError):
            yield from _copied(folder, _pieces(root, folder))


def _cache_parts(folder: Path) -> list[tuple[Path, ...]]:
    known, store = noted(folder), StoredCache(folder).store
    parts = [store.part(entry) for entry in store.ledger.entries() if entry.path.name in known]
    return [(part.blob, part.data, part.sums_file) for part in parts]


def _pieces(root: Path, folder: Path) -> list[tuple[Path, ...]]:
    known, stored = noted(folder), StoredPieces(root, folder)
    paths = [stored.file.part_path(facts) for facts in stored.roster.parts if record_of(facts) in known]
    return [(path, path.with_suffix(SUMS)) for path in paths]


def _copied(folder: Path, parts: list[tuple[Path, ...]]) -> Iterator[_Copy]:
    used = folder.stat().st_mtime
    for names in parts:
        there: dict[Path, os.stat_result] = {}
        for path in names:
            with suppress(FileNotFoundError):
                there[path] = path.stat()
        if there:
            size = sum(each.st_blocks * 512 for each in there.values())
            yield _Copy(folder, tuple(there), size, max(used, *(each.st_mtime for each in there.values())))


def _taken(root: Path) -> int:
    """Bytes on the disk of all files below a folder."""
    total = 0
    for at, _, names in os.walk(root):
        for name in names:
            with suppress(OSError):
                total += os.stat(f"{at}/{name}").st_blocks * 512  # noqa: PTH116  2 us less per file
    return total
