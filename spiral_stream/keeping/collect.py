"""Remove from a store what no catalog needs: a part is marked first, and removed when its mark is old enough.

    catalogs/<digest>             one catalog that uses the store: its place, and the machine if that is a folder
    used/<data version>.<day>     content keys of the shards of a relation that somebody opened on that day
    dead/<folder>/<record>        since when nobody needs a part, and its files

A mark names the files, so whoever is killed while he removes leaves what the next one finishes: the record goes first, so
that nobody enters the part any more, then its files, then the mark. A part that is needed again loses its mark. Marks lie
apart from records, where versions that do not know them never look.
"""

import json
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, final

import xxhash

from spiral_stream.errors import CacheError, DamageError
from spiral_stream.integrity.seal import parse_json, sealed_json
from spiral_stream.keeping.parts import SharedPart, SharedParts
from spiral_stream.keeping.share import DAMAGED, Share

CATALOGS: Final = "catalogs"
USED: Final = "used"
DEAD: Final = "dead"
_DAY_S: Final = 86_400
_NOTES: Final = timedelta(days=90)  # after which nobody asks whether a relation was opened
_THREADS: Final = 8  # that remove
_TRIED: Final[set[tuple[Path, str]]] = set()  # catalogs that this process registered, or could not


@final
@dataclass(frozen=True, slots=True)
class CatalogUse:
    """A catalog that uses a store.

    Attributes:
        location: its URI, or its folder.
        machine: the machine of the folder; empty for a URI.
    """

    location: str
    machine: str

    @property
    def is_readable(self) -> bool:
        """Whether this machine can read it."""
        return self.machine in ("", os.uname().nodename)


@final
@dataclass(frozen=True, slots=True)
class CollectedParts:
    """What was marked and removed of one derivation or cache.

    Attributes:
        marked: parts that nobody needs, and that wait for their marks to be old enough.
        marked_bytes: of their data.
        removed: parts that were removed now.
        removed_bytes: of their data.
    """

    marked: int = 0
    marked_bytes: int = 0
    removed: int = 0
    removed_bytes: int = 0


def register(share: Share, location: str, *, is_folder: bool) -> None:
    """Let all machines know that a catalog uses the store, if that may be written; one request for each process."""
    use = {"location": location, "machine": os.uname().nodename if is_folder else ""}
    name = xxhash.xxh3_64_hexdigest(json.dumps(use).encode())
    if (share.root, name) not in _TRIED and not share.forked:
        _TRIED.add((share.root, name))
        with suppress(CacheError):
            share.put(share.root / CATALOGS / name, sealed_json(use), absent=True)


def registered(share: Share) -> Iterator[CatalogUse]:
    """Yield the catalogs that use the store; one whose entry is damaged is of a machine that nobody knows.

    Raises:
        CacheError: the store failed.
    """
    for path, data in _read_all(share, share.root / CATALOGS).items():
        facts: Mapping[str, Any] = {"location": path.name, "machine": "?"}
        with suppress(DamageError):
            facts = parse_json(path, data)
        yield CatalogUse(str(facts["location"]), str(facts["machine"]))


def forget_catalog(share: Share, use: CatalogUse) -> None:
    """Let everybody know that a catalog is gone.

    Raises:
        CacheError: the store failed.
    """
    facts = {"location": use.location, "machine": use.machine}
    share.remove(share.root / CATALOGS / xxhash.xxh3_64_hexdigest(json.dumps(facts).encode()))


def note_use(share: Share, data_version: str, keys: Callable[[], bytes]) -> None:
    """Note that the shards of a relation are used today, if that may be written; one request for each machine and day.

    Args:
        share: the store.
        data_version: of the relation.
        keys: gives the content keys of its shards, 16 bytes each.
    """
    file = share.root / USED / f"{data_version}.{int(time.time() // _DAY_S)}"
    if not share.forked and not file.exists():
        with suppress(CacheError, OSError):
            share.put(file, keys(), absent=True)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()


def used_keys(share: Share, within: timedelta) -> bytes:
    """Return the content keys of shards that somebody used within some time, to the day; notes of long ago are removed.

    Raises:
        CacheError: the store failed.
    """
    names, now = share.names(share.root / USED)[0], time.time()
    ages = {name: now - int(day) * _DAY_S for name in names for day in [name.rpartition(".")[2]] if day.isdigit()}
    for name, age in ages.items():
        if age > max(within, _NOTES).total_seconds() + _DAY_S:
            share.remove(share.root / USED / name)
    recent = [name for name, age in ages.items() if within and age < within.total_seconds() + _DAY_S]
    return b"".join(data or b"" for data in share.read([share.root / USED / name for name in sorted(recent)]))


def collect(
    share: Share, parts: SharedParts, dead: Sequence[SharedPart], live: Collection[str], older_than: timedelta
) -> CollectedParts:
    """Mark the parts that nobody needs, and remove those that were marked long enough ago.

    Args:
        share: the store.
        parts: of one derivation or cache, in the share's folder.
        dead: what nobody needs.
        live: the names of its other records on the store.
        older_than: how old a mark has to be.

    Raises:
        CacheError: the store failed, or may not be written.
    """
    folder = share.root / DEAD / parts.folder.relative_to(share.root)
    marks = dict(_marks(_read_all(share, folder)))
    now, old = time.time(), older_than.total_seconds()
    for part in dead:
        if part.name not in marks:
            files = [path.relative_to(parts.folder).as_posix() for path in (part.sums, *part.paths())]
            marks[part.name] = {"at": now, "size": part.size, "files": files}
            share.put(folder / part.name, sealed_json(marks[part.name]))
    for name in live:
        if name in marks:
            share.remove(folder / name)
            del marks[name]
    gone = [name for name, mark in marks.items() if now - mark["at"] >= old]

    def remove(name: str) -> None:
        record = parts.folder / parts.RECORDS / name
        share.remove(record)
        for file in marks[name]["files"]:
            share.remove(parts.folder / file)
        share.remove(record.with_name(f"{name}{DAMAGED}"))
        share.remove(folder / name)

    with ThreadPoolExecutor(_THREADS, "spiral-collect") as pool:
        for _ in pool.map(remove, gone):
            pass
    sizes = {name: int(mark["size"]) for name, mark in marks.items()}
    removed = sum(sizes[name] for name in gone)
    return CollectedParts(len(marks) - len(gone), sum(sizes.values()) - removed, len(gone), removed)


def _marks(found: Mapping[Path, bytes]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The marks by their records' names; one that is damaged, or names files elsewhere, is none."""
    for path, data in found.items():
        with suppress(DamageError):
            mark = parse_json(path, data)
            if not any(".." in Path(file).parts or Path(file).is_absolute() for file in mark["files"]):
                yield path.name, mark


def _read_all(share: Share, folder: Path) -> dict[Path, bytes]:
    """The small objects in a folder of the store."""
    paths = [folder / name for name in sorted(share.names(folder)[0])]
    return {path: data for path, data in zip(paths, share.read(paths), strict=True) if data is not None}
