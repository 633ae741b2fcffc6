"""Rows that were computed once and stored: a Lance dataset whose units are named by their content.

Lance names a fragment by its file, which has another name wherever the same rows are written again. Here the key of a
unit is the digest of its rows, so that a table that is made again is the same data, and a run goes on with it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.expr import Expr
from spiral_stream.sources.arrow.table import Arrow
from spiral_stream.sources.lance.fragments import write_fragments
from spiral_stream.sources.lance.source import Lance
from spiral_stream.sources.source import ROW, Reader, Source, Unit

SHARD_ROWS = 1 << 18  # rows of a shard: enough to read at once, and small enough to shuffle shards


@final
@dataclass(frozen=True, slots=True)
class Computed(Source):
    """Rows that `write_rows` wrote.

    Args:
        uri: folder of the dataset.
        keys: the digest of each unit.
        columns: the columns, with the types that they were computed with.
    """

    KIND: ClassVar[str] = "computed"
    uri: str
    keys: tuple[str, ...]
    columns: pa.Schema

    def open(self) -> "ComputedReader":
        return ComputedReader(self)

    def digests(self) -> tuple[str, ...]:
        """Read all rows; return the digest of each unit.

        Raises:
            SourceError: they cannot be read.
        """
        with self.open() as reader:
            return tuple(self._digest(reader, k) for k in range(len(reader.units())))

    def _digest(self, reader: "ComputedReader", unit: int) -> str:
        batches = [batch.drop_columns([ROW]) for batch in reader.scan(self.columns.names, None, [unit])]
        return Arrow(pa.Table.from_batches(batches, self.columns)).digest()


@final
class ComputedReader(Reader):
    """A Lance reader with the units' own keys and the columns' own types."""

    def __init__(self, source: Computed) -> None:
        self._keys, self.schema = source.keys, source.columns
        self._rows = Lance(source.uri, version=1).open()
        self.base, self.allow_outside = self._rows.base, False

    def units(self) -> Sequence[Unit]:
        return [replace(unit, content_key=key) for unit, key in zip(self._rows.units(), self._keys, strict=True)]

    def scan(
        self, columns: Sequence[str], predicate: Expr | None = None, units: Sequence[int] | None = None
    ) -> Iterator[pa.RecordBatch]:
        schema = pa.schema([*(self.schema.field(name) for name in columns), (ROW, pa.uint64())])
        for batch in self._rows.scan(columns, predicate, units):
            yield pa.record_batch(
                [array.cast(field.type) for array, field in zip(batch.columns, schema, strict=True)], schema
            )

    def fetch(self, rows: NDArray[np.uint64], columns: Sequence[str]) -> pa.Table:
        found = self._rows.fetch(rows, columns)
        return found.cast(pa.schema([self.schema.field(name) for name in columns])) if columns else found

    def close(self) -> None:
        self._rows.close()


def write_rows(folder: Path, rows: pa.Table) -> Computed:
    """Write rows that were computed; their units have `SHARD_ROWS` rows each.

    Args:
        folder: that the dataset becomes.
        rows: at least one.

    Raises:
        SourceError: Lance cannot write them.
    """
    write_fragments(folder, rows, SHARD_ROWS)
    unnamed = Computed(str(folder), ("",) * -(-len(rows) // SHARD_ROWS), rows.schema)
    return replace(unnamed, keys=unnamed.digests())  # as they are read: what lies under a null is not defined before
