"""Parts of a dataset: shards that one writer drafts and that become visible together, or never.

A part is a folder below `DRAFTS`: in the dataset's own folder, or, for a dataset on a store, in a folder of this machine. Its
writer holds a lock on it, which the kernel takes back when the writer dies: then the next writer removes the draft. To publish,
the list of files is noted in the draft, the files are placed in the dataset and Lance commits them (`targets`). A writer that
dies in between leaves its note, by which files that no version names are removed.
"""

import json
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Final, final

import pyarrow as pa

from spiral_stream.errors import SourceError, shown, warn
from spiral_stream.integrity.locks import enter, leave, lock
from spiral_stream.integrity.publish import drafts, new_draft, write_file
from spiral_stream.sources.lance.fragments import DATA, draft_fragments
from spiral_stream.sources.writing.destinations import WriteTarget
from spiral_stream.sources.writing.part_files import (
    DRAFTS,
    NOTE,
    PartShard,
    file_name,
    noted,
    remove_empty,
    staged,
    sync,
    writing,
)

BATCH_BYTES: Final = 4 << 20  # rows that are counted together
SHARD_BYTES: Final = 256 << 20
MOST_ROWS: Final = 1 << 30  # of a shard: Lance takes 32 bits
_NO_LIMIT: Final = 1 << 62


@final
class PartDraft:
    """A part that is being written. Not thread-safe.

    Args:
        target: the dataset.
        name: of the part.
        schema: of the rows.
        storage_version: of Lance's files; None takes the newest.

    Raises:
        SourceError: the folder of drafts cannot be written.
    """

    def __init__(self, target: WriteTarget, name: str, schema: pa.Schema, storage_version: str | None = None) -> None:
        self._target, self._name, self._schema, self._storage = target, name, schema, storage_version
        self.shards: list[PartShard] = []
        self._salt, self._publishing = target.salt(), False
        with writing(target.folder):
            self._draft, self._held = new_draft(target.folder / DRAFTS / name, _make)

    def write(self, batches: Iterable[pa.RecordBatch]) -> PartShard:
        """Write rows as one shard.

        Raises:
            SourceError: Lance refuses them, or the folder cannot be written.
        """
        [found] = draft_fragments(self._draft, batches, self._schema, MOST_ROWS, _NO_LIMIT, self._storage)
        [first] = found.files
        with writing(self._target.folder):
            path = self._draft / DATA / first
            name = file_name(self._name, len(self.shards), path, self._salt)
            path.rename(path.with_name(name))
        self.shards.append(PartShard(name, found.rows, found.size_bytes, found.described))
        return self.shards[-1]

    def publish(self) -> int:
        """Make the shards visible, all at once; returns the dataset's version.

        Raises:
            PartThereError: the dataset has the part already.
        SourceError: its columns are others, or it cannot be written.
        """
        with writing(self._target.folder):
            self._note()
            self._publishing = True
            version = publish_part(self._target, self._schema, self._draft)
            self._publishing = False
        self.drop()
        return version

    def stage(self) -> Path:
        """Keep the finished part, to be published later; a part of this name that was staged before is as good."""
        with writing(self._target.folder):
            self._note()
            folder = staged(self._target.folder, self._name)
            with suppress(OSError):
                self._draft.rename(folder)
        self.drop()
        return folder

    def drop(self) -> None:
        """Remove the draft, and what it placed in vain; again does nothing."""
        publishing, self._publishing = self._publishing, False
        if not publishing or taken_back(self._target, [self._draft]):
            shutil.rmtree(self._draft, ignore_errors=True)  # otherwise the next writer does
        self._held.release()
        leave(self._draft.parent, remove_empty)

    def _note(self) -> None:
        for shard in self.shards:
            sync(self._draft / DATA / shard.file)
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


class PartThereError(SourceError):
    """The dataset has a part already."""


def publish_part(target: WriteTarget, schema: pa.Schema, part: Path) -> int:
    """Make a finished part visible; returns the dataset's version.

    Raises:
        PartThereError: the dataset has the part already.
        SourceError: its columns are others, or it cannot be written.
    """
    ours = {shard.part for shard in noted(part)}

    def check(there: frozenset[str]) -> None:
        if twice := there & ours:
            msg = f"Lance dataset {target.uri} has part {shown(min(twice))} already, so nothing was added. Give another name"
            raise PartThereError(msg)

    return target.publish(schema, [part], check)


def sweep(target: WriteTarget) -> None:
    """Remove what writers that died left behind: their drafts, and files that they placed and did not commit."""
    folder = target.folder / DRAFTS
    for draft in drafts(folder):
        with suppress(OSError):
            held = lock(draft, alone=True)
            if held is None:
                continue
            if taken_back(target, [draft]):
                shutil.rmtree(draft)
            held.release()
    leave(folder, remove_empty)


def taken_back(target: WriteTarget, parts: Iterable[Path]) -> bool:
    """Remove the placed files of parts that no version names, and say so; warn of files that have to wait."""
    complete = [part for part in parts if _is_complete(part)]  # without a whole note nothing was placed
    try:
        if complete:
            target.take_back(complete)
    except SourceError as error:
        msg = f"Lance dataset {target.uri}: files that a writer left there, and that no version names, stay for now: {error}"
        warn(msg)
        return False
    return True


def _is_complete(part: Path) -> bool:
    try:
        return bool(noted(part))
    except SourceError:
        return False


def _make(draft: Path) -> None:
    """Make the folder of a draft, in one that other writers remove when they leave it empty."""
    while True:
        held = enter(draft.parent)
        try:
            return draft.mkdir()
        except FileNotFoundError:
            continue  # where locks reach this machine only, another one removed it
        finally:
            held.release()
