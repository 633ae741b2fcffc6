"""Copy prepared data between folders and object stores, in either direction, leaving out what the target already has.

A part is copied when all of its bytes were verified by its sums, and its record is entered last, so a copy that was ended
goes on where it stopped. Parts go side by side, and each needs its own room on this disk for as long as it passes through.
"""

import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from spiral_stream.cache.copy_sides import CachePart, CopySide, FolderSide, PiecesPart, StoreSide, folder_of
from spiral_stream.cache.store.checksums import HEAD, words_in, wrong_data
from spiral_stream.derived.exchange import wrong_blocks, wrong_sums
from spiral_stream.derived.exchange import wrong_data as wrong_pieces
from spiral_stream.derived.folder import SHARED
from spiral_stream.errors import CacheError, DamageError, cut, warn
from spiral_stream.integrity import seal
from spiral_stream.sources.files.paths import local_folder
from spiral_stream.storage.uri import parse_uri, printable, scheme_of

TOGETHER: Final = 8  # parts
_SHORTEST: Final = 6  # digits of a fingerprint that is asked for

Part = PiecesPart | CachePart


@final
@dataclass(frozen=True, slots=True)
class CopyProgress:
    """What a copy has done so far.

    Attributes:
        parts: that were copied.
        parts_total: that the target lacked.
        bytes: of their data.
        bytes_total: of the data of all of them.
        there: parts that the target had before.
        damaged: parts that are not what was written, and were not copied.
    """

    parts: int
    parts_total: int
    bytes: int
    bytes_total: int
    there: int
    damaged: int


def copy_prepared(
    source: str, target: str, only: Sequence[str] = (), report: Callable[[CopyProgress], None] = lambda _: None
) -> CopyProgress:
    """Copy prepared data: parts of derivations and of caches, with their records.

    Args:
        source: a prepared folder, or the URI of one on an object store.
        target: likewise; a folder is made.
        only: fingerprints, or how they begin; by default all.
        report: called after every part.

    Raises:
        CacheError: a fingerprint is not there, a place cannot be reached, or cannot be written.
    """
    with ExitStack() as stack:
        one, other = _side(source, "from", stack), _side(target, "to", stack)
        have = one.fingerprints()
        if not have and scheme_of(source) in SHARED:
            msg = f"copy: nothing that was prepared lies in {cut(printable(source))}. Correct the URI"
            raise CacheError(msg)
        wanted = _wanted(have, only, source)
        parts: list[Part] = [*one.pieces(wanted), *one.caches(wanted)]
        there = {folder: other.records(folder) for folder in {_folder(part) for part in parts}}
        todo = [part for part in parts if part.name not in there[_folder(part)]]
        done = _Done(todo, len(parts) - len(todo), report)
        with ThreadPoolExecutor(TOGETHER, "spiral-copy") as pool:
            for part, found in zip(todo, pool.map(lambda part: _copied(part, one, other), todo), strict=True):
                done.add(part, found)
        other.finish()
        return done.now


@final
class _Done:
    """What was copied so far."""

    def __init__(self, todo: Sequence[Part], there: int, report: Callable[[CopyProgress], None]) -> None:
        self.now = CopyProgress(0, len(todo), 0, sum(part.bytes for part in todo), there, 0)
        self._report = report
        report(self.now)

    def add(self, part: Part, found: str | None) -> None:
        """Count a part, copied or damaged."""
        now, good = self.now, found is None
        self.now = CopyProgress(
            now.parts + good,
            now.parts_total,
            now.bytes + part.bytes * good,
            now.bytes_total,
            now.there,
            now.damaged + (not good),
        )
        self._report(self.now)


def _copied(part: Part, one: CopySide, other: CopySide) -> str | None:
    """Copy a part; returns what is wrong with it, after a warning, if it is damaged."""
    try:
        one.bring(part)
        if isinstance(part, PiecesPart):
            _copy_pieces(part, one, other)
        else:
            _copy_cache(part, one, other)
    except DamageError as error:
        said = str(error).removesuffix(seal.MENDED)
        warn(f"copy: {said}It is not copied")
        return said
    return None


def _copy_pieces(part: PiecesPart, one: CopySide, other: CopySide) -> None:
    facts = part.roster.parts[0]
    data_name, sums_name = part.files()
    sums = one.file(sums_name, None)
    data = one.file(data_name, facts.size)
    try:
        found = wrong_sums(sums, facts) or wrong_pieces(data, sums)
        if found is not None:
            raise seal.damaged(Path(data_name), found)
        other.take_pieces(part, data, sums)
    finally:
        one.release(data)
        one.release(sums)


def _copy_cache(part: CachePart, one: CopySide, other: CopySide) -> None:
    files = part.files()
    held: dict[str, Path] = {str(files.sums_file): one.file(str(files.sums_file), None)}
    try:
        words = words_in(held[str(files.sums_file)], part.entry.sums)
        if words is None:
            raise seal.damaged(files.sums_file, "it is missing, or not what was written")
        if int(words[HEAD - 1]):
            blob = held[str(files.blob)] = one.file(str(files.blob), int(words[HEAD - 1]))
            found = wrong_blocks(blob, words[HEAD:])
            if found is not None:
                raise seal.damaged(files.blob, found)
        data = held[str(files.data)] = one.file(str(files.data), int(words[1]))
        found = wrong_data(data, words)
        if found is not None:
            raise seal.damaged(files.data, found)
        other.take_cache(part, held)
    finally:
        for path in held.values():
            one.release(path)


def _folder(part: Part) -> str:
    return folder_of(part.of) if isinstance(part, PiecesPart) else f"caches/{part.of}"


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


def _side(location: str, which: str, stack: ExitStack) -> CopySide:
    if scheme_of(location) in SHARED:
        parse_uri(location)
        return StoreSide(location, Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="spiral-copy-"))))
    root = local_folder(location)
    if which == "from" and not root.is_dir():
        msg = f"copy: {cut(str(root))} is no folder. Give a prepared folder, or the URI of one on an object store"
        raise CacheError(msg)
    return FolderSide(root)
