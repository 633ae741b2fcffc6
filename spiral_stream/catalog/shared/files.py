"""Files of a shared catalog as objects: parts that are named by their digest, so that they never change.

Whoever writes a part that is there already writes the same bytes. Every part is compared with its name when it is read, and a
file appears in the mirror only when it is whole.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import xxhash

from spiral_stream.errors import SourceError, anew, cut
from spiral_stream.integrity.publish import new_draft, sweep_drafts
from spiral_stream.storage.faults import NotThereError
from spiral_stream.storage.store import Get, Store
from spiral_stream.storage.uri import printable
from spiral_stream.threads import Workers, thread_share

PART_BYTES: Final = 16 << 20
_THREADS: Final = 8  # that send; each holds a part
_TOGETHER_BYTES: Final = 8 * PART_BYTES  # that are read by one call
_TOGETHER: Final = 256  # parts of one call
_LOOKED_AT: Final = 256 << 10  # bytes; a smaller part is sent without a look whether it is there
_PATH: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.=+-]*(/[A-Za-z0-9_][A-Za-z0-9_.=+-]*){0,15}")
_DIGEST: Final = re.compile(r"[0-9a-f]{32}")


class LostPartError(SourceError):
    """A part of a file is not there, or is not what was written."""


@final
@dataclass(frozen=True, slots=True)
class SharedFile:
    """A file of a catalog: its size, and the digests of its parts, each of `PART_BYTES` but the last."""

    size: int
    parts: tuple[str, ...]

    def __post_init__(self) -> None:
        is_sound = isinstance(self.size, int) and self.size >= 0 and len(self.parts) == -(-self.size // PART_BYTES)
        if not is_sound or not all(isinstance(each, str) and _DIGEST.fullmatch(each) for each in self.parts):
            msg = "a file's size and parts disagree"
            raise ValueError(msg)

    def part_bytes(self) -> Iterator[tuple[str, int]]:
        """Yield digest and bytes of each part."""
        for at, digest in enumerate(self.parts):
            yield digest, min(PART_BYTES, self.size - at * PART_BYTES)


def files_from(value: Any) -> dict[str, SharedFile]:
    """Return the files that a record names.

    Raises:
        TypeError: it names none in the form of a record.
        ValueError: a path leads out of the catalog, or a file contradicts itself.
    """
    found = {}
    for path, (size, parts) in value.items():
        if not _PATH.fullmatch(path):
            msg = f"{cut(path)} is no path inside of a catalog"
            raise ValueError(msg)
        found[path] = SharedFile(size, tuple(parts))
    return found


def send(
    store: Store, prefix: str, folder: Path, paths: Sequence[str], *, again: bool = False
) -> dict[str, SharedFile]:
    """Write the parts of files that are not there yet.

    Args:
        store: where to.
        prefix: of the parts' keys.
        folder: that the paths begin at.
        paths: of the files.
        again: write small parts that are there, too: they may be damaged. Large ones are there if their size is right.

    Raises:
        OSError: a file cannot be read.
        SourceError: the store failed.
    """
    spans = [(folder / path, at) for path in paths for at in range(0, (folder / path).stat().st_size, PART_BYTES)]

    def one(span: tuple[Path, int]) -> tuple[str, int]:
        with span[0].open("rb") as file:
            file.seek(span[1])
            data = file.read(PART_BYTES)
        digest = xxhash.xxh3_128_hexdigest(data)
        _send_part(store, f"{prefix}{digest}", data, again=again)
        return digest, len(data)

    with Workers(thread_share().waiting(_THREADS), "spiral-send") as pool:
        done = list(pool.map(one, spans))
    ranges_of: dict[Path, list[tuple[str, int]]] = {folder / path: [] for path in paths}
    for (path, _), each in zip(spans, done, strict=True):
        ranges_of[path].append(each)
    return {
        path: SharedFile(
            sum(size for _, size in ranges_of[folder / path]), tuple(digest for digest, _ in ranges_of[folder / path])
        )
        for path in paths
    }


def _send_part(store: Store, key: str, data: bytes, *, again: bool) -> None:
    if len(data) >= _LOOKED_AT and _size(store, key) == len(data):
        return
    if again:
        store.put(key, data)
    elif store.put(key, data, absent=True) is None and _size(store, key) != len(data):
        store.put(key, data)  # another one of this name is no part


def _size(store: Store, key: str) -> int:
    try:
        return store.stat(key).size
    except NotThereError:
        return -1


def fetch(store: Store, prefix: str, uri: str, files: Mapping[Path, SharedFile]) -> None:
    """Bring files here; each appears when all of it is there and is what its digests say.

    Args:
        store: where from.
        prefix: of the parts' keys.
        uri: of the catalog, for messages.
        files: by their paths here, whose folders are made.

    Raises:
        OSError: a file cannot be written.
        LostPartError: a part is not there, or is not what was written.
        SourceError: the store failed.
    """
    pieces = _all_parts(store, prefix, uri, files.values())
    for parent in {path.parent for path in files}:
        parent.mkdir(parents=True, exist_ok=True)
        sweep_drafts(parent)
    for path, file in files.items():
        work, held = new_draft(path, lambda work: work.touch(exist_ok=False))
        try:
            with work.open("wb") as out:
                for _ in file.parts:
                    out.write(next(pieces))
            work.replace(path)
        finally:
            held.release()
            work.unlink(missing_ok=True)


def _all_parts(store: Store, prefix: str, uri: str, files: Any) -> Iterator[memoryview]:
    """The bytes of all parts of all files, in order, some read together."""
    wanted = [piece for file in files for piece in file.part_bytes()]
    while wanted:
        count, size = 0, 0
        while count < min(len(wanted), _TOGETHER) and (not count or size + wanted[count][1] <= _TOGETHER_BYTES):
            size += wanted[count][1]
            count += 1
        now, wanted = wanted[:count], wanted[count:]
        requests = [Get(f"{prefix}{digest}", most_bytes=length) for digest, length in now]
        for (digest, length), got in zip(now, store.read(requests), strict=True):
            if isinstance(got, NotThereError) and "bucket is not there" not in str(got):
                msg = f"{printable(uri)}/data/{digest} is not there. Register again with replace=True what it belongs to, or "
                msg += "restore it"
                raise LostPartError(msg)
            if isinstance(got, SourceError):
                raise anew(got)
            if got.data is None or len(got.data) != length or xxhash.xxh3_128_hexdigest(got.data) != digest:
                msg = f"{printable(uri)}/data/{digest} is damaged: its bytes are not those that were written. "
                msg += "Delete that object, and register again with replace=True what it belongs to, or restore it"
                raise LostPartError(msg)
            yield got.data
