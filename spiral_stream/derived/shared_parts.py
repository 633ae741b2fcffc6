"""The pieces of a derivation as parts that machines exchange.

derived/<kind>/<fingerprint>/parts/*                a part's data and sums, as in a folder
derived/<kind>/<fingerprint>/records/<part>.*       the roster of one part
derived/<kind>/<fingerprint>/derivation.json        what it is of
derived/<kind>/<fingerprint>/leases.json            who makes what (`store_leases`)
"""

import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from shutil import copyfile
from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.derived.index import (
    Keys,
    PartFacts,
    Roster,
    RosterFile,
    read_roster,
    record_of,
    write_roster,
)
from spiral_stream.derived.part import SUMS, Written, digest_of
from spiral_stream.errors import DamageError
from spiral_stream.integrity import seal
from spiral_stream.integrity.blocks import SHIFT, Mapped, verify_block
from spiral_stream.integrity.publish import mended, new_draft
from spiral_stream.keeping.parts import PartFile, SharedPart, SharedParts
from spiral_stream.keeping.share import ObjectDamageError, note

ABOUT: Final = "derivation.json"


@final
class PiecesPart(SharedPart):
    """One part of a derivation.

    Args:
        file: the roster that it is in, or comes to.
        facts: of it.
        roster: of this part alone, where it is known.
    """

    def __init__(self, file: RosterFile, facts: PartFacts, roster: Roster | None = None) -> None:
        self.facts, self.roster = facts, roster
        self._file, self._data = file, file.part_path(facts)

    @property
    def name(self) -> str:
        return record_of(self.facts)

    @property
    def size(self) -> int:
        return self.facts.size

    def keys(self) -> bytes:
        assert self.roster is not None
        return self.roster.keys.tobytes()

    @property
    def sums(self) -> Path:
        return self._data.with_suffix(SUMS)

    def paths(self) -> list[Path]:
        return [self._data]

    def wrong_sums(self, draft: Path) -> str | None:
        try:
            data = seal.content(draft)
        except DamageError:
            return "its sums are cut or altered"
        return None if digest_of(data) == self.facts.digest else "its sums are those of another part"

    def files(self, sums: Path) -> list[PartFile]:
        words = np.frombuffer(seal.content(sums), np.uint64)
        return [PartFile(self._data, self.facts.size, lambda draft: wrong_blocks(draft, words))]

    def record(self) -> bytes:
        assert self.roster is not None
        with tempfile.TemporaryDirectory(prefix="spiral-") as folder:
            draft = Path(folder) / "record"
            write_roster(draft, self.roster, self._file.derivation)
            seal.seal(draft, ".arrow")
            return draft.read_bytes()


@final
class PiecesParts(SharedParts):
    """The parts of a derivation, in its folder."""

    RECORDS, ABOUT = "records", ABOUT

    def __init__(self, file: RosterFile) -> None:
        super().__init__(file.folder)
        self.file = file

    def about(self) -> bytes:
        of = self.file.derivation
        return seal.sealed_json({**of.facts(), "kind": of.KIND})

    def names(self) -> list[str]:
        return [record_of(facts) for facts in self.here().parts]

    def here(self) -> Roster:
        """Return the roster of this machine; one that is damaged is set aside with a warning."""
        file = self.file
        return mended(file.path, file.peek, file.begin) if file.path.exists() else file.peek()

    def parts(self, names: Collection[str]) -> Iterator[PiecesPart]:
        roster = self.here()
        for at, facts in enumerate(roster.parts):
            if record_of(facts) in names:
                yield PiecesPart(self.file, facts, roster.only(roster.part == at))

    def parsed(self, path: Path, record: bytes) -> PiecesPart:
        with tempfile.TemporaryDirectory(prefix="spiral-") as folder:
            draft = Path(folder) / path.name
            draft.write_bytes(record)
            roster = read_roster(draft, self.file.derivation)
        if [record_of(each) for each in roster.parts] != [path.name]:
            raise seal.damaged(path, "it is another part's")
        return PiecesPart(self.file, roster.parts[0], roster)

    def enter(self, parts: Sequence[SharedPart], unsure: Collection[str]) -> None:
        rosters = [each.roster for each in parts if isinstance(each, PiecesPart) and each.roster is not None]
        self.file.prepare()
        self.file.enter(rosters, {facts for facts in self.file.peek().parts if record_of(facts) in unsure})

    def take(self, part: SharedPart, files: Mapping[Path, Path]) -> None:
        assert isinstance(part, PiecesPart)
        assert part.roster is not None
        file, roster = self.file, part.roster
        [data] = part.paths()
        file.prepare()
        words = np.frombuffer(seal.content(files[part.sums]), np.uint64)
        draft, held = new_draft(file.parts / part.facts.name, Path.touch)
        try:
            copyfile(files[data], draft)
            file.commit(
                [(draft, roster.keys, Written(roster.offsets, roster.counts, roster.summaries, words, part.size))]
            )
        finally:
            held.release()
            draft.unlink(missing_ok=True)

    def under(self, root: Path) -> "PiecesParts":
        return PiecesParts(RosterFile(root, self.file.derivation))

    def lost(self, part: SharedPart, error: ObjectDamageError) -> DamageError:
        assert isinstance(part, PiecesPart)
        self.file.drop(part.facts)
        note(self.folder, part.name)  # and is never entered again
        return error


def meet(file: RosterFile, keys: Keys) -> None:
    """Enter what the store has, if a shard has no piece here; put what was not put yet, unless others made it meanwhile.

    Raises:
        CacheError: the store failed, or the folder cannot be written.
    """
    if file.share is not None:
        parts = PiecesParts(file)
        unsure = parts.unknown()
        if unsure:
            file.share.ask_again(file.folder)
        if unsure or not bool((parts.here().find(keys) >= 0).all()):
            parts.pull(unsure)
        parts.push()


def wrong_blocks(draft: Path, sums: NDArray[np.uint64]) -> str | None:
    """Say which block of a file is not the one that was written, if any is not."""
    if not draft.stat().st_size:
        return None
    mapped = Mapped(str(draft))
    mapped.expect(sums, SHIFT)
    for block in range(len(sums)):
        found: str | None = verify_block(mapped, block)
        if found is not None:
            return found
    return None
