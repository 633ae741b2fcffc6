"""Replace references by the bytes that they name, so that rows can be taken anywhere."""

from collections.abc import Iterator

import pyarrow as pa

from spiral_stream.semantic import semantic_of
from spiral_stream.sources.references.policy import Reach
from spiral_stream.sources.references.resolve import payload

TOGETHER = 64  # rows whose payload is held at a time


def inline_schema(schema: pa.Schema) -> pa.Schema:
    """Return the columns with bytes where references are; their semantic types stay."""
    return pa.schema([field.with_type(_inline(field.type)) if _refers(field) else field for field in schema])


def inlined(batch: pa.RecordBatch, reach: Reach) -> Iterator[pa.Table]:
    """Yield the rows with the bytes that their references name, some at a time.

    Args:
        batch: of the source's columns.
        reach: what the references may name.

    Raises:
        SourceError: a file cannot be read.
    """
    schema = inline_schema(batch.schema)
    step = TOGETHER if any(map(_refers, batch.schema)) else max(1, len(batch))
    for at in range(0, len(batch), step):
        piece = batch.slice(at, step)
        arrays = [
            pa.array(payload(column, reach), _inline(field.type)) if _refers(field) else column
            for column, field in zip(piece.columns, batch.schema, strict=True)
        ]
        yield pa.table(arrays, schema=schema)


def _refers(field: pa.Field) -> bool:
    kind = field.type.value_type if _is_list(field.type) else field.type
    return semantic_of(field) is not None and not (pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _inline(kind: pa.DataType) -> pa.DataType:
    return pa.list_(pa.large_binary()) if _is_list(kind) else pa.large_binary()
