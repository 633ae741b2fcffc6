"""The finished parts of a cache as parts that machines exchange.

The files of a part lie on the store under their names in the folder, and its record is its entry in the ledger. Entries of
others are written into the ledger here, and committed here: no version of the dataset is shared.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from shutil import copyfile
from typing import Final, final

from spiral_stream.cache.store.checksums import HEAD, PartFiles, words_in, wrong_data
from spiral_stream.cache.store.ledger import Ledger, LedgerEntry, parse
from spiral_stream.cache.store.sweep import WRITERS
from spiral_stream.derived.shared_parts import wrong_blocks
from spiral_stream.errors import CacheError, DamageError
from spiral_stream.integrity import seal
from spiral_stream.integrity.locks import share as shared_lock
from spiral_stream.integrity.publish import new_draft, write_file
from spiral_stream.keeping.parts import PartFile, SharedPart, SharedParts
from spiral_stream.keeping.share import ObjectDamageError, forget, noted

ABOUT: Final = "cache.json"


@final
class CachePart(SharedPart):
    """One part of a cache.

    Args:
        held: its files.
        name: of its entry in the ledger.
        entry: the entry, where it is known.
        data: the bytes of the entry.
    """

    def __init__(self, held: PartFiles, name: str, entry: LedgerEntry | None = None, data: bytes = b"") -> None:
        self.held, self.entry, self._name, self._data = held, entry, name, data

    @property
    def name(self) -> str:
        return self._name

    @property
    def size(self) -> int:
        return 0 if self.entry is None else self.entry.bytes

    def keys(self) -> bytes:
        return b"" if self.entry is None else bytes.fromhex(self.entry.key)

    @property
    def sums(self) -> Path:
        return self.held.sums_file

    def paths(self) -> list[Path]:
        return [self.held.blob, self.held.data]

    def wrong_sums(self, draft: Path) -> str | None:
        return None if words_in(draft, self.held.sums) is not None else "its sums are cut or altered"

    def files(self, sums: Path) -> list[PartFile]:
        words = words_in(sums, self.held.sums)
        if words is None:
            return []
        blob = PartFile(self.held.blob, int(words[HEAD - 1]), lambda draft: wrong_blocks(draft, words[HEAD:]))
        data = PartFile(self.held.data, int(words[1]), lambda draft: wrong_data(draft, words))
        return [blob, data] if blob.size else [data]

    def record(self) -> bytes:
        return self._data


@final
class CacheParts(SharedParts):
    """The parts of a cache, in its folder.

    Args:
        folder: of the cache.
        facts: what its fingerprint covers.
    """

    RECORDS, ABOUT = "ledger", ABOUT

    def __init__(self, folder: Path, facts: Mapping[str, object]) -> None:
        super().__init__(folder)
        self._facts, self.ledger = facts, Ledger(folder / self.RECORDS)
        self._names: dict[str, str] = {}  # data file of a part -> its entry in the ledger

    def about(self) -> bytes:
        return seal.sealed_json(dict(self._facts))

    def names(self) -> list[str]:
        return [path.name for path in self.ledger.files()]

    def unknown(self) -> list[str]:
        """Return the parts that are here and not on the store, and that others did not make."""
        known = noted(self.folder)
        stored = {entry.file for entry in self.ledger.entries() if entry.path.name in known}
        return [entry.path.name for entry in self.ledger.needed(stored) if entry.path.name not in known]

    def parts(self, names: Collection[str]) -> Iterator[CachePart]:
        for path in self.ledger.files():
            if path.name in names:
                with suppress(FileNotFoundError):
                    yield self.parsed(path, path.read_bytes())

    def parsed(self, path: Path, record: bytes) -> CachePart:
        entry = parse(path, record)
        return CachePart(self.files_of(entry), path.name, entry, record)

    def files_of(self, entry: LedgerEntry) -> PartFiles:
        """Return the files of a part."""
        return PartFiles(self.folder, entry.key, entry.file, entry.sums)

    def enter(self, parts: Sequence[SharedPart], unsure: Collection[str] = ()) -> None:
        """Write entries of others into the ledger; the caller is a writer."""
        del unsure  # an entry more does no harm: `needed` leaves it out
        if parts:
            self.ledger.folder.mkdir(parents=True, exist_ok=True)
            self._uncommitted.touch()
            if not (self.folder / ABOUT).exists():
                write_file(self.folder / ABOUT, self.about())
        for each in parts:
            write_file(self.ledger.folder / each.name, each.record())

    def take(self, part: SharedPart, files: Mapping[Path, Path]) -> None:
        assert isinstance(part, CachePart)
        root = part.held.folder
        self.ledger.folder.mkdir(parents=True, exist_ok=True)
        held = shared_lock(self.folder / WRITERS)  # nobody removes files that no entry names meanwhile
        try:
            for path, lies in files.items():
                target = self.folder / path.relative_to(root)
                target.parent.mkdir(parents=True, exist_ok=True)
                draft, lock = new_draft(self.folder / "sums" / part.held.stem, _touch)
                copyfile(lies, draft)
                draft.replace(target)
                lock.release()
            self.enter([part])
        finally:
            if held is not None:
                held.release()

    def under(self, root: Path) -> "CacheParts":
        return CacheParts(root / "caches" / self.folder.name, self._facts)

    def lost(self, part: SharedPart, error: ObjectDamageError) -> DamageError:
        assert isinstance(part, CachePart)
        part.held.mark.parent.mkdir(exist_ok=True)
        part.held.mark.touch()
        return DamageError(f"cache: {error}: stream.materialize()")

    # ---- what was entered, and is not committed

    @property
    def _uncommitted(self) -> Path:
        return self.folder / "uncommitted"

    @property
    def are_committed(self) -> bool:
        """Whether readers see all entries of others."""
        return not self._uncommitted.exists()

    def committed(self) -> None:
        """Note that all entries of others are committed."""
        self._uncommitted.unlink(missing_ok=True)

    # ---- for readers

    def fetch_files(self, held: PartFiles, *, payload: bool = True) -> None:
        """Let the files of a part be here; see `fetch`."""
        if self.share is not None and not all(path.exists() for path in (held.data, held.sums_file, held.blob)):
            self.fetch(CachePart(held, self._name_of(held)), but=() if payload else (held.blob,))

    def mended(self, name: str, entry: LedgerEntry | None) -> None:
        """Forget an entry whose part is damaged here, so that the store's takes its place; not if that one is damaged."""
        if self.share is None:
            return
        part = None if entry is None else self.files_of(entry)
        if part is None or part.data.exists() or part.blob.exists():
            forget(self.folder, name)
            if part is not None:
                part.remove()

    def _name_of(self, part: PartFiles) -> str:
        if part.file not in self._names:
            with suppress(CacheError):
                self._names = {entry.file: entry.path.name for entry in self.ledger.entries()}
        return self._names.get(part.file, "")


def _touch(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
