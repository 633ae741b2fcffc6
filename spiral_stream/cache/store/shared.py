"""A cache that machines share through a store: its finished parts, and the ledger's entries for them.

The files of a part lie on the store under their names in the folder. The entry of the ledger is put last, so every entry
that is listed has its files. Entries of others are written into the ledger here, and committed here: no version of
the dataset is shared. Files of a part come when a reader opens it.
"""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, final

from spiral_stream.cache.store.checksums import HEAD, PartFiles, words_in, wrong_data
from spiral_stream.cache.store.ledger import Ledger, LedgerEntry, parse
from spiral_stream.derived.exchange import wrong_blocks
from spiral_stream.errors import CacheError, DamageError
from spiral_stream.integrity import seal
from spiral_stream.integrity.publish import write_file
from spiral_stream.keeping.share import STORED, ObjectDamageError, forget, note, noted, share_of, skipped

ABOUT: Final = "cache.json"


@final
class SharedCache:
    """The folder of one cache, and the same on a store; where there is none, nothing is done.

    Args:
        folder: of the cache.
        facts: what its fingerprint covers.
        ledger: of the cache.
    """

    def __init__(self, folder: Path, facts: Mapping[str, object], ledger: Ledger) -> None:
        self._folder, self._facts, self._ledger = folder, facts, ledger
        self.share = share_of(folder)
        self._names: dict[str, str] = {}  # data file of a part -> its entry in the ledger

    def is_due(self) -> bool:
        """Whether the store should be asked what is new."""
        return self.share is not None and self.share.is_due(self._folder)

    def ask_again(self) -> None:
        """Let the store be asked at the next occasion."""
        if self.share is not None:
            self.share.ask_again(self._folder)

    def pull(self) -> bool:
        """Enter the entries that the store has and this machine does not know. The caller is a writer.

        Returns:
            whether an entry of others was not committed here yet.

        Raises:
            CacheError: the store failed, or the folder cannot be written.
        """
        share, ledger = self.share, self._ledger.folder
        if share is None:
            return False
        names, damaged = share.names(ledger)
        new = sorted(names - damaged - noted(self._folder))
        if new:
            self._folder.mkdir(parents=True, exist_ok=True)
        for name, data in zip(new, share.read([ledger / name for name in new]), strict=True):
            if data is None:
                continue
            try:
                entry = parse(ledger / name, data)
            except DamageError as error:
                skipped(share, ledger / name, str(error))
            else:
                if entry.stem not in damaged:
                    self._uncommitted.touch()
                    self._write(ledger / name, data)
            note(self._folder, name)
        return self._uncommitted.exists()

    def committed(self) -> None:
        """Note that all entries that were pulled are committed."""
        self._uncommitted.unlink(missing_ok=True)

    @property
    def _uncommitted(self) -> Path:
        return self._folder / "uncommitted"

    def _write(self, path: Path, data: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        about = self._folder / ABOUT
        if not about.exists():
            write_file(about, seal.sealed_json(dict(self._facts)))
        write_file(path, data)

    def push_rest(self) -> None:
        """Put the parts that were made here and not put, since their maker was killed, and that others did not make.

        Raises:
            CacheError: the store failed.
        """
        if self.share is not None:
            known = noted(self._folder)
            stored = {entry.file for entry in self._ledger.entries() if entry.path.name in known}
            for entry in self._ledger.needed(stored):
                if entry.path.name not in known:
                    self.push(entry.path)

    def push(self, path: Path) -> None:
        """Put one part that was made here.

        Args:
            path: of its entry in the ledger.

        Raises:
            CacheError: the store failed.
        """
        if self.share is None:
            return
        with self.share.turn(path):
            entry = self._ledger.read(path)
            if entry is None or path.name in noted(self._folder):
                return
            part = PartFiles(self._folder, entry.key, entry.file, entry.sums)
            for each in (part.sums_file, part.blob, part.data):
                if each.exists():
                    self.share.put_file(each)
            about = self._folder / ABOUT
            self.share.put(about, about.read_bytes(), absent=True)
            self.share.put(path, path.read_bytes(), absent=True)
            note(self._folder, path.name)

    def fetch(self, part: PartFiles, *, payload: bool = True) -> None:
        """Let the files of a part be here, verified, if they lie on a store; where they lie here nothing is done.

        Raises:
            DamageError: an object is missing, or not what was written: it is marked, so that the part is made again.
            CacheError: the store failed.
        """
        share, digest = self.share, part.sums
        if share is None or self._is_here(part, payload=payload) or not self._is_stored(part):
            return
        try:
            share.fetch(part.sums_file, None, lambda draft: _wrong_sums(draft, digest))
            words = words_in(part.sums_file, digest)
            if words is None:
                return  # the reader says what is wrong here
            if payload and int(words[HEAD - 1]):
                share.fetch(part.blob, int(words[HEAD - 1]), lambda draft: wrong_blocks(draft, words[HEAD:]))
            share.fetch(part.data, int(words[1]), lambda draft: wrong_data(draft, words))
        except ObjectDamageError as error:
            share.mark_damaged(self._ledger.folder / part.stem)
            part.mark.parent.mkdir(exist_ok=True)
            part.mark.touch()
            msg = f"cache: {error}: stream.materialize()"
            raise DamageError(msg) from None

    def is_away(self, entry: LedgerEntry, path: Path) -> bool:
        """Whether a file of a part lies on the store only."""
        return self.share is not None and not path.exists() and entry.path.name in noted(self._folder)

    def lost(self, name: str, entry: LedgerEntry | None) -> None:
        """Forget an entry whose part is damaged here, so that the store's takes its place; not if that one is damaged."""
        if self.share is None:
            return
        part = None if entry is None else PartFiles(self._folder, entry.key, entry.file, entry.sums)
        if part is None or part.data.exists() or part.blob.exists():
            forget(self._folder, name)
            if part is not None:
                part.remove()

    def _is_here(self, part: PartFiles, *, payload: bool) -> bool:
        return part.data.exists() and part.sums_file.exists() and (part.blob.exists() or not payload)

    def _is_stored(self, part: PartFiles) -> bool:
        if part.file not in self._names:
            with suppress(CacheError):
                self._names = {entry.file: entry.path.name for entry in self._ledger.entries()}
        name = self._names.get(part.file)
        return name is not None and (self._folder / STORED / name).exists()


def _wrong_sums(draft: Path, digest: str) -> str | None:
    return None if words_in(draft, digest) is not None else "its sums are cut or altered"
