"""Copy prepared data between folders and object stores, in either direction: put the records that the target has not.

A part is copied when all of its bytes were verified by its sums, and its record is entered last, so a copy that was ended
goes on where it stopped. SharedParts go side by side, and each needs its own room on this disk for as long as it passes through.
"""

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from spiral_stream.cache.store.shared import ABOUT as CACHE_ABOUT
from spiral_stream.cache.store.shared import CacheParts
from spiral_stream.cache.store.store import CacheStore
from spiral_stream.derived.folder import SHARED, StoredDerivation, StoredPieces
from spiral_stream.derived.index import FILE, RosterFile, slots_in
from spiral_stream.derived.shared_parts import ABOUT, PiecesParts
from spiral_stream.display.progress import Report, working
from spiral_stream.errors import CacheError, DamageError, SourceError, cut, warn
from spiral_stream.integrity import seal
from spiral_stream.integrity.one_look import look
from spiral_stream.keeping.parts import SharedPart, SharedParts, put, sound
from spiral_stream.keeping.share import DAMAGED, Share
from spiral_stream.sources.files.paths import local_folder
from spiral_stream.storage.open import store_of
from spiral_stream.storage.uri import parse_uri, printable, scheme_of

TOGETHER: Final = 8  # parts
_SHORTEST: Final = 6  # digits of a fingerprint that is asked for
_DERIVED: Final = "derived"
_CACHES: Final = "caches"


@final
@dataclass(frozen=True, slots=True)
class Copied:
    """What a copy has done.

    Attributes:
        parts: that were copied.
        bytes: of their data.
        there: parts that the target had before.
        damaged: parts that are not what was written, and were not copied.
    """

    parts: int
    bytes: int
    there: int
    damaged: int


def copy_prepared(source: str, target: str, only: Sequence[str] = (), report: Report | None = None) -> Copied:
    """Copy prepared data: parts of derivations and of caches, with their records.

    Args:
        source: a prepared folder, or the URI of one on an object store.
        target: likewise; a folder is made.
        only: fingerprints, or how they begin; by default all.
        report: called after every part, with the bytes of what was copied.

    Raises:
        CacheError: a fingerprint is not there, a place cannot be reached, or cannot be written.
    """
    with ExitStack() as stack:
        one, other = _side(source, "from", stack), _side(target, "to", stack)
        folders = one.folders()
        if not folders:
            msg = f"copy: nothing that was prepared lies in {cut(printable(source))}. {_elsewhere(source)}"
            raise CacheError(msg)
        wanted = _wanted({folder.rpartition("/")[2] for folder in folders}, only, source)
        todo: list[PartOf] = []
        there = 0
        for folder in sorted(folders):
            if folder.rpartition("/")[2] in wanted:
                have = other.records(folder)
                for parts, part in one.parts(folder):
                    there += part.name in have
                    if part.name not in have:
                        todo.append((parts, part))
        copied = size = 0
        total = sum(part.size for _, part in todo)
        with (
            working(f"copy to {cut(printable(target))}", "bytes", total, report=report) as tell,
            ThreadPoolExecutor(TOGETHER, "spiral-copy") as pool,
        ):
            for (_, part), good in zip(todo, pool.map(lambda copy: _copied(copy, one, other), todo), strict=True):
                copied, size = copied + good, size + part.size * good
                tell(size)
        other.finish()
        return Copied(copied, size, there, len(todo) - copied)


PartOf = tuple[SharedParts, SharedPart]


def _copied(copy: PartOf, one: "CopySide", other: "CopySide") -> bool:
    """Copy a part; of one that is damaged, warn and return False."""
    parts, part = copy
    held: dict[Path, Path] = {}
    try:
        held[part.sums] = one.held(parts, part, part.sums, None)
        found = part.wrong_sums(held[part.sums])
        if found is not None:
            raise seal.damaged(part.sums, found)
        for each in part.files(held[part.sums]):
            held[each.path] = one.held(parts, part, each.path, each.size)
            found = each.wrong(held[each.path])
            if found is not None:
                raise seal.damaged(each.path, found)
        other.take(parts, part, held)
    except DamageError as error:
        warn(f"copy: {str(error).removesuffix(seal.MENDED)}It is not copied")
        return False
    finally:
        for path in held.values():
            one.release(path)
    return True


class CopySide(ABC):
    """Prepared data somewhere: folders below ``derived`` and ``caches``, each with the parts of a derivation or cache."""

    @abstractmethod
    def folders(self) -> set[str]:
        """Return what lies here."""

    @abstractmethod
    def parts(self, folder: str) -> Iterator[PartOf]:
        """Yield the parts in a folder."""

    @abstractmethod
    def records(self, folder: str) -> set[str]:
        """Return the names of the parts in a folder."""

    @abstractmethod
    def held(self, parts: SharedParts, part: SharedPart, path: Path, size: int | None) -> Path:
        """Return a file of a part, or a copy of it; give it back with `release`.

        Raises:
            DamageError: it is missing, or has another size.
            CacheError: the store failed.
        """

    @abstractmethod
    def release(self, path: Path) -> None:
        """Remove a copy."""

    @abstractmethod
    def take(self, parts: SharedParts, part: SharedPart, files: Mapping[Path, Path]) -> None:
        """Let a part of the other side be here; its files are verified."""

    @abstractmethod
    def finish(self) -> None:
        """Let readers see what was taken."""


@final
class FolderSide(CopySide):
    """A folder of this machine: a prepared folder, or a working folder of a store."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._taken: dict[Path, CacheParts] = {}

    def folders(self) -> set[str]:
        found = [*self._root.glob(f"{_DERIVED}/*/*/{FILE}"), *self._root.glob(f"{_CACHES}/*/{CACHE_ABOUT}")]
        return {path.parent.relative_to(self._root).as_posix() for path in found}

    def parts(self, folder: str) -> Iterator[PartOf]:
        parts = self._opened(folder)
        for part in parts.parts(set(parts.names())):
            yield parts, part

    def records(self, folder: str) -> set[str]:
        about = FILE if folder.startswith(_DERIVED) else CACHE_ABOUT
        return set(self._opened(folder).names()) if (self._root / folder / about).exists() else set()

    def held(self, parts: SharedParts, part: SharedPart, path: Path, size: int | None) -> Path:
        parts.fetch(part)
        found = look(path)
        if found is None or size not in (None, found.st_size):
            raise seal.damaged(path, "it is missing, or has another size")
        return path

    def release(self, path: Path) -> None:
        """Nothing was copied."""

    def take(self, parts: SharedParts, part: SharedPart, files: Mapping[Path, Path]) -> None:
        here = parts.under(self._root)
        here.take(part, files)
        if isinstance(here, CacheParts):
            self._taken[here.folder] = here

    def finish(self) -> None:
        for folder in self._taken:
            CacheStore(folder, seal.read_json(folder / CACHE_ABOUT)).commit()

    def _opened(self, folder: str) -> SharedParts:
        path = self._root / folder
        if folder.startswith(_DERIVED):
            return PiecesParts(StoredPieces(self._root, path).file)
        return CacheParts(path, seal.read_json(path / CACHE_ABOUT))


@final
class StoreSide(CopySide):
    """A place on an object store.

    Args:
        uri: of it.
        work: an empty folder, for what passes through.
    """

    def __init__(self, uri: str, work: Path) -> None:
        self._work = work
        self.share = Share(work, uri.rstrip("/"), "", "copy")

    def folders(self) -> set[str]:
        return {
            name.rpartition(f"/{inside}/")[0]
            for top, inside in ((_DERIVED, PiecesParts.RECORDS), (_CACHES, CacheParts.RECORDS))
            for name in self._sizes(top)
            if f"/{inside}/" in name
        }

    def parts(self, folder: str) -> Iterator[PartOf]:
        path = self._work / folder
        is_derived = folder.startswith(_DERIVED)
        names = [path / _records(folder) / name for name in sorted(self.records(folder))]
        found = {name: data for name, data in zip(names, self.share.read(names), strict=True) if data is not None}
        [about] = self.share.read([path / (ABOUT if is_derived else CACHE_ABOUT)])
        for name, data in found.items():
            if is_derived:
                parts: SharedParts = self._described(path, about or b"{}", data)
            elif about is not None:
                parts = CacheParts(path, seal.parse_json(path / CACHE_ABOUT, about))
            else:
                continue
            for part in sound(parts, self.share, {name: data}):
                yield parts, part

    def records(self, folder: str) -> set[str]:
        names, damaged = self.share.names(self._work / folder / _records(folder))
        return names - damaged

    def held(self, parts: SharedParts, part: SharedPart, path: Path, size: int | None) -> Path:
        del parts, part
        self.share.fetch(path, size, lambda _: None)
        return path

    def release(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def take(self, parts: SharedParts, part: SharedPart, files: Mapping[Path, Path]) -> None:
        here = parts.under(self._work)
        lie = {here.folder / path.relative_to(parts.folder): held for path, held in files.items()}
        put(self.share, here, part, lie)

    def finish(self) -> None:
        """Nothing is left to do: a record is seen at once."""

    def files(self) -> dict[str, tuple[set[str], dict[str, int]]]:
        """Return of each folder the names of its sound records, and the files of parts and damaged records with their bytes."""
        found: dict[str, dict[str, int]] = {}
        for top, depth in ((_DERIVED, 3), (_CACHES, 2)):
            for name, size in self._sizes(top).items():
                steps = name.split("/")
                found.setdefault("/".join(steps[:depth]), {})["/".join(steps[depth:])] = size
        return {folder: _records_and_files(f"{_records(folder)}/", sizes) for folder, sizes in found.items()}

    def records_of(self, folder: str) -> Path:
        """Return where the records of a folder lie."""
        return self._work / folder / _records(folder)

    def _described(self, path: Path, about: bytes, record: bytes) -> PiecesParts:
        with tempfile.NamedTemporaryFile(dir=self._work, suffix=".sealed.arrow") as file:
            file.write(record)
            file.flush()
            slots = slots_in(Path(file.name)) or ({}, ())
        facts: dict[str, Any] = seal.parse_json(self._work / ABOUT, about)
        facts = {name: value for name, value in facts.items() if name not in ("kind", "seal")}
        return PiecesParts(RosterFile(self._work, StoredDerivation(path.parent.name, path.name, *slots, facts)))

    def _sizes(self, folder: str) -> dict[str, int]:
        try:
            store, key = store_of(f"{self.share.uri}/{folder}")
            return {f"{folder}/{each[len(key) + 1 :]}": facts.size for each, facts in store.list(f"{key}/")}
        except SourceError as error:
            msg = f"copy: {error}"
            raise CacheError(msg) from None


def _records(folder: str) -> str:
    """The folder of records in the folder of a derivation or cache."""
    return PiecesParts.RECORDS if folder.startswith(_DERIVED) else CacheParts.RECORDS


def _records_and_files(records: str, sizes: Mapping[str, int]) -> tuple[set[str], dict[str, int]]:
    """The names of sound records, and the files of parts and damaged records, of all that lies in a folder."""
    sound, files = set[str](), dict[str, int]()
    for file, size in sizes.items():
        if not file.startswith(records):
            files |= {file: size} if "/" in file else {}  # others say what the whole is, and who makes it
        elif f"{file}{DAMAGED}" in sizes:
            files[file] = size
        elif not file.endswith(DAMAGED):
            sound.add(file.removeprefix(records))
    return sound, files


def _wanted(have: set[str], only: Sequence[str], source: str) -> set[str]:
    """The fingerprints that are asked for."""
    if not only:
        return have
    out: set[str] = set()
    for each in only:
        found = {name for name in have if len(each) >= _SHORTEST and name.startswith(each)}
        if not found:
            msg = (
                f"copy: {cut(printable(source))} has no derivation or cache {cut(each)}. Give at least {_SHORTEST} digits of a "
                f"fingerprint; it has {', '.join(sorted(have)[:5]) or 'none'}"
            )
            raise CacheError(msg)
        out |= found
    return out


def _elsewhere(source: str) -> str:
    """Say where prepared data may lie, if not at a place that was given."""
    if scheme_of(source) in SHARED:
        return "Correct the URI"
    below = local_folder(source) / "prepared"  # of a catalog
    return f"Give {cut(str(below))}" if below.is_dir() else "Correct the folder"


def _side(location: str, which: str, stack: ExitStack) -> CopySide:
    if scheme_of(location) in SHARED:
        parse_uri(location)
        return StoreSide(location, Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="spiral-copy-"))))
    root = local_folder(location)
    if which == "from" and not root.is_dir():
        msg = f"copy: {cut(str(root))} is no folder. Give a prepared folder, or the URI of one on an object store"
        raise CacheError(msg)
    return FolderSide(root)
