"""The folder of derived data: where it lies, what each derivation has in it, and which pieces are of shards that still exist."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import xxhash
from numpy.typing import NDArray

from spiral_stream.derived.index import FILE, Keys, Roster, RosterFile, slots_in
from spiral_stream.derived.part import ALIGN, SUMS
from spiral_stream.errors import CacheError, SourceError, cut
from spiral_stream.integrity import seal
from spiral_stream.integrity.faults import failed
from spiral_stream.integrity.one_look import look, size_of, written_at
from spiral_stream.integrity.publish import write_file
from spiral_stream.keeping.collect import register
from spiral_stream.keeping.in_use import unread
from spiral_stream.keeping.share import share_of, working_folder
from spiral_stream.sources.files.paths import local_folder
from spiral_stream.storage.node_cache.cache import FOLDER_ENV
from spiral_stream.storage.uri import MEMORY, OBJECTS, printable, scheme_of

CACHE_ENV: Final = "SPIRAL_CACHE"
SHARED: Final = OBJECTS | {MEMORY}  # schemes of places that machines share


def derived_root(catalog: Path) -> Path:
    """Return the folder of all derived data: ``$SPIRAL_CACHE``, else ``prepared`` in the catalog's own folder.

    Where ``$SPIRAL_CACHE`` is the URI of an object store, it is the working folder of this machine (`share`).

    Raises:
        CacheError: ``$SPIRAL_CACHE`` names neither a folder of this machine nor a place on an object store.
    """
    folder = os.environ.get(CACHE_ENV) or catalog / "prepared"
    try:
        if isinstance(folder, str) and scheme_of(folder) in SHARED:
            return working_folder(folder)
        return local_folder(folder)
    except SourceError as error:
        clause = str(error).removeprefix(f"{folder} ")
        shown = cut(printable(str(folder)))
        msg = f"${CACHE_ENV}={shown}: caches lie in a local folder, or on an object store (s3://, gs://, az://); this {clause}"
        raise CacheError(msg) from None
    except OSError as error:
        raise failed(
            error, f"Set ${FOLDER_ENV} to a folder that can be written", "its working folder", "cannot be made"
        ) from error


def note_catalog(root: Path, catalog: Path, location: str) -> None:
    """Note that a catalog keeps derived data outside of its own folder, so that no other one takes that for dead.

    Args:
        root: of the derived data.
        catalog: its folder.
        location: the URI that this mirrors, or the folder.
    """
    share = share_of(root)
    if share is not None:
        register(share, location, is_folder=location == str(catalog))
    if root == catalog / "prepared":
        return
    file = root / "catalogs" / xxhash.xxh3_64_hexdigest(str(catalog).encode())
    if not file.exists():
        with suppress(OSError):  # where nothing can be written nothing is removed either
            file.parent.mkdir(parents=True, exist_ok=True)
            write_file(file, str(catalog).encode())


def catalogs_of(root: Path) -> Iterator[Path]:
    """Yield the catalogs that were noted and are still there."""
    for file in sorted((root / "catalogs").glob("[!.]*")):
        folder = Path(file.read_text())
        if folder.is_dir():
            yield folder


@final
@dataclass(frozen=True, slots=True)
class StoredDerivation:
    """A derivation as its folder describes it."""

    KIND: str
    fingerprint: str
    slots: Mapping[str, np.dtype[Any]]
    SUMMARY: tuple[str, ...]
    about: Mapping[str, Any]

    def facts(self) -> dict[str, object]:
        """Return what the fingerprint covers."""
        return dict(self.about)


@final
@dataclass(frozen=True, slots=True)
class StoredPart:
    """One part: bytes on disk, how many of them belong to live pieces, and when it was written."""

    name: str
    bytes: int
    live_bytes: int
    written_at: float


@final
class StoredPieces:
    """The pieces of one derivation, of whichever relation.

    Args:
        root: of the prepared folder.
        folder: of the derivation.

    Raises:
        DamageError: its roster or description is not what was written.
        CacheError: it cannot be read, or its roster does not say how long its pieces are.
    """

    def __init__(self, root: Path, folder: Path) -> None:
        self._root = root
        path = folder / "derivation.json"
        self.facts: Mapping[str, Any] = seal.read_json(path) if path.exists() else {}
        slots = slots_in(folder / FILE) if (folder / FILE).exists() else ({}, ())
        if slots is None:
            msg = f"{folder / FILE} does not say how long its pieces are. Remove {folder}: it is made again when needed"
            raise CacheError(msg)
        about = StoredDerivation(folder.parent.name, folder.name, *slots, self.facts)
        self.file = RosterFile(root, about)
        self.roster = self.file.peek()

    def of(self, keys: Keys) -> bool:
        """Whether a shard with one of these keys has a piece here."""
        return bool((self.roster.find(keys) >= 0).any())

    def parts(self, present: Keys | None) -> Iterator[StoredPart]:
        """Yield every part.

        Args:
            present: keys of the shards that are there; None takes all for present.
        """
        live = self._live_bytes(self.roster, present)
        for at, facts in enumerate(self.roster.parts):
            path = self.file.part_path(facts)
            found = look(path)
            if found is not None:
                more = size_of(path.with_suffix(SUMS))
                used = int(live[at]) + (more if live[at] else 0)
                yield StoredPart(facts.name, facts.size + more, used, found.st_mtime)

    def remove_dead(self, present: Keys, before: float) -> bool:
        """Remove the parts whose pieces are all dead, unless somebody reads or makes pieces here; whether it was tried.

        Args:
            present: keys of the shards that are there.
            before: parts that were written later stay, in seconds since 1970.

        Raises:
            CacheError: the folder cannot be written, or another process holds it for longer than the deadline.
        """

        def stays(roster: Roster) -> NDArray[np.bool_]:
            live = self._live_bytes(roster, present)
            young = [written_at(self.file.part_path(facts)) >= before for facts in roster.parts]
            live_parts: NDArray[np.bool_] = (np.array(young, np.bool_) | (live > 0))[roster.part]
            return live_parts

        with unread(self._root, self.file.derivation.fingerprint) as is_alone:
            if is_alone:
                self.file.keep(stays)
        return is_alone

    def _live_bytes(self, roster: Roster, present: Keys | None) -> NDArray[np.int64]:
        """Shape [parts]: bytes of live pieces; at least 1 where there is one, even if it has no bytes."""
        live = np.full(len(roster.keys), present is None)
        if present is not None:
            rows = roster.find(present)
            live[rows[rows >= 0]] = True
        sizes = np.ones(len(roster.keys), np.int64)
        for k, kind in enumerate(self.file.derivation.slots.values()):
            sizes += -(-roster.counts[:, k].astype(np.int64) * kind.itemsize // ALIGN) * ALIGN
        sizes = np.maximum(sizes - 1, 1)
        found = np.bincount(roster.part[live], weights=sizes[live], minlength=len(roster.parts))
        return found.astype(np.int64)


def described(facts: Mapping[str, Any]) -> str:
    """Return the facts of a derivation for people, in one line."""
    return json.dumps({name: value for name, value in facts.items() if name not in ("kind", "version", "seal")})
