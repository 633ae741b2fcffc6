"""Where the parts of a written dataset are published: on this machine, or on an object store.

Drafts lie on a disk of this machine either way. Into a local dataset their files are moved, one process at a time. To a store
they are put, and Lance's commit makes them visible: it is refused if anybody added rows since the dataset was looked at.
"""

import os
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import pyarrow as pa
import xxhash

from spiral_stream.errors import SourceError, cut
from spiral_stream.integrity.locks import LONG_PAUSES_S, Wait, lock, wait_for
from spiral_stream.integrity.publish import write_file
from spiral_stream.sources.files.paths import absolute, is_remote, local_folder
from spiral_stream.sources.lance.fragments import (
    DATA,
    Appendable,
    append,
    append_alone,
    files_in,
    files_since,
    made,
    present,
)
from spiral_stream.sources.writing.part_files import PartShard, need_columns, noted, parts_in, sync, writing
from spiral_stream.storage.faults import NotThereError
from spiral_stream.storage.node_cache.cache import working_root
from spiral_stream.storage.open import store_of
from spiral_stream.storage.uri import parse_uri, printable, scheme_of

Check = Callable[[frozenset[str]], None]  # refuses, for the parts that a dataset has

_SCHEMES: Final = ("s3", "gs", "az")  # that Lance and the client know alike
_ODD: Final = frozenset("%#?")  # in a key Lance reads them in another way than the client
_COMMITTING: Final = "committing"  # in a part's folder: a commit to a version after this one may be under way
_DEADLINE_S: Final = 600.0  # publishing takes as long as some renames and a commit
FILES: Final = 4  # that are put at a time, each in parts of its own


class WriteTarget(ABC):
    """A Lance dataset that parts are added to."""

    uri: str  # of the dataset: a path, or a URI
    folder: Path  # on this machine; drafts lie below it

    def salt(self) -> str:
        """Return what the names of a new draft's files are made from, besides their bytes."""
        return ""

    @abstractmethod
    def publish(self, schema: pa.Schema, parts: Sequence[Path], check: Check) -> int:
        """Make finished parts visible in this order, all at once; returns the dataset's version.

        Args:
            schema: of the rows.
            parts: their folders; files that an earlier call placed already may be missing there.
            check: is asked with the parts that the dataset has; nobody adds one between its answer and the end.

        Raises:
            SourceError: ``check`` refused, the columns are others, or the dataset cannot be written.
        """

    @abstractmethod
    def take_back(self, parts: Sequence[Path]) -> None:
        """Remove the files of parts that were placed in the dataset and that it does not name.

        Only the owner of a part may call it, or whoever knows that the owner died.

        Raises:
            SourceError: the dataset cannot be read, or they cannot be removed.
        """

    @abstractmethod
    def deliver(self, part: Path) -> None:
        """Bring the files of a finished part to where they will be published, if that is not this machine.

        Raises:
            SourceError: they cannot be written there.
        """

    def look(self) -> Appendable | None:
        """Look at the dataset; None where there is none.

        Raises:
            SourceError: it cannot be read.
        """
        return present(self.uri)


def target_of(uri: str | os.PathLike[str], what: str) -> WriteTarget:
    """Return where a dataset is written.

    Args:
        uri: of the dataset: a folder, or a URI of an object store.
        what: writes it; begins messages.

    Raises:
        MissingExtraError: the package that speaks to the store is not installed.
        SourceError: nothing can be written there.
    """
    text = os.fspath(uri)
    if is_remote(text):
        bare = _need_key(absolute(text), what)
        return StoreTarget(bare, _working_folder(bare))
    try:
        folder = local_folder(text)
        return FolderTarget(str(folder), folder)
    except SourceError as error:
        msg = f"{what}: {cut(text)} {error}"
        raise SourceError(msg) from None


def _need_key(uri: str, what: str) -> str:
    """Return the URI of a dataset without a slash at its end, if it can be written."""
    shown, scheme = cut(printable(uri)), scheme_of(uri)
    if scheme not in _SCHEMES:
        msg = f"{what}: {shown} begins with {cut(scheme)}://; nothing is written there. Give s3://, gs:// or az://, or a folder"
        raise SourceError(msg)
    key = parse_uri(uri).key.rstrip("/")
    if not key:
        msg = f"{what}: {shown} is a whole bucket. Give the dataset a name in it, such as {scheme}://bucket/rows.lance"
        raise SourceError(msg)
    if _ODD & set(key):
        msg = f"{what}: {shown} has %, # or ? in its path. Give names without them"
        raise SourceError(msg)
    store_of(uri)
    return uri.rstrip("/")


def _working_folder(uri: str) -> Path:
    """Return where drafts for a dataset on a store lie on this machine: next to the node cache, else in ``~/.cache/spiral``."""
    return working_root() / "writing" / xxhash.xxh3_64_hexdigest(uri.encode())


@final
@dataclass(frozen=True, slots=True)
class FolderTarget(WriteTarget):
    """A dataset on this machine; its drafts lie in its own folder."""

    uri: str
    folder: Path

    def deliver(self, part: Path) -> None:
        """Nothing to do: they are moved when they are published."""

    def publish(self, schema: pa.Schema, parts: Sequence[Path], check: Check) -> int:
        with _alone(self.folder):
            dataset = made(self.uri, schema)
            need_columns(self.uri, schema, dataset.schema)
            shards = [(part, shard) for part in parts for shard in noted(part)]
            check(parts_in(dataset))
            data = self.folder / DATA
            with writing(self.folder):
                data.mkdir(exist_ok=True)
                for part, shard in shards:
                    if (part / DATA / shard.file).exists():
                        (part / DATA / shard.file).rename(data / shard.file)
                sync(data)
            described = [_as_published(dataset, shard) for _, shard in shards]
            return append(self.uri, described, dataset.version) if described else dataset.version

    def take_back(self, parts: Sequence[Path]) -> None:
        with _alone(self.folder):
            dataset = self.look()
            named: frozenset[str] = frozenset() if dataset is None else dataset.files
            with writing(self.folder):
                for shard in _shards(parts):
                    if shard.file not in named:
                        (self.folder / DATA / shard.file).unlink(missing_ok=True)


@final
@dataclass(frozen=True, slots=True)
class StoreTarget(WriteTarget):
    """A dataset on an object store; its drafts lie in a working folder of this machine."""

    uri: str
    folder: Path

    def salt(self) -> str:
        # files of two drafts have never one name, so whoever removes those of one removes nothing that another one put
        return uuid.uuid4().hex

    def publish(self, schema: pa.Schema, parts: Sequence[Path], check: Check) -> int:
        shards = [(part, shard) for part in parts for shard in noted(part)]
        files = {shard.file for _, shard in shards}
        there = self.look()
        if there is not None:
            need_columns(self.uri, schema, there.schema)
            check(parts_in(there))
        try:
            self._put(shards)
            with writing(self.folder):
                for part in parts:
                    write_file(part / _COMMITTING, str(0 if there is None else there.version).encode())
        except SourceError:
            there = self.look()
            if there is None or not files <= there.files:  # another process published the same parts, and removed them
                raise
            return there.version
        return self._commit(schema, [shard for _, shard in shards], check)

    def deliver(self, part: Path) -> None:
        shards = noted(part)
        self._put([(part, shard) for shard in shards])
        for shard in shards:
            (part / DATA / shard.file).unlink(missing_ok=True)

    def take_back(self, parts: Sequence[Path]) -> None:
        begun = [part for part in parts if (part / _COMMITTING).exists()]
        settled = self._settled(begun) if begun else frozenset[str]()
        newest = self.look()  # also where the mark is gone, since another process is just removing what it published
        named = settled | (frozenset() if newest is None else newest.files)
        for shard in _shards(parts):
            if shard.file not in named:
                store, key = store_of(f"{self.uri}/{DATA}/{shard.file}")
                store.delete(key)

    def _put(self, shards: Sequence[tuple[Path, PartShard]]) -> None:
        """Put the files that are not there yet, several at a time."""
        with ThreadPoolExecutor(FILES, "spiral-put") as pool:
            try:
                list(pool.map(self._put_file, shards))
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                raise

    def _put_file(self, each: tuple[Path, PartShard]) -> None:
        part, shard = each
        path = part / DATA / shard.file
        store, key = store_of(f"{self.uri}/{DATA}/{shard.file}")
        try:
            there = store.stat(key).size  # an earlier call put it
        except NotThereError:
            there = -1
        with writing(path):
            if path.exists():
                if there != path.stat().st_size:
                    store.put_file(key, path)
            elif there < 0:
                msg = f"{self.uri}/{DATA}/{shard.file} is gone from the store. Remove {part}, and write the part again"
                raise SourceError(msg)

    def _commit(self, schema: pa.Schema, shards: Sequence[PartShard], check: Check) -> int:
        files, wait = {shard.file for shard in shards}, Wait(_DEADLINE_S, LONG_PAUSES_S)
        while True:
            dataset = made(self.uri, schema)
            if files <= dataset.files:  # also if the answer to our commit was lost
                return dataset.version
            need_columns(self.uri, schema, dataset.schema)
            check(parts_in(dataset))
            try:
                return append_alone(self.uri, [_as_published(dataset, shard) for shard in shards], dataset.version)
            except SourceError:
                if not self._moved(dataset, wait):
                    raise

    def _settled(self, parts: Sequence[Path]) -> frozenset[str]:
        """Return the files that versions name, as soon as no commit under way can add one of these parts."""
        files, wait = {shard.file for shard in _shards(parts)}, Wait(_DEADLINE_S, LONG_PAUSES_S)
        with writing(self.folder):
            before = min(int((part / _COMMITTING).read_text()) for part in parts)
        while (dataset := self.look()) is not None and not files <= dataset.files:
            try:
                append_alone(self.uri, (), dataset.version)
            except SourceError:
                if not self._moved(dataset, wait):
                    raise
            else:
                break
        return files_since(self.uri, before)

    def _moved(self, dataset: Appendable, wait: Wait) -> bool:
        """Whether a commit failed since somebody was faster; then wait a moment before the next."""
        now = self.look()
        return now is not None and now.version != dataset.version and wait.pause()


def _shards(parts: Sequence[Path]) -> list[PartShard]:
    return [shard for part in parts for shard in noted(part)]


def _as_published(dataset: Appendable, shard: PartShard) -> str:
    """Lance's description of a shard, as one of the dataset."""
    return dataset.described(shard.described, {files_in(shard.described)[0]: shard.file})


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process at a time publishes in a folder."""
    held = wait_for(
        lambda: lock(folder, alone=True), folder, _DEADLINE_S, "a process that publishes there", SourceError, quiet=True
    )
    try:
        yield
    finally:
        held.release()
