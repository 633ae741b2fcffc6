"""Exchange pieces between machines: put parts made here, enter records of others, fetch their parts when they are opened.

    derived/<kind>/<fingerprint>/parts/*                a part's data and sums, as in a folder
    derived/<kind>/<fingerprint>/records/<part>.*       the roster of one part, put last: what is listed is complete
    derived/<kind>/<fingerprint>/derivation.json        what it is of, for people and for `spiral copy`
    derived/<kind>/<fingerprint>/leases.json            who makes what (`store_leases`)

Whoever finds all pieces here asks the store nothing, since pieces never change.
"""

import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.derived.index import (
    Described,
    Keys,
    PartFacts,
    Roster,
    RosterFile,
    read_roster,
    record_of,
    write_roster,
)
from spiral_stream.derived.part import SUMS, digest_of
from spiral_stream.errors import DamageError
from spiral_stream.integrity import seal
from spiral_stream.integrity.blocks import SHIFT, Mapped, verify_block
from spiral_stream.integrity.publish import mended
from spiral_stream.keeping.share import ObjectDamageError, Share, note, noted, skipped

RECORDS: Final = "records"
ABOUT: Final = "derivation.json"
FETCHERS: Final = 8  # parts at a time


def meet(file: RosterFile, keys: Keys) -> None:
    """Enter what the store has, if a shard has no piece here; put what was not put yet, unless others made it meanwhile.

    Raises:
        CacheError: the store failed, or the folder cannot be written.
    """
    if file.share is not None:
        unsure = _unknown(file)
        if unsure:
            file.share.ask_again(file.folder)
        if unsure or not bool((_here(file).find(keys) >= 0).all()):
            pull(file, unsure)
        push(file)


def pull(file: RosterFile, unsure: Sequence[PartFacts] = ()) -> None:
    """Enter the records that the store has and this machine does not know; one request, and one for each of them.

    Args:
        file: of the roster.
        unsure: parts of it that were not put, and need not be where others have their pieces.

    Raises:
        CacheError: the store failed, or the folder cannot be written.
    """
    share = file.share
    if share is None or not share.is_due(file.folder):
        return
    folder = file.folder / RECORDS
    names, damaged = share.names(folder)
    new = sorted(names - damaged - noted(file.folder))
    found = share.read([folder / name for name in new])
    there = [(name, data) for name, data in zip(new, found, strict=True) if data is not None]
    rosters = [parsed(share, folder / name, data, file.derivation) for name, data in there]
    if there:
        file.prepare()
        file.enter([each for each in rosters if each is not None], unsure)
        for name, _ in there:
            note(file.folder, name)


def push(file: RosterFile) -> None:
    """Put the parts that this machine made and the store has not: their files first, then their records.

    Raises:
        CacheError: the store failed.
    """
    share = file.share
    if share is None or not _unknown(file):
        return
    with share.turn(file.folder / RECORDS):
        for facts in _unknown(file):
            put_part(share, file, file.peek(), facts)
            note(file.folder, record_of(facts))


def _unknown(file: RosterFile) -> list[PartFacts]:
    """The parts that are here and not on the store, as far as is known."""
    known = noted(file.folder)
    return [facts for facts in _here(file).parts if record_of(facts) not in known]


def _here(file: RosterFile) -> Roster:
    """The roster of this machine; one that is damaged is set aside with a warning."""
    return mended(file.path, file.peek, file.begin) if file.path.exists() else file.peek()


def put_part(share: Share, file: RosterFile, roster: Roster, facts: PartFacts) -> None:
    """Put one part of a roster, unless its files are gone.

    Raises:
        CacheError: the store failed.
    """
    path = file.part_path(facts)
    if facts not in roster.parts or not path.exists():
        return
    for each in (path, path.with_suffix(SUMS)):
        share.put_file(each)
    about = file.folder / ABOUT
    if about.exists():
        share.put(about, about.read_bytes(), absent=True)
    record = record_bytes(roster.only(roster.part == roster.parts.index(facts)), file.derivation)
    share.put(file.folder / RECORDS / record_of(facts), record, absent=True)


def fetch_part(file: RosterFile, facts: PartFacts) -> None:
    """Let the files of a part be here, verified, if they lie on a store; where they lie here nothing is done.

    Raises:
        DamageError: an object is missing, or not what was written: it is marked, so that its pieces are made again.
        CacheError: the store failed.
    """
    share, path = file.share, file.part_path(facts)
    if share is None or (path.exists() and path.with_suffix(SUMS).exists()):
        return
    if record_of(facts) not in noted(file.folder):
        return  # made here, and lost
    try:
        sums = path.with_suffix(SUMS)
        share.fetch(sums, None, lambda draft: wrong_sums(draft, facts))
        share.fetch(path, facts.size, lambda draft: wrong_data(draft, sums))
    except ObjectDamageError:
        share.mark_damaged(file.folder / RECORDS / record_of(facts))
        file.drop(facts)
        note(file.folder, record_of(facts))  # and is never entered again
        raise


def wrong_sums(draft: Path, facts: PartFacts) -> str | None:
    """Say what is wrong with the sums of a part, if anything is."""
    try:
        data = seal.content(draft)
    except DamageError:
        return "its sums are cut or altered"
    return None if digest_of(data) == facts.digest else "its sums are those of another part"


def wrong_data(draft: Path, sums: Path) -> str | None:
    """Say which bytes of a part's data are not those of its sums, if any are not."""
    if not draft.stat().st_size:
        return None
    words = seal.content(sums)
    return wrong_blocks(draft, np.frombuffer(words, np.uint64))


def wrong_blocks(draft: Path, sums: NDArray[np.uint64]) -> str | None:
    """Say which block of a file is not the one that was written, if any is not."""
    mapped = Mapped(str(draft))
    mapped.expect(sums, SHIFT)
    for block in range(len(sums)):
        found: str | None = verify_block(mapped, block)
        if found is not None:
            return found
    return None


def record_bytes(roster: Roster, derivation: Described) -> bytes:
    """Return a roster as the bytes of a sealed file."""
    with tempfile.TemporaryDirectory(prefix="spiral-") as folder:
        draft = Path(folder) / "record"
        write_roster(draft, roster, derivation)
        seal.seal(draft, ".arrow")
        return draft.read_bytes()


def parsed(share: Share, path: Path, data: bytes, derivation: Described) -> Roster | None:
    """Return the roster in a record; None, with a warning, if it is not what was written: its pieces are made again."""
    with tempfile.TemporaryDirectory(prefix="spiral-") as folder:
        draft = Path(folder) / path.name
        draft.write_bytes(data)
        try:
            roster = read_roster(draft, derivation)
            found = "" if [record_of(each) for each in roster.parts] == [path.name] else "it is another part's"
        except DamageError as error:
            found = str(error)
    if not found:
        return roster
    skipped(share, path, found)
    return None


def fetch_parts(file: RosterFile, parts: Sequence[PartFacts]) -> None:
    """Let the files of some parts be here, several at a time; see `fetch_part`.

    Raises:
        DamageError: an object is missing, or not what was written.
        CacheError: the store failed.
    """
    away = [] if file.share is None else [each for each in parts if not file.part_path(each).exists()]
    if away:
        with ThreadPoolExecutor(min(FETCHERS, len(away)), "spiral-prepared") as pool:
            for _ in pool.map(lambda facts: fetch_part(file, facts), away):
                pass
