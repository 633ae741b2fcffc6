"""Copy prepared data between folders and object stores, in either direction, leaving out what the target already has.

A part is copied when all of its bytes were verified by its sums, and its record is entered last, so a copy that was ended
goes on where it stopped. Parts go side by side, and each needs its own room on this disk for as long as it passes through.
"""

import tempfile
from collections.abc import Sequence
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
from spiral_stream.display.progress import Report, working
from spiral_stream.errors import CacheError, DamageError, cut, warn
from spiral_stream.integrity import seal
from spiral_stream.sources.files.paths import local_folder
from spiral_stream.storage.uri import parse_uri, printable, scheme_of

TOGETHER: Final = 8  # parts
_SHORTEST: Final = 6  # digits of a fingerprint that is asked for

Part = PiecesPart | CachePart


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
        have = one.fingerprints()
        if not have and scheme_of(source) in SHARED:
            msg = f"copy: nothing that was prepared lies in {cut(printable(source))}. Correct the URI"
            raise CacheError(msg)
        wanted = _wanted(have, only, source)
        parts: list[Part] = [*one.pieces(wanted), *one.caches(wanted)]
        there = {folder: other.records(folder) for folder in {_folder(part) for part in parts}}
        todo = [part for part in parts if part.name not in there[_folder(part)]]
        copied = size = 0
        total = sum(part.bytes for part in todo)
        with (
            working(f"copy to {cut(printable(target))}", "bytes", total, report=report) as tell,
            ThreadPoolExecutor(TOGETHER, "spiral-copy") as pool,
        ):
            for part, good in zip(todo, pool.map(lambda part: _copied(part, one, other), todo), strict=True):
                copied, size = copied + good, size + part.bytes * good
                tell(size)
        other.finish()
        return Copied(copied, size, len(parts) - len(todo), len(todo) - copied)


def _copied(part: Part, one: CopySide, other: CopySide) -> bool:
    """Copy a part; of one that is damaged, warn and return False."""
    try:
        one.bring(part)
        if isinstance(part, PiecesPart):
            _copy_pieces(part, one, other)
        else:
            _copy_cache(part, one, other)
    except DamageError as error:
        warn(f"copy: {str(error).removesuffix(seal.MENDED)}It is not copied")
        return False
    return True


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
