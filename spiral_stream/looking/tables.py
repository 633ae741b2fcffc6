"""Batches as Arrow record batches, for whatever reads Arrow: DuckDB, Polars, pandas.

Arrays are not copied: an Arrow column is a view of the batch's memory, and keeps it alive. Further dimensions become lists
of fixed size; a dimension that varies from batch to batch becomes a list.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.batching.packing import Packed
from spiral_stream.errors import StreamError
from spiral_stream.fields.field import FieldSpec
from spiral_stream.fields.sequence import SequenceField
from spiral_stream.plan.nodes import Collate
from spiral_stream.semantic import is_ragged, semantic_of


def batch_schema(collate: Collate, specs: Mapping[str, FieldSpec]) -> pa.Schema:
    """Return the schema of a stream's record batches.

    Raises:
        StreamError: a field has no value per row.
    """
    fields = dict(collate.fields)
    for name, each in fields.items():
        if not each.PER_ROW:
            instead = "; Segments says the same by row" if isinstance(each, SequenceField) else ""
            msg = f"to_batches: field {name!r} ({type(each).__name__}) has no value per row. Leave it out{instead}"
            raise StreamError(msg)
    have = collate.schema()
    return pa.schema(
        [pa.field(name, _kind(each, have.field(fields[name].column), collate)) for name, each in specs.items()]
    )


def _kind(spec: FieldSpec, column: pa.Field, collate: Collate) -> pa.DataType:
    if spec.dtype is None:
        kind = pa.large_binary() if semantic_of(column) else column.type
        if semantic_of(column) and is_ragged(column.type):
            kind = pa.large_list(pa.large_binary())
        return pa.large_list(kind) if isinstance(collate.formation, Packed) else kind
    name = "float32" if spec.dtype == "bfloat16" else spec.dtype
    kind = pa.from_numpy_dtype(np.dtype(name))
    for size in reversed(spec.shape):
        kind = pa.large_list(kind) if size is None else pa.list_(kind, size)
    return kind


def record_batches(batches: Iterable[Mapping[str, Any]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield record batches of batches on the host."""
    for fields in batches:
        columns = [
            _column(value, schema.field(name).type)
            if isinstance(value, np.ndarray)
            else pa.array(value, schema.field(name).type)
            for name, value in fields.items()
        ]
        yield pa.record_batch(columns, schema=schema)


def _column(values: NDArray[Any], kind: pa.DataType) -> pa.Array:
    """Wrap an array as a column; nothing is copied but booleans, whose bits Arrow packs, and bfloat16."""
    leaf = kind
    while pa.types.is_fixed_size_list(leaf) or pa.types.is_large_list(leaf):
        leaf = leaf.value_type
    flat = np.ascontiguousarray(values).reshape(-1)
    items = pa.array(
        flat if flat.dtype.kind != "V" and flat.dtype.name != "bfloat16" else flat.astype(np.float32), leaf
    )
    for level in range(values.ndim - 1, 0, -1):
        count, size = int(np.prod(values.shape[:level], dtype=np.int64)), values.shape[level]
        inner = _level(kind, level)
        if pa.types.is_fixed_size_list(inner):
            items = pa.Array.from_buffers(inner, count, [None], children=[items])
        else:
            items = pa.LargeListArray.from_arrays(pa.array(np.arange(count + 1, dtype=np.int64) * size), items)
    return items


def _level(kind: pa.DataType, level: int) -> pa.DataType:
    """The type of the lists of one dimension."""
    for _ in range(level - 1):
        kind = kind.value_type
    return kind
