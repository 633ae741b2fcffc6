"""Remove from a store what no catalog needs and what no record names: it is marked first, and goes when its mark is old enough.

    catalogs/<digest>             one catalog that uses the store: its place, and the machine if that is a folder
    used/<data version>.<day>     content keys of the shards of a relation that somebody opened on that day
    dead/<folder>/<record>        since when nobody needs a part, and its files
    loose/<folder>/<digest>       since when no record names a file

A mark names the files, so whoever is killed while he removes leaves what the next one finishes: the record goes first, so
that nobody enters the part any more, then its files, then the mark. A part that is needed again loses its mark. Marks lie
apart from records, where versions that do not know them never look.

A file that no record names was put by a machine that died before it put the record, or is of a part that is damaged. Whoever
puts a part may be between its files and its record, so a loose file stays for an hour at least (docs/decisions/0079).
"""

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, final

import xxhash

from spiral_stream.errors import CacheError, DamageError
from spiral_stream.integrity.seal import parse_json, sealed_json
from spiral_stream.keeping.parts import SharedPart
from spiral_stream.keeping.share import DAMAGED, Share

CATALOGS: Final = "catalogs"
USED: Final = "used"
DEAD: Final = "dead"
LOOSE: Final = "loose"
_DAY_S: Final = 86_400
_PUTTING: Final = timedelta(hours=1)  # within which a machine that lives puts the record of a file
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
        marked_loose: files that no record names, and that wait.
        marked_bytes: of the data of both.
        removed: parts that were removed now.
        removed_loose: files that no record named, and that were removed now.
        removed_bytes: of the data of both.
    """

    marked: int = 0
    marked_loose: int = 0
    marked_bytes: int = 0
    removed: int = 0
    removed_loose: int = 0
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
    share: Share,
    records: Path,
    parts: tuple[Sequence[SharedPart], Sequence[SharedPart]],
    files: Mapping[str, int],
    older_than: timedelta,
) -> CollectedParts:
    """Mark what nobody needs of a derivation or cache, and remove what was marked long enough ago.

    Args:
        share: the store.
        records: its folder of records, in its folder below the share's.
        parts: those that nobody needs, and those that somebody needs.
        files: that were there before the parts were read, by their paths in the folder, with their bytes: of parts, and
            records that are marked as damaged.
        older_than: how old a mark has to be.

    Raises:
        CacheError: the store failed, or may not be written.
    """
    folder, (dead, live) = records.parent, parts
    files_of = {
        part.name: [path.relative_to(folder).as_posix() for path in (part.sums, *part.paths())]
        for part in (*dead, *live)
    }
    named = {file for each in files_of.values() for file in each}
    unneeded = _Marks(share, DEAD, folder, older_than)
    unneeded.keep({part.name: (part.size, files_of[part.name]) for part in dead}, {part.name for part in live})
    loose = _Marks(share, LOOSE, folder, max(older_than, _PUTTING))
    left = files.keys() - named - {file for mark in unneeded.marks.values() for file in mark["files"]}
    loose.keep({_digest(file): (files[file], [file]) for file in left}, map(_digest, named))

    def remove(name: str) -> None:
        record = records / name
        share.remove(record)
        unneeded.remove(name)
        share.remove(record.with_name(f"{name}{DAMAGED}"))
        unneeded.forget(name)

    def remove_loose(name: str) -> None:
        loose.remove(name)
        for file in loose.marks[name]["files"]:
            if (folder / file).parent == records:
                share.remove(folder / f"{file}{DAMAGED}")
        loose.forget(name)

    with ThreadPoolExecutor(_THREADS, "spiral-collect") as pool:
        for _ in (*pool.map(remove, unneeded.old), *pool.map(remove_loose, loose.old)):
            pass
    return CollectedParts(
        len(unneeded.marks) - len(unneeded.old),
        len(loose.marks) - len(loose.old),
        unneeded.bytes_of(unneeded.marks.keys() - unneeded.old) + loose.bytes_of(loose.marks.keys() - loose.old),
        len(unneeded.old),
        len(loose.old),
        unneeded.bytes_of(unneeded.old) + loose.bytes_of(loose.old),
    )


@final
class _Marks:
    """The marks of one derivation or cache: since when nobody needs something, and its files.

    Args:
        share: the store.
        kind: the folder of such marks.
        folder: of the derivation or cache.
        older_than: how old a mark has to be for removal.
    """

    def __init__(self, share: Share, kind: str, folder: Path, older_than: timedelta) -> None:
        self._share, self._folder = share, folder
        self._at = share.root / kind / folder.relative_to(share.root)
        self._now, self._old_s = time.time(), older_than.total_seconds()
        self.marks = dict(_marks(_read_all(share, self._at)))

    @property
    def old(self) -> set[str]:
        """The names of marks that are old enough."""
        return {name for name, mark in self.marks.items() if self._now - mark["at"] >= self._old_s}

    def keep(self, unneeded: Mapping[str, tuple[int, list[str]]], needed: Iterable[str]) -> None:
        """Mark what has no mark yet (name -> bytes, files), and unmark what is needed."""
        for name, (size, files) in unneeded.items():
            if name not in self.marks:
                self.marks[name] = {"at": self._now, "size": size, "files": files}
                self._share.put(self._at / name, sealed_json(self.marks[name]))
        for name in self.marks.keys() & set(needed):
            self.forget(name)
            del self.marks[name]

    def remove(self, name: str) -> None:
        """Remove the files of a mark."""
        for file in self.marks[name]["files"]:
            self._share.remove(self._folder / file)

    def forget(self, name: str) -> None:
        """Remove a mark from the store."""
        self._share.remove(self._at / name)

    def bytes_of(self, names: Iterable[str]) -> int:
        """The bytes of what some marks name."""
        return sum(int(self.marks[name]["size"]) for name in names)


def _digest(file: str) -> str:
    return xxhash.xxh3_128_hexdigest(file.encode())


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
