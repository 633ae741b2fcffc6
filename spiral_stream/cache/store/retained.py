"""Which parts of a cache on disk belong to shards that still exist, who uses the cache, and the removal of the rest."""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, final

from spiral_stream.cache.store.ledger import LedgerEntry
from spiral_stream.cache.store.store import CacheStore
from spiral_stream.cache.store.sweep import READERS, WRITERS, Usage
from spiral_stream.integrity import seal
from spiral_stream.integrity.locks import alone
from spiral_stream.integrity.one_look import size_of, written_at
from spiral_stream.integrity.publish import take_out
from spiral_stream.keeping.share import forget


@final
class StoredCache:
    """The folder of one payload cache.

    Args:
        folder: its place.

    Raises:
        DamageError: its description is not what was written.
    """

    def __init__(self, folder: Path) -> None:
        facts = seal.read_json(folder / "cache.json")
        self.facts: Mapping[str, Any] = {name: facts[name] for name in facts if name != "seal"}
        self.store = CacheStore(folder, self.facts)

    @property
    def form(self) -> str:
        """What is stored of each row, in words."""
        kind = self.facts.get("kind")
        profile = self.facts.get("profile")
        words = [str(kind[0])] if kind else []
        return ", ".join([*words, *([] if profile is None else [_shown(profile)])])

    def usage(self, present: Collection[str]) -> Usage:
        """Return bytes on disk; parts of shards that are not there are dead.

        Args:
            present: content keys of the shards that are there.

        Raises:
            DamageError: the ledger is not what was written.
        """
        found = self.store.usage()
        gone = sum(self._bytes(entry) for entry in self._gone(present))
        return Usage(max(0, found.live_bytes - gone), found.dead_bytes + gone)

    def remove_dead(self, present: Collection[str], before: float) -> bool:
        """Remove the parts of shards that are not there, and what nobody names; returns whether nobody has it open.

        Args:
            present: content keys of the shards that are there.
            before: parts that were written later stay, in seconds since 1970.

        Raises:
            DamageError: the ledger is not what was written.
            CacheError: the folder cannot be written.
        """
        with alone(self.store.folder / READERS) as no_reader, alone(self.store.folder / WRITERS) as no_writer:
            is_alone = no_reader and no_writer
        if is_alone:
            gone = [entry for entry in self._gone(present) if written_at(entry.path) < before]
            for entry in gone:
                entry.path.unlink(missing_ok=True)
                forget(self.store.folder, entry.path.name)  # it lies on the store, where there is one
            if gone:
                self.store.commit()
            self.store.sweep()  # what a reader that came meanwhile has open stays until the next sweep
        return is_alone

    def remove(self) -> bool:
        """Remove all of it, unless somebody has it open; whether it is gone.

        Raises:
            OSError: it cannot be removed.
        """
        folder = self.store.folder
        with alone(folder / WRITERS) as no_writer, alone(folder / READERS) as no_reader:
            if no_writer and no_reader:
                take_out(folder)
            return no_writer and no_reader

    def _gone(self, present: Collection[str]) -> Iterator[LedgerEntry]:
        return (entry for entry in self.store.ledger.entries() if entry.key not in present)

    def _bytes(self, entry: LedgerEntry) -> int:
        part = self.store.part(entry)
        return size_of(part.data) + size_of(part.blob)


def _shown(profile: Mapping[str, Any]) -> str:
    values = {name: value for name, value in profile.items() if name not in ("@class", "@version")}
    inside = ", ".join(f"{name}={value}" for name, value in values.items())
    return f"{profile.get('@class', 'profile')}({inside})"
