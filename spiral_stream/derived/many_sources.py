"""The shards of several relations as one list, so that one build makes what all of them lack.

A plan may read a thousand relations that share derivations: columns of one name and type, one filter. A build for each of
them commits a roster that grows with each, and makes files of its own. One build for all makes chunks of their shards side
by side, and commits once a second.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.derived.derivation import ShardSource
from spiral_stream.expr import Expr
from spiral_stream.sources.source import ROW


@final
@dataclass(frozen=True, slots=True, eq=False)
class ShardsTogether:
    """Where the rows of several relations lie: shards and rows of the second follow those of the first."""

    starts: NDArray[np.uint64]
    content_keys: pa.StringArray
    shard_bytes: NDArray[np.int64]


@final
class SourcesTogether:
    """Several relations that are read as one. It pickles if they do.

    Args:
        each: the relations; those of their columns that are read have the same names and types.
    """

    def __init__(self, sources: Sequence[ShardSource]) -> None:
        self._sources = tuple(sources)
        self.schema = sources[0].schema
        manifests = [one.manifest for one in sources]
        rows = [np.diff(one.starts) for one in manifests]
        self._first_shards = np.cumsum([0, *(len(one) for one in rows)])
        self._first_rows = np.cumsum([0, *(one.sum() for one in rows)]).astype(np.uint64)
        self.manifest = ShardsTogether(
            np.concatenate([[0], np.cumsum(np.concatenate(rows))]).astype(np.uint64),
            pa.concat_arrays([one.content_keys for one in manifests]),
            np.concatenate([one.shard_bytes for one in manifests]),
        )

    def scan(
        self, columns: Sequence[str], predicate: Expr | None = None, shards: Sequence[int] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Read the shards of each relation; see `ShardSource`.

        Raises:
            SourceError: a relation cannot be read.
        """
        fields = [
            pa.field(name, self.schema.field(name).type) for name in columns
        ]  # whether null is allowed may differ
        schema = pa.schema([*fields, pa.field(ROW, pa.uint64())])
        wanted = np.arange(self._first_shards[-1]) if shards is None else np.asarray(shards, np.int64)
        owners = np.searchsorted(self._first_shards, wanted, side="right") - 1
        for k in np.unique(owners).tolist():
            shards_of_source = wanted[owners == k] - self._first_shards[k]
            for batch in self._sources[k].scan(columns, predicate, shards_of_source.tolist()):
                rows = batch.column(ROW).to_numpy() + self._first_rows[k]
                yield pa.RecordBatch.from_arrays(
                    [*(batch.column(name) for name in columns), pa.array(rows)], schema=schema
                )


def together(sources: Sequence[ShardSource]) -> ShardSource:
    """Return one source of the shards of all these; of one, that one."""
    return sources[0] if len(sources) == 1 else SourcesTogether(sources)
