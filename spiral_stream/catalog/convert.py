"""Copy the rows of any source into a Lance dataset, unit by unit; a second call continues where the first was killed.

Each storage unit of the source becomes a part (`sources.writing.parts`) that is named by the unit and its content key.
Finished parts are kept aside, and all of them become visible at once at the end, in the order of the units. Files that
are imported (JSONL, tars and others) go through a catalog inside the drafts, which reads them in parallel and keeps
what it has read.
"""

import json
import re
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Final, final

import pyarrow as pa

from spiral_stream.catalog.registry import connect
from spiral_stream.catalog.relation.row_identity import RowIdentity
from spiral_stream.derived.work.executors import Executor, Shared, builders_in_force, building_with
from spiral_stream.display.progress import Report, Teller, working
from spiral_stream.errors import SourceError, cut
from spiral_stream.integrity.locks import LONG_PAUSES_S, Wait, enter, leave
from spiral_stream.integrity.publish import take_out
from spiral_stream.keeping.leases import Claims, ShardLeases
from spiral_stream.keeping.share import Share
from spiral_stream.keeping.store_leases import StoreLeases
from spiral_stream.sources.arrow.table import Arrow
from spiral_stream.sources.change_detection import content_key
from spiral_stream.sources.files.paths import is_remote
from spiral_stream.sources.import_source import is_imported
from spiral_stream.sources.references.inline import inline_schema, inlined
from spiral_stream.sources.references.policy import Reach
from spiral_stream.sources.serialize import source_to_json
from spiral_stream.sources.source import ROW, Source, Unit
from spiral_stream.sources.writing.destinations import WriteTarget, target_of
from spiral_stream.sources.writing.part_files import (
    DRAFTS,
    need_columns,
    noted,
    parts_in,
    remove_empty,
    staged,
    writing,
)
from spiral_stream.sources.writing.parts import (
    MOST_ROWS,
    SHARD_BYTES,
    PartDraft,
    PartThereError,
    ShardCutter,
    sweep,
    taken_back,
)
from spiral_stream.sources.writing.writer import WriteResult
from spiral_stream.storage.uri import printable

_NAME: Final = 16  # hex digits of the unit's name in the name of its part
_KEY: Final = 15  # hex digits of a lease
_TELL_AFTER_S: Final = 1.0  # of waiting for another process
_SHARD_OF_FILE: Final = re.compile("#[0-9]{4,}$")


def convert(
    source: Source,
    uri: str,
    *,
    workers: int = 1,
    shard_bytes: int = SHARD_BYTES,
    report: Report | None = None,
) -> WriteResult:
    """Copy the rows of a source, and the bytes that they refer to, into a Lance dataset.

    Args:
        source: whose rows are copied.
        uri: folder of the dataset, or its URI on an object store. Rows of units that it has from an earlier call are not
            copied again.
        workers: processes; with one, this process does the work.
        shard_bytes: a shard ends when its rows have about as many bytes in memory.
        report: called with rows that are done and rows to do.

    Returns:
        what was added.

    Raises:
        MissingExtraError: the package that speaks to the store is not installed.
        SourceError: the source cannot be read, a unit changed since it was copied, or the dataset cannot be written.
    """
    target = target_of(uri, "convert")
    aside = target.folder / DRAFTS
    sweep(target)
    about = _about(source)
    catalog = aside / f"catalog-{content_key(about)}"  # of files that are imported; all who copy them share it
    executor = Executor("threads" if workers == 1 else "processes", workers)
    with (
        working(f"convert to {cut(target.uri)}", "rows", report=report) as tell,
        _entered(aside),
        _turn(target, about),
        building_with(executor),
    ):
        if not is_imported(source):
            return _Conversion(source.pinned(), about, target, shard_bytes, tell).run()
        with _entered(catalog):
            rows = connect(catalog).register("rows", source, identity=RowIdentity(), replace=True, report=tell).source
            found = _Conversion(rows.pinned(), about, target, shard_bytes, tell).run()
        leave(catalog, take_out)  # the last one does
        return found


@contextmanager
def _entered(folder: Path) -> Iterator[None]:
    """Share a folder of the drafts. The last one removes it if it is empty."""
    with writing(folder):
        held = enter(folder)
    try:
        yield
    finally:
        held.release()
        leave(folder, remove_empty)


@contextmanager
def _turn(target: WriteTarget, about: str) -> Iterator[None]:
    """One at a time copies a source to a dataset, on all machines; who comes later waits, and finds the rows there.

    Whoever dies gives its turn back: the kernel does it on this machine, and the others stop waiting for its signs of life.
    """
    aside, key = target.folder / DRAFTS, int(content_key("turn", about)[:_KEY], 16)
    with writing(aside):
        leases: ShardLeases = Claims(aside)
    if is_remote(target.uri):
        assert isinstance(leases, Claims)
        share = Share(target.folder, target.uri, str(target.folder), "convert", has_format=False)
        leases = StoreLeases(share, aside, leases, tidy=True)
    try:
        said = f"convert: another process copies the same rows to {cut(printable(target.uri))}. This one waits until it ends"
        wait = Wait(inf, LONG_PAUSES_S, lambda _: said, _TELL_AFTER_S)
        while not (leases.is_free(key) and all(leases.take_all([key]))):
            wait.pause()
        yield
    finally:
        leases.close()


@final
class _Conversion:
    """One call of `convert`."""

    def __init__(self, source: Source, about: str, target: WriteTarget, shard_bytes: int, tell: Teller) -> None:
        self._source, self._target, self._shard_bytes, self._tell = source, target, shard_bytes, tell
        with source.open() as reader:
            self._todo = [
                _Todo(k, unit.rows, _first(about, unit), _last(unit))
                for k, unit in enumerate(reader.units())
                if unit.rows
            ]
            self._schema = inline_schema(reader.schema.remove_metadata())
        there = target.look()
        if there is not None:
            need_columns(target.uri, self._schema, there.schema)
        self._there = frozenset[str]() if there is None else parts_in(there)
        self._storage = None if there is None else there.storage_version

    def run(self) -> WriteResult:
        if not self._todo:
            msg = f"convert: {type(self._source).__name__} has no rows. Convert it when it has"
            raise SourceError(msg)
        self._refuse_changed(self._there)
        while True:
            contents = _contents(self._there)
            new = [each for each in self._todo if each.content not in contents]
            try:
                return self._add(new)
            except PartThereError:  # another machine added some of them meanwhile
                there = self._target.look()
                self._there = frozenset[str]() if there is None else parts_in(there)

    def _add(self, new: Sequence["_Todo"]) -> WriteResult:
        """Copy units that are not staged yet, and publish all of them."""
        folder, ours = self._target.folder, {each.content for each in new}
        self._copy([each for each in new if not staged(folder, each.part).is_dir()])
        parts = [staged(folder, each.part) for each in new]
        shards = [shard for part in parts for shard in noted(part)]

        def check(there: frozenset[str]) -> None:
            self._refuse_changed(there)
            if ours & _contents(there):
                msg = f"convert: another process added rows to {self._target.uri} that this one copied. Convert again"
                raise PartThereError(msg)

        version = self._target.publish(self._schema, parts, check) if parts else 0
        for part in parts:
            shutil.rmtree(part, ignore_errors=True)
        self._clean()
        rows, size = sum(shard.rows for shard in shards), sum(shard.size_bytes for shard in shards)
        return WriteResult(rows=rows, shards=len(shards), size_bytes=size, version=version)

    def _copy(self, todo: Sequence["_Todo"]) -> None:
        """Copy units, as many at a time as there are workers."""
        total = sum(each.rows for each in self._todo)
        done = total - sum(each.rows for each in todo)
        shared = Shared((self._source, self._schema, self._target, self._storage, self._shard_bytes))
        self._tell(done, total)
        waiting, running, ready = list(reversed(todo)), dict[Future[None], _Todo](), list[_Todo]()
        with builders_in_force() as builders:
            while waiting or running or ready:
                while waiting and len(running) < builders.width:
                    each = waiting.pop()
                    running[builders.submit(copy_unit, shared, each.unit, each.part)] = each
                for each in ready:
                    self._target.deliver(staged(self._target.folder, each.part))
                    done += each.rows
                    self._tell(done, total)
                finished = wait(running, return_when=FIRST_COMPLETED).done if running else ()
                ready = [running.pop(future) for future in finished]
                for future in finished:
                    future.result()

    def _refuse_changed(self, there: frozenset[str]) -> None:
        """Refuse to add a unit of which the dataset has other rows already."""
        units, now = {each.named for each in self._todo}, {each.part for each in self._todo}
        if any(part[:_NAME] in units and part not in now for part in there):
            msg = (
                f"convert: files changed since their rows were copied to {self._target.uri}, so rows would be there twice. "
                "Convert to another folder"
            )
            raise SourceError(msg)

    def _clean(self) -> None:
        """Remove what is kept aside for these units and was not published: they changed, or another process was faster."""
        folder = self._target.folder
        patterns = [staged(folder, f"{named}*").name for named in {each.named for each in self._todo}]
        parts = [part for pattern in patterns for part in (folder / DRAFTS).glob(pattern)]
        if taken_back(self._target, parts):
            for part in parts:
                shutil.rmtree(part, ignore_errors=True)


@final
@dataclass(frozen=True, slots=True)
class _Todo:
    """One unit of the source."""

    unit: int
    rows: int
    named: str  # hex digits of the source and the unit's name
    content: str  # hex digits of its rows

    @property
    def part(self) -> str:
        return self.named + self.content


def copy_unit(shared: Shared[tuple[Source, pa.Schema, WriteTarget, str | None, int]], unit: int, name: str) -> None:
    """Copy the rows of one unit to a finished part. Runs wherever the executor likes."""
    source, schema, target, storage, shard_bytes = shared.value()
    part = PartDraft(target, name, schema, storage)
    try:
        with source.open() as reader:
            shards = ShardCutter(part, shard_bytes, MOST_ROWS)
            reach = Reach(reader.base, confined=not reader.allow_outside)
            for batch in reader.scan(reader.schema.names, None, [unit]):
                for rows in inlined(batch.drop_columns([ROW]), reach):
                    shards.add(rows.cast(schema))
            shards.end()
        part.stage()
    finally:
        part.drop()


def _contents(parts: frozenset[str]) -> set[str]:
    return {part[_NAME:] for part in parts}


def _first(about: str, unit: Unit) -> str:
    """Hex digits of a unit's name. A file that is imported as several shards is one."""
    return content_key("unit", about, _SHARD_OF_FILE.sub("", unit.name))[:_NAME]


def _last(unit: Unit) -> str:
    return content_key(unit.content_key, unit.rows)


def _about(source: Source) -> str:
    """The source, whatever its version."""
    if isinstance(source, Arrow):
        return source.digest()
    return json.dumps({k: v for k, v in source_to_json(source).items() if k != "version"}, sort_keys=True)
