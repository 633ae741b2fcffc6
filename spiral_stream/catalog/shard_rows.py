"""Rows of a source by storage shard: what pieces are made from before and after a relation is registered."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import final

import numpy as np
import pyarrow as pa

from spiral_stream.catalog.manifest import Manifest
from spiral_stream.expr import Expr
from spiral_stream.sources.source import ROW, Reader, Source


@final
class SourceRows:
    """The rows of a source under its shard table; the keys of the shards cover the rows alone. Thread-safe, pickles.

    Args:
        source: of the rows.
        manifest: its shard table.
        reader: of the source, if it is open; it stays open. Otherwise it is opened at the first scan.
        look: called with the units that are read next (None: all), before they are.
    """

    def __init__(
        self,
        source: Source,
        manifest: Manifest,
        reader: Reader | None = None,
        look: Callable[[Sequence[int] | None], None] | None = None,
    ) -> None:
        self.manifest = replace(manifest, content_keys=manifest.row_keys, pins="")
        self._source, self._reader, self._look = source, reader, look

    @property
    def schema(self) -> pa.Schema:
        """The types of its columns, as the source has them."""
        if self._reader is None:
            self._reader = self._source.open()
        return self._reader.schema

    def scan(
        self, columns: Sequence[str], predicate: Expr | None = None, shards: Sequence[int] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Read columns in physical order, with logical ordinals in `ROW`.

        Args:
            columns: of the source.
            predicate: keep only rows for which it is true.
            shards: whose rows; None reads all.

        Raises:
            SourceError: the source cannot be read.
        """
        if self._reader is None:
            self._reader = self._source.open()
        table = self.manifest
        units = None if shards is None else table.units_of(shards)
        if self._look is not None:
            self._look(units)
        chosen = None if shards is None else np.unique(np.asarray(shards, dtype=np.intp))
        alone = chosen is None or table.unit_rows[units].sum() == table.shard_rows[chosen].sum()
        for batch in self._reader.scan(list(columns), predicate, units):
            rows = table.logical(batch.column(ROW).to_numpy())
            arrays = [batch.column(name) for name in columns]
            found = pa.record_batch([*arrays, pa.array(rows)], names=[*columns, ROW])
            if chosen is None or alone:
                yield found
            else:
                yield found.filter(pa.array(np.isin(table.shard_of(rows), chosen)))

    def __reduce__(self) -> tuple[type["SourceRows"], tuple[Source, Manifest]]:
        """A copy in another process opens the source itself."""
        return SourceRows, (self._source, self.manifest)
