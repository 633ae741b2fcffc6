"""Read a source shard by shard: the input of derived pieces, before and after registration."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.catalog.relation.manifest import Manifest
from spiral_stream.catalog.relation.row_identity import FIELD, ROW_ID, row_ids
from spiral_stream.expr import Expr
from spiral_stream.sources.source import ROW, Reader, Source, ordinals_of


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
        """The types of its columns, as the source has them, and of `ROW_ID`."""
        stored = self._opened().schema
        return stored if ROW_ID in stored.names else stored.append(FIELD)

    def scan(
        self, columns: Sequence[str], predicate: Expr | None = None, shards: Sequence[int] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Read columns in physical order, with logical ordinals in `ROW`.

        Args:
            columns: of the source, or `ROW_ID`.
            predicate: keep only rows for which it is true.
            shards: whose rows; None reads all.

        Raises:
            SourceError: the source cannot be read.
        """
        table = self.manifest
        units = None if shards is None else table.units_of(shards)
        if self._look is not None:
            self._look(units)
        chosen = None if shards is None else np.unique(np.asarray(shards, dtype=np.intp))
        alone = chosen is None or table.unit_rows[units].sum() == table.shard_rows[chosen].sum()
        for found in self._batches(columns, predicate, units):
            if chosen is None or alone:
                yield found
            else:
                yield found.filter(pa.array(np.isin(table.shard_of(found.column(ROW).to_numpy()), chosen)))

    def _batches(
        self, columns: Sequence[str], predicate: Expr | None, units: Sequence[int] | None
    ) -> Iterator[pa.RecordBatch]:
        """Batches in physical order, with logical ordinals in `ROW`."""
        names = self._opened().schema.names
        stored = [name for name in columns if name in names]
        made = row_ids(self.manifest) if len(stored) < len(columns) else None
        only_made = not stored and predicate is None
        for batch in self._all_rows(units) if only_made else self._opened().scan(stored, predicate, units):
            physical = batch.column(ROW).to_numpy()
            arrays = {name: batch.column(name) for name in stored}
            if made is not None:
                arrays[ROW_ID] = made.of(physical)
            rows = pa.array(self.manifest.logical(physical))
            yield from pa.table([*(arrays[name] for name in columns), rows], names=[*columns, ROW]).to_batches()

    def _all_rows(self, units: Sequence[int] | None) -> Iterator[pa.RecordBatch]:
        """The rows of units without a look at the source: rows that can no longer be read have places too."""
        ends = np.cumsum(self.manifest.unit_rows)
        for unit in range(len(ends)) if units is None else sorted(units):
            yield from ordinals_of(int(ends[unit] - self.manifest.unit_rows[unit]), int(ends[unit]))

    def row_words(self, shard: int) -> NDArray[np.uint64]:
        """Return the upper half of the computed identity of each row of a shard: uint64. Reads nothing."""
        starts = self.manifest.starts[shard : shard + 2].tolist()
        return row_ids(self.manifest).words(self.manifest.physical(np.arange(*starts, dtype=np.uint64)))

    def _opened(self) -> Reader:
        if self._reader is None:
            self._reader = self._source.open()
        return self._reader

    def __reduce__(self) -> tuple[type["SourceRows"], tuple[Source, Manifest]]:
        """A copy in another process opens the source itself."""
        return SourceRows, (self._source, self.manifest)
