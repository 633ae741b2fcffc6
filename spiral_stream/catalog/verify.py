"""Verify a relation: read every byte, and compare it with what was registered.

Rows are scanned once, and every file is read: the source's own, and those that references name. A file that is gone, may
not be read, or is not what it was when the relation was registered (`sources.pins`) differs. Who else could tell whether
bytes are right is nobody, so the first call that finds nothing wrong records a digest (XXH3-128) of every file next to the
catalog's manifests, and later calls compare with it: they find what changed since, whatever its time says.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import pyarrow as pa
import xxhash

from spiral_stream.catalog.database import trying
from spiral_stream.catalog.relation.entry import Entry
from spiral_stream.catalog.relation.on_store import bring_file_of, publish_file_of
from spiral_stream.catalog.relation.pin import reference_columns, references_of
from spiral_stream.catalog.relation.reader import OpenRelation
from spiral_stream.display.progress import working
from spiral_stream.errors import CatalogError, SourceError, cut
from spiral_stream.integrity.publish import drafting
from spiral_stream.integrity.regular_files import open_file
from spiral_stream.sources.internal.imported import ImportedRows
from spiral_stream.sources.lance.source import Lance
from spiral_stream.sources.pins import Collected, Numbers, source_file_name
from spiral_stream.sources.references.policy import Reach
from spiral_stream.storage.open import store_of
from spiral_stream.storage.uri import printable
from spiral_stream.threads import Workers, thread_share

SHOWN: Final = 100  # differences that a report holds
THREADS: Final = 8
BLOCK: Final = 1 << 20
_PART: Final = 8 << 20  # of an object
_RECENT: Final = 1 << 16  # files that are remembered as read: tars that hold many rows
_SUFFIX: Final = ".digests"
_ANEW: Final = "verify again to record them"

Digest = tuple[int, int, int]  # bytes, and the two halves of XXH3-128


@final
@dataclass(frozen=True, slots=True)
class Difference:
    """One file that is not what it was.

    Examples:
        >>> [f"{each.file}: {each.found}" for each in catalog.verify("photos").differences]
        []
    """

    file: str  # as its reference spells it, or its name within the source
    found: str  # what differs, in words


@final
@dataclass(frozen=True, slots=True)
class Verified:
    """What `verify` found.

    Examples:
        >>> found = catalog.verify("photos")
        >>> found.sound, found.rows
        (True, 48)
    """

    relation: str
    data_version: str
    rows: int
    files: int  # that were read: the source's own and those that references name
    bytes: int
    compared: int  # files whose digest an earlier `verify` had recorded
    recorded: int  # files whose digest was recorded now, for the first time
    differences: tuple[Difference, ...]  # the first of them; empty where everything is sound
    different: int  # how many there are

    @property
    def sound(self) -> bool:
        """Whether nothing differs."""
        return not self.different


def verify(entry: Entry) -> Verified:
    """Read every row and every file of a relation; compare with what was registered, and with recorded digests.

    Raises:
        SourceError: the source cannot be opened, or is no longer what was registered.
        CatalogError: digests cannot be read or recorded.
    """
    path = entry.root / "manifests" / f"{entry.name}-{entry.data_version}{_SUFFIX}"
    bring_file_of(entry.root, path, _ANEW)
    with (
        OpenRelation(entry) as relation,
        Collected() as collected,
        working(
            f"verify {entry.name}: reading {relation.manifest.total:,} rows", "rows", relation.manifest.total
        ) as shown,
    ):
        reading = _Reading(entry, relation, _recorded(path), collected)
        with Workers(thread_share().waiting(THREADS), "spiral-verify") as pool:
            with working("reading the source's files"):
                reading.source_files(pool)
            reading.all_rows(pool, shown.advance)
        new = reading.recorded is None and not reading.different
        if new:
            record_digests(collected, path)
    return Verified(
        relation=entry.name,
        data_version=entry.data_version,
        rows=reading.rows,
        files=reading.files,
        bytes=reading.bytes,
        compared=reading.files if reading.recorded is not None else 0,
        recorded=reading.files if new else 0,
        differences=tuple(reading.differences),
        different=reading.different,
    )


@final
class _Reading:
    """One pass over a relation, and what it has found so far."""

    def __init__(self, entry: Entry, relation: OpenRelation, recorded: Numbers | None, collected: Collected) -> None:
        self._entry, self._relation, self._collected = entry, relation, collected
        self.recorded = recorded
        self._recent: dict[str, None] = {}
        self.rows = self.files = self.bytes = self.different = 0
        self.differences: list[Difference] = []

    def source_files(self, pool: Workers) -> None:
        """Read the source's own files."""
        paths = self._relation.files()
        self._read(
            pool, [source_file_name(name) for name in paths], lambda name: digest_of_file(*open_file(paths[name[1:]]))
        )

    def all_rows(self, pool: Workers, advance: Callable[[int], None]) -> None:
        """Scan every column, and read the files that references name."""
        schema = self._relation.schema
        columns = reference_columns(schema)
        try:
            for batch in self._relation.scan(schema.names):
                for column in columns:
                    self._references(pool, batch.column(column))
                self.rows += batch.num_rows
                advance(batch.num_rows)
        except SourceError as error:  # nothing after it can be scanned
            self._differs(f"rows from {self.rows:,} on", str(error))

    def _references(self, pool: Workers, references: pa.Array) -> None:
        names, _ = references_of(references)
        new = [name for name in dict.fromkeys(names) if name is not None and name not in self._recent]
        self._recent.update(dict.fromkeys(new))
        self._read(pool, new, self._digest_of)
        if len(self._recent) > _RECENT:
            self._recent = dict.fromkeys(list(self._recent)[-_RECENT // 2 :])

    def _digest_of(self, uri: str) -> Digest:
        reach = self._relation.base
        if (named := reach.object_of(uri, 0)) is not None:
            return _digest_of_object(reach, uri, named)
        handle, _, facts = reach.open(uri, 0)
        return digest_of_file(handle, facts)

    def _read(self, pool: Workers, names: Sequence[str], digest: Callable[[str], Digest]) -> None:
        def tried(name: str) -> Digest | str:
            try:
                return digest(name)
            except OSError as error:
                return f"{error.strerror or error}. Restore the file"
            except SourceError as error:
                return str(error)

        sound: list[tuple[str, Digest]] = []
        for name, found in zip(names, pool.map(tried, names), strict=True):
            if isinstance(found, str):
                self._differs(name, found)
                continue
            self.files += 1
            self.bytes += found[0]
            sound.append((name, found))
            self._compare(name, found)
        if self.recorded is None:
            self._collected.add([name for name, _ in sound], [found for _, found in sound])

    def _compare(self, name: str, found: Digest) -> None:
        if self.recorded is None:
            return
        known = self.recorded.find(name)
        if not known:
            self._differs(
                name, "no digest of it was recorded when the relation was first verified; it was not there then"
            )
        elif found not in known:
            self._differs(
                name,
                f"its {found[0]:,} bytes are not the {known[0][0]:,} whose digest was recorded, and no time tells. Restore the "
                f"file; or {self._way_on(name)}",
            )

    def _way_on(self, name: str) -> str:
        """How the bytes of a file are taken as they are now: Lance's never change in place, so no refresh looks at them."""
        if name.startswith(source_file_name("")) and isinstance(self._entry.source, Lance | ImportedRows):
            return f'catalog.drop("{self._entry.name}"), write its rows again, and register them'
        return f'touch it, and take the data as it is now with catalog.refresh("{self._entry.name}")'

    def _differs(self, name: str, found: str) -> None:
        self.different += 1
        if len(self.differences) < SHOWN:
            self.differences.append(Difference(cut(name.removeprefix(source_file_name(""))), found))


def digest_of_file(handle: int, facts: os.stat_result) -> Digest:
    """Read an open file to its end, and close it."""
    state, size = xxhash.xxh3_128(), 0
    with open(handle, "rb", buffering=0) as file:
        while size <= facts.st_size and (block := file.read(BLOCK)):  # no farther than it was when it was opened
            state.update(block)
            size += len(block)
    return _digest(size, state)


def _digest(size: int, state: xxhash.xxh3_128) -> Digest:
    low, high = (int.from_bytes(state.digest()[at : at + 8], "little", signed=True) for at in (0, 8))
    return size, low, high


def _digest_of_object(reach: Reach, uri: str, named: str) -> Digest:
    """Read an object to its end, from its store and from nowhere nearer.

    Raises:
        SourceError: it cannot be read, or changed.
    """
    store, key = store_of(named)
    size, state = reach.stat(uri, 0)[1].size, xxhash.xxh3_128()
    for start in range(0, size, _PART):
        got = store.get(key, start, min(_PART, size - start))
        reach.need_pinned(uri, printable(named), got.facts, 0)
        assert got.data is not None
        state.update(got.data)
    return _digest(size, state)


def _recorded(path: Path) -> Numbers | None:
    if not path.exists():
        return None
    try:
        return Numbers(path)
    except (OSError, ValueError) as error:
        msg = f"verify: digests {path}: {error}. Remove the file, and {_ANEW}"
        raise CatalogError(msg) from error


def record_digests(collected: Collected, path: Path) -> None:
    """Write digests of files to a file of the catalog's folder of manifests, and share it.

    Raises:
        CatalogError: it cannot be written.
    """
    with trying(path.parent.parent, "record digests"), drafting(path.parent, "digests") as draft:
        collected.write(draft)
        draft.replace(path)
    publish_file_of(path.parent.parent, path)
