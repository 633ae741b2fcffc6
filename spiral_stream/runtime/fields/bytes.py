"""Fields of encoded payload: the bytes that references name, as they are stored."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spiral_stream.errors import renumbered
from spiral_stream.planner.columns.payload import Payload
from spiral_stream.planner.columns.streams import split
from spiral_stream.runtime.fields.size import object_bytes
from spiral_stream.sampling.epoch import StreamRows
from spiral_stream.semantic import is_list
from spiral_stream.sources.references.resolve import payload


def stored_bytes(payloads: Sequence[Payload], stream_rows: StreamRows, values: pa.Array) -> list[Any]:
    """Return the bytes of samples.

    Args:
        payloads: where the column lies, per stream.
        stream_rows: of P samples.
        values: shape [P], references or lists of them.

    Raises:
        DataError: a reference is wrong; ``row`` is its place in ``stream_rows``.
        SourceError: its bytes cannot be read; likewise.
    """
    if len(payloads) == 1:
        return payload(values, payloads[0].relation.base)
    out: list[Any] = [None] * len(values)
    for stream, where in split(stream_rows):
        with renumbered(where):
            found = payload(values.take(pa.array(where)), payloads[stream].relation.base)
        for at, each in zip(where.tolist(), found, strict=True):
            out[at] = each
    return out


def stored_size(values: pa.Array) -> int:
    """Return about how many bytes references name, as Python objects; files whose size nobody knows count nothing."""
    inner = values.flatten() if is_list(values.type) else values
    named = (
        pc.sum(inner.field("length")).as_py() if pa.types.is_struct(inner.type) and "length" in inner.type.names else 0
    )
    return object_bytes(values) + max(0, named or 0)
