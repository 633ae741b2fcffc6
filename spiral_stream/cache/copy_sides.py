"""The two sides of a copy of prepared data: a folder of this machine, or a prefix on an object store.

Both hold parts of derivations and parts of caches. A side gives a part as files and a record, and takes one in such a way
that nobody sees it before it is complete.
"""

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import copyfile
from typing import Any, Final, final

import numpy as np

from spiral_stream.cache.store import ledger
from spiral_stream.cache.store.checksums import PartFiles
from spiral_stream.cache.store.ledger import LedgerEntry
from spiral_stream.cache.store.shared import ABOUT as CACHE_ABOUT
from spiral_stream.cache.store.store import CacheStore
from spiral_stream.cache.store.sweep import WRITERS
from spiral_stream.derived.exchange import ABOUT, RECORDS, fetch_part, parsed, record_bytes
from spiral_stream.derived.folder import StoredDerivation, StoredPieces
from spiral_stream.derived.index import FILE, Roster, RosterFile, record_of, slots_in
from spiral_stream.derived.part import DATA, SUMS, Written
from spiral_stream.errors import CacheError, DamageError, SourceError
from spiral_stream.integrity import seal
from spiral_stream.integrity.locks import share as shared_lock
from spiral_stream.integrity.one_look import look
from spiral_stream.integrity.publish import new_draft, write_file
from spiral_stream.keeping.share import Share, skipped
from spiral_stream.storage.open import store_of

DERIVED: Final = "derived"
CACHES: Final = "caches"


@final
@dataclass(frozen=True, slots=True, eq=False)
class PiecesPart:
    """One part of a derivation."""

    of: StoredDerivation
    roster: Roster  # of this part alone

    @property
    def name(self) -> str:
        """Its record."""
        return record_of(self.roster.parts[0])

    @property
    def bytes(self) -> int:
        """Bytes of its data."""
        return self.roster.parts[0].size

    def files(self) -> list[str]:
        """Its data and its sums, below the prepared folder."""
        stem = f"{folder_of(self.of)}/parts/{self.roster.parts[0].name}"
        return [f"{stem}{DATA}", f"{stem}{SUMS}"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class CachePart:
    """One part of a cache."""

    of: str  # fingerprint
    about: bytes  # its cache.json
    entry: LedgerEntry
    data: bytes  # of the entry's file

    @property
    def name(self) -> str:
        """Its record."""
        return self.entry.path.name

    @property
    def bytes(self) -> int:
        """Bytes of its payload."""
        return self.entry.bytes

    def files(self, root: Path = Path()) -> PartFiles:
        """Its files below a prepared folder."""
        return PartFiles(root / CACHES / self.of, self.entry.key, self.entry.file, self.entry.sums)


def folder_of(derivation: StoredDerivation) -> str:
    """Return the folder of a derivation, below the prepared folder."""
    return f"{DERIVED}/{derivation.KIND}/{derivation.fingerprint}"


class CopySide(ABC):
    """Prepared data somewhere."""

    @abstractmethod
    def fingerprints(self) -> set[str]:
        """Return what lies here: derivations and caches."""

    @abstractmethod
    def pieces(self, wanted: set[str]) -> Iterator[PiecesPart]:
        """Yield the parts of some derivations."""

    @abstractmethod
    def caches(self, wanted: set[str]) -> Iterator[CachePart]:
        """Yield the parts of some caches."""

    @abstractmethod
    def records(self, folder: str) -> set[str]:
        """Return the names of the parts in the folder of a derivation or cache."""

    @abstractmethod
    def bring(self, part: PiecesPart | CachePart) -> None:
        """Let the files of a part be here, if this is a working folder whose store has them.

        Raises:
            DamageError: an object is not what was written.
            CacheError: the store failed.
        """

    @abstractmethod
    def file(self, name: str, size: int | None) -> Path:
        """Return a file that lies here, or a copy of it; give it back with `release`.

        Raises:
            DamageError: it is missing, or has another size.
            CacheError: the store failed.
        """

    @abstractmethod
    def release(self, path: Path) -> None:
        """Remove a copy."""

    @abstractmethod
    def take_pieces(self, part: PiecesPart, data: Path, sums: Path) -> None:
        """Let a part of a derivation be here; its files are verified."""

    @abstractmethod
    def take_cache(self, part: CachePart, files: dict[str, Path]) -> None:
        """Let a part of a cache be here; its files are verified."""

    @abstractmethod
    def finish(self) -> None:
        """Let readers see what was taken."""


@final
class FolderSide(CopySide):
    """A folder of this machine: a prepared folder, or a working folder of a store."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._taken: dict[str, CacheStore] = {}

    def fingerprints(self) -> set[str]:
        return {path.parent.name for path in [*self._rosters(), *self._root.glob(f"{CACHES}/*/{CACHE_ABOUT}")]}

    def pieces(self, wanted: set[str]) -> Iterator[PiecesPart]:
        for path in self._rosters():
            if path.parent.name in wanted:
                stored = StoredPieces(self._root, path.parent)
                about, roster = stored.file.derivation, stored.roster
                assert isinstance(about, StoredDerivation)
                for k in range(len(roster.parts)):
                    yield PiecesPart(about, roster.only(roster.part == k))

    def caches(self, wanted: set[str]) -> Iterator[CachePart]:
        for path in sorted(self._root.glob(f"{CACHES}/*/{CACHE_ABOUT}")):
            if path.parent.name in wanted:
                about = path.read_bytes()
                for each in sorted((path.parent / "ledger").glob("[!.]*.json")):
                    data = each.read_bytes()
                    yield CachePart(path.parent.name, about, ledger.parse(each, data), data)

    def records(self, folder: str) -> set[str]:
        path = self._root / folder
        if folder.startswith(CACHES):
            return {each.name for each in (path / "ledger").glob("*.json")}
        if not (path / FILE).exists():
            return set()
        return {record_of(facts) for facts in StoredPieces(self._root, path).roster.parts}

    def bring(self, part: PiecesPart | CachePart) -> None:
        if isinstance(part, PiecesPart):
            fetch_part(RosterFile(self._root, part.of), part.roster.parts[0])
        else:
            folder = self._root / CACHES / part.of
            CacheStore(folder, seal.parse_json(folder / CACHE_ABOUT, part.about)).shared.fetch(part.files(self._root))

    def file(self, name: str, size: int | None) -> Path:
        path = self._root / name
        found = look(path)
        if found is None or size not in (None, found.st_size):
            raise seal.damaged(path, "it is missing, or has another size")
        return path

    def release(self, path: Path) -> None:
        """Nothing was copied."""

    def take_pieces(self, part: PiecesPart, data: Path, sums: Path) -> None:
        file, roster = RosterFile(self._root, part.of), part.roster
        file.prepare()
        words = np.frombuffer(bytes(seal.content(sums)), np.uint64)
        draft, held = new_draft(file.parts / roster.parts[0].name, Path.touch)
        try:
            copyfile(data, draft)
            written = Written(roster.offsets, roster.counts, roster.summaries, words, part.bytes)
            file.commit([(draft, roster.keys, written)])
        finally:
            held.release()
            draft.unlink(missing_ok=True)

    def take_cache(self, part: CachePart, files: dict[str, Path]) -> None:
        folder = self._root / CACHES / part.of
        (folder / "ledger").mkdir(parents=True, exist_ok=True)
        held = shared_lock(folder / WRITERS)  # nobody removes files that no entry names meanwhile
        try:
            if not (folder / CACHE_ABOUT).exists():
                write_file(folder / CACHE_ABOUT, part.about)
            for name, path in files.items():
                (self._root / name).parent.mkdir(parents=True, exist_ok=True)
                draft, lock = new_draft(self._root / CACHES / part.of / "sums" / part.entry.stem, _touch)
                copyfile(path, draft)
                draft.replace(self._root / name)
                lock.release()
            write_file(folder / "ledger" / part.name, part.data)
        finally:
            if held is not None:
                held.release()
        self._taken[part.of] = CacheStore(folder, seal.parse_json(folder / CACHE_ABOUT, part.about))

    def finish(self) -> None:
        for store in self._taken.values():
            store.commit()

    def _rosters(self) -> list[Path]:
        return sorted(self._root.glob(f"{DERIVED}/*/*/{FILE}"))


@final
class StoreSide(CopySide):
    """A place on an object store.

    Args:
        uri: of it.
        work: an empty folder, for what passes through.
    """

    def __init__(self, uri: str, work: Path) -> None:
        self._work = work
        self._share = Share(work, uri.rstrip("/"), "", "copy")

    def fingerprints(self) -> set[str]:
        return {name.split("/")[2] for name in self._names(DERIVED) if f"/{RECORDS}/" in name} | {
            name.split("/")[1] for name in self._names(CACHES) if "/ledger/" in name
        }

    def pieces(self, wanted: set[str]) -> Iterator[PiecesPart]:
        folders = {name.partition(f"/{RECORDS}/")[0] for name in self._names(DERIVED) if f"/{RECORDS}/" in name}
        for folder in sorted(folders):
            kind, fingerprint = folder.split("/")[1:]
            if fingerprint in wanted:
                names = sorted(self.records(folder))
                paths = [self._work / folder / RECORDS / name for name in names]
                [about] = self._share.read([self._work / folder / ABOUT])
                for path, data in zip(paths, self._share.read(paths), strict=True):
                    if data is not None:
                        of = self._described(kind, fingerprint, about or b"{}", data)
                        roster = parsed(self._share, path, data, of)
                        if roster is not None:
                            yield PiecesPart(of, roster)

    def _described(self, kind: str, fingerprint: str, about: bytes, record: bytes) -> StoredDerivation:
        with tempfile.NamedTemporaryFile(dir=self._work, suffix=".sealed.arrow") as file:
            file.write(record)
            file.flush()
            slots = slots_in(Path(file.name)) or ({}, ())
        facts: dict[str, Any] = seal.parse_json(self._work / ABOUT, about)
        facts = {name: value for name, value in facts.items() if name not in ("kind", "seal")}
        return StoredDerivation(kind, fingerprint, *slots, facts)

    def caches(self, wanted: set[str]) -> Iterator[CachePart]:
        folders = {name.split("/")[1] for name in self._names(CACHES) if "/ledger/" in name}
        for fingerprint in sorted(folders & wanted):
            folder = self._work / CACHES / fingerprint
            [about] = self._share.read([folder / CACHE_ABOUT])
            paths = [folder / "ledger" / name for name in sorted(self.records(f"{CACHES}/{fingerprint}"))]
            for path, data in zip(paths, self._share.read(paths), strict=True):
                if data is None or about is None:
                    continue
                try:
                    entry = ledger.parse(path, data)
                except DamageError as error:
                    skipped(self._share, path, str(error))
                else:
                    yield CachePart(fingerprint, about, entry, data)

    def records(self, folder: str) -> set[str]:
        inside = "ledger" if folder.startswith(CACHES) else RECORDS
        names, damaged = self._share.names(self._work / folder / inside)
        return {name for name in names if name not in damaged}

    def bring(self, part: PiecesPart | CachePart) -> None:
        """`file` does."""

    def file(self, name: str, size: int | None) -> Path:
        self._share.fetch(self._work / name, size, lambda _: None)
        return self._work / name

    def release(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def take_pieces(self, part: PiecesPart, data: Path, sums: Path) -> None:
        for name, path in zip(part.files(), (data, sums), strict=True):
            self._put_file(name, path)
        facts = {"kind": part.of.KIND, **{k: v for k, v in part.of.about.items() if k not in ("kind", "seal")}}
        folder = self._work / folder_of(part.of)
        self._share.put(folder / ABOUT, seal.sealed_json(facts), absent=True)
        self._share.put(folder / RECORDS / part.name, record_bytes(part.roster, part.of), absent=True)

    def take_cache(self, part: CachePart, files: dict[str, Path]) -> None:
        for name, path in files.items():
            self._put_file(name, path)
        folder = self._work / CACHES / part.of
        self._share.put(folder / CACHE_ABOUT, part.about, absent=True)
        self._share.put(folder / "ledger" / part.name, part.data, absent=True)

    def finish(self) -> None:
        """Nothing is left to do: a record is seen at once."""

    def _names(self, folder: str) -> list[str]:
        with _named():
            store, key = store_of(f"{self._share.uri}/{folder}")
            return [f"{folder}/{each[len(key) + 1 :]}" for each, _ in store.list(f"{key}/")]

    def _put_file(self, name: str, path: Path) -> None:
        with _named():
            store, key = store_of(f"{self._share.uri}/{name}")
            store.put_file(key, path)


@contextmanager
def _named() -> Iterator[None]:
    try:
        yield
    except SourceError as error:
        msg = f"copy: {error}"
        raise CacheError(msg) from None


def _touch(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
