"""The rows of one part of a cache as Arrow batches: offsets, narrow columns, and payload as blobs."""

from collections.abc import Iterable, Iterator
from typing import final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.cache.kinds.kind import Rows
from spiral_stream.cache.store.reader import PAYLOAD

Chunk = tuple[NDArray[np.uint32], Rows]  # [P] offsets inside the source shard, and the payload of those rows


@final
class PartRows:
    """The rows of one part on their way to disk, counted as they pass.

    Attributes:
        mask: shape [rows of the shard], bool: the rows that passed so far.
        bytes: payload bytes that passed so far.
        refused: rows that passed without payload.
        failed: the error that ended the rows, if one did; Lance would wrap it as its own. Who raises it takes it out.
    """

    def __init__(self, schema: pa.Schema, shard_rows: int) -> None:
        self._schema = schema
        self.mask = np.zeros(shard_rows, dtype=np.bool_)
        self.bytes = self.refused = 0
        self.failed: list[Exception] = []

    def batches(self, chunks: Iterable[Chunk]) -> Iterator[pa.RecordBatch]:
        """Yield one Arrow batch per chunk."""
        try:
            for offsets, rows in chunks:
                self.mask[offsets] = True
                self.bytes += int(rows.sizes.sum())
                self.refused += len(rows.refused)
                yield _batch(self._schema, offsets, rows)
        except Exception as error:
            self.failed.append(error)
            raise


def _batch(schema: pa.Schema, offsets: NDArray[np.uint32], rows: Rows) -> pa.RecordBatch:
    count, kind = len(offsets), schema.field(PAYLOAD).type
    ends = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(rows.sizes, out=ends[1:])
    mask = np.zeros(count, dtype=np.bool_)
    mask[list(rows.refused)] = True
    reasons = [None] * count if not rows.refused else [rows.refused.get(at) for at in range(count)]
    data = pa.Array.from_buffers(pa.large_binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(rows.payload)])
    storage = pa.StructArray.from_arrays(
        [data, pa.nulls(count, pa.utf8()), pa.nulls(count, pa.uint64()), pa.nulls(count, pa.uint64())],
        fields=list(kind.storage_type),
        mask=pa.array(mask),
    )
    columns = [
        pa.array(offsets, pa.uint32()),
        *(pa.array(values, pa.int32()) for values in rows.narrow.values()),
        pa.array(reasons, pa.string()),
        pa.ExtensionArray.from_storage(kind, storage),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
