"""Parts of a dataset: shards that one writer drafts and that become visible together, or never.

A part is a folder below `DRAFTS` in the dataset's own folder. Its writer holds a lock on it, which the kernel takes back when
the writer dies: then the next writer removes the draft. To publish, the list of files is noted in the draft, the files are
moved into the dataset and Lance commits them, under a lock on the dataset's folder. A writer that dies in between leaves its
note, by which files that no version names are removed. A shard's file is called (part, number, digest of its bytes), so a
name stands for its bytes.
"""

import json
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, final

import pyarrow as pa
import xxhash

from spiral_stream.errors import SourceError, cut, shown
from spiral_stream.integrity.locks import lock
from spiral_stream.integrity.publish import drafts, new_draft, write_file
from spiral_stream.sources.lance_append import Appendable, append, made, present
from spiral_stream.sources.lance_fragments import DATA, draft_fragments, files_in

DRAFTS: Final = "_drafts"
NOTE: Final = "part.json"
_NAME: Final = re.compile("[A-Za-z0-9_]{1,64}")
_FILE: Final = re.compile("([A-Za-z0-9_]{1,64})-[0-9]{5,}-[0-9a-f]{32}[.]lance")
_STAGED: Final = "staged-"
BATCH_BYTES: Final = 4 << 20  # rows that are counted together
SHARD_BYTES: Final = 256 << 20
MOST_ROWS: Final = 1 << 30  # of a shard: Lance takes 32 bits
_NO_LIMIT: Final = 1 << 62
_DEADLINE_S: Final = 600.0  # publishing takes as long as some renames and a commit
_PAUSE_S: Final = 0.02
_BLOCK: Final = 1 << 20


@final
@dataclass(frozen=True, slots=True)
class PartShard:
    """One shard of a part."""

    file: str
    rows: int
    size_bytes: int
    described: str  # Lance's own description, with the file's first name


def need_part_name(name: object) -> str:
    """Return the name of a part as text.

    Raises:
        SourceError: it is no legal name.
    """
    text = str(name) if isinstance(name, str | int) and not isinstance(name, bool) else ""
    if not _NAME.fullmatch(text):
        msg = f"Writer: part {shown(name)}. Give a number, or a name of up to 64 letters, digits and _"
        raise SourceError(msg)
    return text


def published_parts(folder: Path) -> frozenset[str]:
    """Return the names of the parts that a dataset has.

    Raises:
        SourceError: it cannot be read.
    """
    found = present(folder)
    return frozenset() if found is None else parts_in(found)


def parts_in(dataset: Appendable) -> frozenset[str]:
    """Return the names of the parts that a dataset has, from the names of its files."""
    return frozenset(match[1] for match in map(_FILE.fullmatch, dataset.files) if match)


@final
class PartDraft:
    """A part that is being written. Not thread-safe.

    Args:
        folder: of the dataset.
        name: of the part.
        schema: of the rows.
        storage_version: of Lance's files; None takes the newest.

    Raises:
        SourceError: the folder cannot be written.
    """

    def __init__(self, folder: Path, name: str, schema: pa.Schema, storage_version: str | None = None) -> None:
        self._folder, self._name, self._schema, self._storage = folder, name, schema, storage_version
        self.shards: list[PartShard] = []
        with writing(folder):
            self._draft, self._held = new_draft(folder / DRAFTS / name, lambda path: path.mkdir(parents=True))

    def write(self, batches: Iterable[pa.RecordBatch]) -> PartShard:
        """Write rows as one shard.

        Raises:
            SourceError: Lance refuses them, or the folder cannot be written.
        """
        [found] = draft_fragments(self._draft, batches, self._schema, MOST_ROWS, _NO_LIMIT, self._storage)
        [first] = found.files
        with writing(self._folder):
            path = self._draft / DATA / first
            name = f"{self._name}-{len(self.shards):05d}-{_digest(path)}.lance"
            path.rename(path.with_name(name))
        self.shards.append(PartShard(name, found.rows, found.size_bytes, found.described))
        return self.shards[-1]

    def publish(self) -> int:
        """Make the shards visible, all at once; returns the dataset's version.

        Raises:
            SourceError: the dataset has the part already, or its columns are others, or it cannot be written.
        """
        with writing(self._folder):
            self._note()
            version = publish_parts(self._folder, self._schema, [self._draft])
        self.drop()
        return version

    def stage(self) -> Path:
        """Keep the finished part for `publish_parts`; a part of this name that was staged before is as good."""
        with writing(self._folder):
            self._note()
            target = staged(self._folder, self._name)
            with suppress(OSError):
                self._draft.rename(target)
        self.drop()
        return target

    def drop(self) -> None:
        """Remove the draft; again does nothing."""
        shutil.rmtree(self._draft, ignore_errors=True)
        self._held.release()
        with suppress(OSError):
            self._draft.parent.rmdir()  # if it is empty

    def _note(self) -> None:
        for shard in self.shards:
            _sync(self._draft / DATA / shard.file)
        write_file(self._draft / NOTE, json.dumps([asdict(shard) for shard in self.shards]).encode())


@final
class ShardCutter:
    """Cuts rows that come one after another into the shards of a part. Holds one shard. Not thread-safe.

    Args:
        part: takes the shards.
        most_bytes: a shard ends when its rows have as many bytes in memory.
        most_rows: of a shard.
    """

    def __init__(self, part: PartDraft, most_bytes: int, most_rows: int) -> None:
        self._part, self._most_bytes, self._most_rows = part, most_bytes, min(most_rows, MOST_ROWS)
        self._batches: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0

    def add(self, table: pa.Table) -> None:
        """Hold rows until they fill a shard.

        Raises:
            SourceError: Lance refuses them, or the folder cannot be written.
        """
        at, row_bytes = 0, max(1.0, table.nbytes / max(1, len(table)))
        while at < len(table):
            room = min(BATCH_BYTES, self._most_bytes - self._bytes)
            piece = table.slice(at, min(max(1, int(room / row_bytes)), self._most_rows - self._rows))
            at += len(piece)
            self._batches += piece.to_batches()
            self._rows += len(piece)
            self._bytes += piece.nbytes
            if self._bytes >= self._most_bytes or self._rows == self._most_rows:
                self.end()

    def end(self) -> None:
        """Write what is held as a shard, if there is anything.

        Raises:
            SourceError: Lance refuses it, or the folder cannot be written.
        """
        if self._batches:
            self._part.write(self._batches)
        self._batches, self._rows, self._bytes = [], 0, 0


def staged(folder: Path, name: str) -> Path:
    """Return the place of a part that is finished and not visible yet."""
    return folder / DRAFTS / f"{_STAGED}{name}"


def noted(part: Path) -> list[PartShard]:
    """Return the shards of a finished part.

    Raises:
        SourceError: its note is missing or damaged.
    """
    try:
        return [PartShard(**each) for each in json.loads((part / NOTE).read_text())]
    except (OSError, ValueError, TypeError) as error:
        msg = f"part {part}: its note cannot be read: {cut(str(error))}. Remove the folder, and write the part again"
        raise SourceError(msg) from error


def publish_parts(folder: Path, schema: pa.Schema, parts: Sequence[Path]) -> int:
    """Make finished parts visible in this order, all at once; returns the dataset's version.

    Args:
        folder: of the dataset.
        schema: of the rows.
        parts: their folders; files that an earlier call moved already may be missing there.

    Raises:
        SourceError: the dataset has one of the parts already, or its columns are others, or it cannot be written.
    """
    with _alone(folder):
        dataset = made(folder, schema)
        need_columns(folder, schema, dataset.schema)
        shards = [(part, shard) for part in parts for shard in noted(part)]
        if twice := parts_in(dataset) & {_part_of(shard) for _, shard in shards}:
            msg = (
                f"Lance dataset {folder} has part {shown(min(twice))} already, so nothing was added. Give another name"
            )
            raise SourceError(msg)
        (folder / DATA).mkdir(exist_ok=True)
        for part, shard in shards:
            if (part / DATA / shard.file).exists():
                (part / DATA / shard.file).rename(folder / DATA / shard.file)
        _sync(folder / DATA)
        described = [dataset.placed(shard.described, {files_in(shard.described)[0]: shard.file}) for _, shard in shards]
        return append(folder, described, dataset.version) if described else dataset.version


def sweep(folder: Path) -> None:
    """Remove what writers that died left behind: their drafts, and files that they moved and did not commit."""
    for draft in drafts(folder / DRAFTS):
        with suppress(OSError):
            held = lock(draft, alone=True)
            if held is None:
                continue
            with _alone(folder):
                _take_back(folder, draft)
            shutil.rmtree(draft)
            held.release()
    with suppress(OSError):
        (folder / DRAFTS).rmdir()


def _take_back(folder: Path, draft: Path) -> None:
    """Remove the moved files of a draft that no version of the dataset names."""
    if not (draft / NOTE).exists():
        return
    dataset = present(folder)
    named: frozenset[str] = frozenset() if dataset is None else dataset.files
    with suppress(SourceError):  # a note that was cut: no file was moved before it was whole
        for shard in noted(draft):
            if shard.file not in named and _FILE.fullmatch(shard.file):
                (folder / DATA / shard.file).unlink(missing_ok=True)


def need_columns(folder: Path, ours: pa.Schema, theirs: pa.Schema) -> None:
    """Refuse rows whose columns are not those of the dataset.

    Raises:
        SourceError: names the first that differs.
    """
    for name in dict.fromkeys([*theirs.names, *ours.names]):
        here = str(ours.field(name).type) if name in ours.names else "not there"
        there = str(theirs.field(name).type) if name in theirs.names else "not there"
        if here != there:
            msg = (
                f"Lance dataset {folder}: column {shown(name)} is {there}, in the rows to write it is {here}. "
                "Write the columns that it has, or to another folder"
            )
            raise SourceError(msg)
    if ours.names != theirs.names:
        msg = f"Lance dataset {folder}: its columns stand in the order {', '.join(theirs.names)}. Give the schema in this order"
        raise SourceError(msg)


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Say which folder cannot be written."""
    try:
        yield
    except OSError as error:
        msg = f"{folder}: {error.strerror or error}. Give a folder that can be written, on a disk with room"
        raise SourceError(msg) from error


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process at a time publishes in a folder."""
    until, held = time.monotonic() + _DEADLINE_S, None
    while (held := lock(folder, alone=True)) is None:
        if time.monotonic() > until:
            msg = f"{folder}: another process has been publishing for {_DEADLINE_S:g} s. End it (`fuser {folder}`)"
            raise SourceError(msg)
        time.sleep(_PAUSE_S)
    try:
        yield
    finally:
        held.release()


def _part_of(shard: PartShard) -> str:
    match = _FILE.fullmatch(shard.file)
    if match is None:
        msg = f"part: {shown(shard.file)} is no name of a shard. Remove the part, and write it again"
        raise SourceError(msg)
    return match[1]


def _digest(path: Path) -> str:
    state = xxhash.xxh3_128()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            state.update(block)
    return state.hexdigest()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
