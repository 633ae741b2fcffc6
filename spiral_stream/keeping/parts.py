"""What is kept in parts, and how machines exchange them through a store.

    <folder>/<about>              what it is of, for people and for `spiral copy`
    <folder>/<records>/<part>.*   on a store: the record of one part, put last, so that what is listed is complete
    <folder>/stored/<part>.*      on a machine: records that are known to lie on the store
    <folder>/...                  the files of parts

A part is written once and never changes, so whoever has all that he needs asks the store nothing. What a machine made is
put; records of others are entered; their files come when somebody opens them, verified by their sums.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final, final

from spiral_stream.errors import DamageError
from spiral_stream.keeping.share import ObjectDamageError, Share, is_noted, note, noted, share_of, skipped

FETCHERS: Final = 8  # parts at a time


@final
@dataclass(frozen=True, slots=True)
class PartFile:
    """One file of a part, as its sums describe it."""

    path: Path
    size: int
    wrong: Callable[[Path], str | None]  # says what is wrong with a draft of it, if anything is


class SharedPart(ABC):
    """One part: a record, a file of sums, and the files that these describe."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Of its record; empty if it has none here."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Bytes of its data."""

    @abstractmethod
    def keys(self) -> bytes:
        """Return the content keys of the shards that it holds something of, 16 bytes each."""

    @property
    @abstractmethod
    def sums(self) -> Path:
        """Where its sums lie."""

    @abstractmethod
    def paths(self) -> list[Path]:
        """Return where its other files lie; the last one is there when all of them are."""

    @abstractmethod
    def wrong_sums(self, draft: Path) -> str | None:
        """Say what is wrong with a draft of its sums, if anything is."""

    @abstractmethod
    def files(self, sums: Path) -> list[PartFile]:
        """Return its other files, as the sums in this file describe them; none if they are not its sums."""

    @abstractmethod
    def record(self) -> bytes:
        """Return its record."""


class SharedParts(ABC):
    """The parts of one derivation or cache, in its folder.

    Attributes:
        RECORDS: the folder of records on a store.
        ABOUT: the file that says what this is of.
    """

    RECORDS: ClassVar[str]
    ABOUT: ClassVar[str]

    def __init__(self, folder: Path) -> None:
        self.folder, self.share = folder, share_of(folder)

    @abstractmethod
    def about(self) -> bytes:
        """Return what this is of, sealed."""

    @abstractmethod
    def names(self) -> list[str]:
        """Return the records that were entered here."""

    @abstractmethod
    def parts(self, names: Collection[str]) -> Iterator[SharedPart]:
        """Yield those of some names that were entered here."""

    @abstractmethod
    def parsed(self, path: Path, record: bytes) -> SharedPart:
        """Return the part that a record of the store describes.

        Raises:
            DamageError: it is not what was written.
        """

    @abstractmethod
    def enter(self, parts: Sequence[SharedPart], unsure: Collection[str]) -> None:
        """Enter parts whose files come later; ``unsure`` ones that are here may go where others have all that they hold."""

    @abstractmethod
    def take(self, part: SharedPart, files: Mapping[Path, Path]) -> None:
        """Enter a part of another machine, whose verified files lie elsewhere: they are copied to where they belong."""

    @abstractmethod
    def under(self, root: Path) -> "SharedParts":
        """Return the same of another prepared folder."""

    def lost(self, part: SharedPart, error: ObjectDamageError) -> DamageError:
        """Note that a part is damaged on the store, so that it is made again; returns what to raise."""
        del part
        return error

    def unknown(self) -> list[str]:
        """Return the parts that are here and not on the store, as far as is known."""
        known = noted(self.folder)
        return [name for name in self.names() if name not in known]

    def is_away(self, name: str, path: Path) -> bool:
        """Whether a file of a part lies on the store only."""
        return self.share is not None and not path.exists() and is_noted(self.folder, name)

    def pull(self, unsure: Collection[str] = ()) -> None:
        """Enter the records that the store has and this machine does not know; one request, and one for each of them.

        Args:
            unsure: names of parts that were not put, and need not be where others have all that they hold.

        Raises:
            CacheError: the store failed, or the folder cannot be written.
        """
        share = self.share
        if share is None or not share.is_due(self.folder):
            return
        folder = self.folder / self.RECORDS
        names, damaged = share.names(folder)
        new = sorted(names - damaged - noted(self.folder))
        found = share.read([folder / name for name in new])
        there = {folder / name: data for name, data in zip(new, found, strict=True) if data is not None}
        if there:
            self.enter(list(sound(self, share, there)), unsure)
            for path in there:
                note(self.folder, path.name)

    def push(self, names: Iterable[str] | None = None) -> None:
        """Put parts that this machine made and the store has not: their files first, then their records.

        Args:
            names: of their records; by default all that are unknown.

        Raises:
            CacheError: the store failed.
        """
        share = self.share
        if share is None:
            return
        for name in self.unknown() if names is None else names:
            with share.turn(self.folder / self.RECORDS / name):
                for part in () if is_noted(self.folder, name) else self.parts([name]):
                    files = [path for path in (part.sums, *part.paths()) if path.exists()]
                    put(share, self, part, dict(zip(files, files, strict=True)))
                    note(self.folder, name)

    def fetch(self, part: SharedPart, *, but: Collection[Path] = ()) -> None:
        """Let the files of a part be here, verified, if they lie on the store; where they lie here nothing is done.

        Args:
            part: that was entered here.
            but: files that are not needed.

        Raises:
            DamageError: an object is missing, or not what was written: it is marked, so that the part is made again.
            CacheError: the store failed.
        """
        share = self.share
        if share is None or all(path.exists() for path in (part.sums, *part.paths()) if path not in but):
            return
        if not is_noted(self.folder, part.name):
            return  # made here, and lost
        try:
            share.fetch(part.sums, None, part.wrong_sums)
            for each in part.files(part.sums):
                if each.path not in but:
                    share.fetch(each.path, each.size, each.wrong)
        except ObjectDamageError as error:
            share.mark_damaged(self.folder / self.RECORDS / part.name)
            raise self.lost(part, error) from None

    def fetch_all(self, parts: Sequence[SharedPart]) -> None:
        """Let the files of some parts be here, several at a time; see `fetch`."""
        away = [] if self.share is None else [each for each in parts if not each.paths()[-1].exists()]
        if away:
            with ThreadPoolExecutor(min(FETCHERS, len(away)), "spiral-prepared") as pool:
                for _ in pool.map(self.fetch, away):
                    pass


def put(share: Share, parts: SharedParts, part: SharedPart, files: Mapping[Path, Path]) -> None:
    """Put a part: its files, what it is of, and its record last.

    Args:
        share: the store.
        parts: what it belongs to, in the share's folder.
        part: what to put.
        files: where each file lies in the share's folder -> where its bytes are.

    Raises:
        CacheError: the store failed.
    """
    for path, held in files.items():
        share.put_file(path, held)
    share.put(parts.folder / parts.ABOUT, parts.about(), absent=True)
    share.put(parts.folder / parts.RECORDS / part.name, part.record(), absent=True)


def sound(parts: SharedParts, share: Share, records: Mapping[Path, bytes]) -> Iterator[SharedPart]:
    """Yield what records describe; one that is not what was written is marked, with a warning, so that it is made again."""
    for path, data in records.items():
        try:
            yield parts.parsed(path, data)
        except DamageError as error:
            skipped(share, path, str(error))
