"""Fields of encoded payload: the bytes that references name, as they are stored."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spiral_stream.errors import renumbered
from spiral_stream.fields.field import Field, FieldSpec
from spiral_stream.fields.list import List
from spiral_stream.fields.ragged import Ragged
from spiral_stream.planner.columns.lineage import Lineage
from spiral_stream.planner.columns.payload import Payload
from spiral_stream.planner.columns.streams import split
from spiral_stream.planner.field_stages import FieldStage, Lowering, PlainStage
from spiral_stream.runtime.columns.error_sample import blaming
from spiral_stream.runtime.columns.samples import as_lists
from spiral_stream.runtime.fetch import chunks, only_fetched
from spiral_stream.runtime.fields.draft import TASK_ROWS, Draft
from spiral_stream.runtime.fields.payload_field import PayloadField
from spiral_stream.runtime.fields.size import object_bytes
from spiral_stream.runtime.metrics import Metrics, timed
from spiral_stream.sampling.epoch import StreamRows
from spiral_stream.semantic import is_list, semantic_of
from spiral_stream.sources.references.objects import names_objects
from spiral_stream.sources.references.resolve import payload


@final
@dataclass(frozen=True, slots=True, eq=False)
class BytesStage(PlainStage):
    """A list of the bytes that a column names."""

    @classmethod
    def of(cls, name: str, field: Field, spec: FieldSpec, lowering: Lowering) -> FieldStage | None:
        """See `FieldStage`."""
        if not isinstance(field, List) or semantic_of(lowering.have.field(field.column)) is None:
            return None
        return cls(name, field.column, spec, field, payloads=lowering.payloads(name, field.column))

    def opened(self, lineage: Lineage, metrics: Metrics) -> PayloadField:
        """See `FieldStage`."""
        return BytesField(self, metrics, lineage)

    @property
    def read(self) -> tuple[str, ...]:
        """See `FieldStage`."""
        return (self.column,)


@final
class BytesField(PayloadField):
    """A list of the bytes that a column names."""

    task_rows = TASK_ROWS

    def __init__(self, stage: BytesStage, metrics: Metrics, lineage: Lineage) -> None:
        super().__init__(stage.name, stage.column, stage.payloads)
        self._metrics = metrics
        self._key = lineage.key(stage.column, lineage.end)

    def start(self, draft: Draft) -> None:
        """See `PayloadField`."""
        values = draft.samples.columns[self._key]
        values = as_lists(values) if isinstance(values, Ragged) else values
        at_rows = draft.samples.stream_rows
        draft.listed += stored_size(values)
        if draft.shape.packing is not None:
            with blaming(draft.filling.stages, draft.samples, 0):
                flat = stored_bytes(self.payloads, at_rows, values)
            draft.fields[self.name] = draft.by_row(flat)
            return
        draft.fields[self.name] = filled = [None] * len(at_rows)

        def fill(a: int, b: int) -> None:
            with timed(self._metrics, "fetch_s"):
                filled[a:b] = stored_bytes(self.payloads, at_rows.take(np.arange(a, b)), values.slice(a, b - a))

        waits = any(names_objects(values, each.relation.base) for each in self.payloads)
        for start, stop in chunks(len(at_rows), draft.filling.task_rows):
            part = partial(draft.refusals.attempt, self.name, start, stop, fill)
            draft.parts.append(only_fetched(draft.pool, part) if waits else draft.pool.submit(part))

    def fetch_far(self, stream_rows: StreamRows, values: pa.Array | None) -> list[Any]:
        """See `PayloadField`."""
        return stored_bytes(self.payloads, stream_rows, values)


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
