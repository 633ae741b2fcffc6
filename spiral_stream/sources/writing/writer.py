"""Write rows as a Lance dataset: row by row, shard by shard, from several processes at once."""

import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, NoReturn, Self, final

import pyarrow as pa

from spiral_stream.arguments import door
from spiral_stream.errors import SourceError, shown
from spiral_stream.sources.writing.destinations import target_of
from spiral_stream.sources.writing.part_files import need_columns, need_part_name, parts_in, writing
from spiral_stream.sources.writing.parts import BATCH_BYTES, MOST_ROWS, SHARD_BYTES, PartDraft, ShardCutter, sweep
from spiral_stream.sources.writing.row_checks import RowChecks

_BATCH_ROWS: Final = 4096


@final
@dataclass(frozen=True, slots=True)
class WriteResult:
    """What a writer published.

    Examples:
        >>> writer = spiral.sources.Writer("four.lance", pa.schema([("x", pa.int64())]))
        >>> writer.write({"x": 1})
        >>> writer.close().rows
        1
    """

    rows: int
    shards: int
    size_bytes: int
    version: int  # of the Lance dataset


@final
class Writer:
    """Writes rows to a Lance dataset, in shards. Use it in a ``with`` block: at its end all rows become visible at once.

    An exception in the block publishes nothing, and neither does a process that is killed; its drafts are removed by the next
    writer. Several processes may write to one dataset at the same time, each with a Writer of its own: each adds its
    rows when it is closed. Not thread-safe. Memory holds one shard.

    On an object store the rows of a writer lie on this machine's disk until it is closed; then they are put, and become
    visible by one commit. Writers on several machines may add to one dataset.

    Args:
        uri: folder of the dataset, or its URI on an object store (``s3://``, ``gs://``, ``az://``). It may exist: then its
            columns must be these, and rows are added.
        schema: the columns. Semantic types and descriptions in the fields' metadata are kept.
        shard_bytes: a shard ends when its rows have about as many bytes in memory.
        shard_rows: a shard has at most as many rows; None sets no limit.
        part: a name for what this writer adds. A dataset takes each part once, so that a job that is run again does not
            add its rows twice. None takes a new name.

    Raises:
        MissingExtraError: the package that speaks to the store is not installed.
        SourceError: the folder or the store cannot be written, the columns are not those of the dataset, or the dataset has
            the part.

    Examples:
        >>> schema = pa.schema([("text", pa.utf8()), ("label", pa.int64())])
        >>> with spiral.sources.Writer("reviews.lance", schema) as writer:
        ...     writer.write({"text": "good", "label": 1})
        >>> entry = catalog.register("reviews", spiral.Lance("reviews.lance"), identity=spiral.RowIdentity())
        >>> catalog.table("reviews").count()
        1
    """

    @door(SourceError)
    def __init__(
        self,
        uri: str | os.PathLike[str],
        schema: pa.Schema,
        *,
        shard_bytes: int = SHARD_BYTES,
        shard_rows: int | None = None,
        part: str | int | None = None,
    ) -> None:
        if shard_bytes < 1 or (shard_rows is not None and shard_rows < 1):
            msg = f"Writer: shard_bytes={shown(shard_bytes)}, shard_rows={shown(shard_rows)}. Give positive numbers"
            raise SourceError(msg)
        name = uuid.uuid4().hex if part is None else need_part_name(part)
        self._target, self._schema = target_of(uri, "Writer"), _columns(schema)
        self._together = min(BATCH_BYTES, shard_bytes)  # bytes that are given row by row before they become a batch
        self._checks, self._owner = RowChecks(self._schema), os.getpid()
        with writing(self._target.folder):
            self._target.folder.mkdir(parents=True, exist_ok=True)
        sweep(self._target)
        there = self._target.look()
        if there is not None:
            need_columns(self._target.uri, self._schema, there.schema)
            _need_new(self._target.uri, name, parts_in(there))
        self._part: PartDraft | None = PartDraft(
            self._target, name, self._schema, None if there is None else there.storage_version
        )
        self._shards = ShardCutter(self._part, shard_bytes, shard_rows or MOST_ROWS)
        self.rows = 0

    @door(SourceError)
    def write(self, rows: Mapping[str, Any] | pa.RecordBatch | pa.Table) -> None:
        """Add a row, or the rows of an Arrow batch or table.

        Args:
            rows: name of the column -> value; or columns with the schema's names and types, in any order.

        Raises:
            SourceError: a row does not fit the schema (names the row and the field), or the folder cannot be written.

        Examples:
            >>> with spiral.sources.Writer("one.lance", pa.schema([("x", pa.int64())])) as writer:
            ...     writer.write({"x": 1})
        """
        if self._part is None:
            self._need_open()
        if isinstance(rows, pa.RecordBatch | pa.Table):
            self._flush()
            self._shards.add(self._checks.table(rows, self.rows))
            self.rows += len(rows)
            return
        self._checks.add(rows, self.rows)
        self.rows += 1
        if self._checks.held_bytes >= self._together or self._checks.held >= _BATCH_ROWS:
            self._flush()

    def close(self) -> WriteResult:
        """Publish all rows at once, and end the writer.

        Raises:
            SourceError: the writer is closed, another writer published the part, or the folder cannot be written.

        Examples:
            >>> writer = spiral.sources.Writer("two.lance", pa.schema([("x", pa.int64())]))
            >>> writer.write({"x": 1})
            >>> writer.close().rows
            1
        """
        part = self._need_open()
        try:
            self._flush()
            self._shards.end()
            version = part.publish() if part.shards else 0
        finally:
            self.abort()
        return WriteResult(
            rows=sum(shard.rows for shard in part.shards),
            shards=len(part.shards),
            size_bytes=sum(shard.size_bytes for shard in part.shards),
            version=version,
        )

    def abort(self) -> None:
        """End the writer and publish nothing; does nothing to one that is closed.

        Examples:
            >>> writer = spiral.sources.Writer("three.lance", pa.schema([("x", pa.int64())]))
            >>> writer.write({"x": 1})
            >>> writer.abort()
        """
        part, self._part = self._part, None
        if part is not None and os.getpid() == self._owner:
            part.drop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self._part is not None:
            self.close()
        else:
            self.abort()

    def __reduce__(self) -> NoReturn:
        msg = "a Writer does not go to another process. Make one in each process, for the same folder"
        raise TypeError(msg)

    def _flush(self) -> None:
        """Make a batch of the rows that were given one by one."""
        self._need_open()
        if self._checks.held:
            self._shards.add(self._checks.taken(self.rows - self._checks.held))

    def _need_open(self) -> PartDraft:
        if self._part is None:
            msg = f"Writer of {self._target.uri}: it is closed. Make another one"
            raise SourceError(msg)
        if os.getpid() != self._owner:
            msg = f"Writer of {self._target.uri}: it belongs to the process that made it. Make one in each process"
            raise SourceError(msg)
        return self._part


def _columns(schema: pa.Schema) -> pa.Schema:
    if not isinstance(schema, pa.Schema):
        msg = (
            f'Writer: the schema is a {type(schema).__name__}. Give a pyarrow schema: pa.schema([("text", pa.utf8())])'
        )
        raise SourceError(msg)
    names = schema.names
    if not names or len(set(names)) < len(names):
        msg = f"Writer: the schema has {'no column' if not names else 'two columns of one name'}. Name each column once"
        raise SourceError(msg)
    return schema


def _need_new(uri: str, name: str, there: frozenset[str]) -> None:
    if name in there:
        msg = f"Writer: {uri} has part {name!r} already. Leave the part out, or give another name"
        raise SourceError(msg)
