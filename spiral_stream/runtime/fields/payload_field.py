"""What a batch, and what fetches for the next epoch, ask of a field of payload. Each kind of payload has a room of its own.

A field whose rows are looked up by address is started before any column is known; that of a column which names its bytes,
when the column was read.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Protocol, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.planner.columns.lineage import Lineage
from spiral_stream.planner.columns.payload import Payload
from spiral_stream.planner.columns.streams import split
from spiral_stream.planner.stages import Stages
from spiral_stream.runtime.columns.rows_ahead import RowsAhead, least
from spiral_stream.runtime.columns.samples import Samples
from spiral_stream.runtime.fetch import chunks
from spiral_stream.runtime.fields.draft import Draft
from spiral_stream.runtime.metrics import Metrics
from spiral_stream.sampling.epoch import StreamRows
from spiral_stream.sampling.order import UInt64
from spiral_stream.semantic import is_list
from spiral_stream.sources.references.objects import names_objects

Fetch = Callable[[], object]
Int64 = NDArray[np.int64]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Coming:
    """A batch of which only bytes are fetched, ahead of its time.

    Attributes:
        samples: of the batch.
        columns: the columns that name bytes, and were read.
        keys: draws the random keys of samples; None where that takes more than reading.
    """

    samples: Samples
    columns: Mapping[str, pa.Array]
    keys: Callable[[Samples], UInt64] | None


class PayloadFeed(Protocol):
    """The payload of one column of one relation."""

    rows: RowsAhead  # of the relation

    def left(self, ordinals: UInt64) -> UInt64:
        """Return the rows that no cache has, so that they are read from the source."""
        ...


class PayloadField(ABC):
    """A field of payload of a pass, for samples of one or several streams. Thread-safe.

    Args:
        name: of the field.
        column: that names the bytes, or holds them.
        payloads: where they lie, per stream.
        feeds: what looks rows up, per stream; none where the column is read with the batch.
    """

    task_rows: int  # that are fetched at a time, ahead of their batch
    AFTER_COLUMNS: ClassVar[bool] = (
        False  # whether it needs the columns of its batch, although rows are looked up by address
    )

    def __init__(self, name: str, column: str, payloads: Sequence[Payload], feeds: Sequence[PayloadFeed] = ()) -> None:
        self.name, self.column, self.payloads, self._looked_up = name, column, payloads, feeds

    @property
    def by_address(self) -> bool:
        """Whether rows are looked up when their bytes are; else the column is read with the batch."""
        return bool(self._looked_up)

    @property
    def room(self) -> int | None:
        """How many rows may be read together, by the size of those that were read last; None: nobody knows yet."""
        return least([feed.rows.room for feed in self._looked_up])

    def expect(self, stream_rows: StreamRows) -> None:
        """Note that these samples come next, so that whoever reads the first of them reads all."""
        for stream, ordinals in self.ordinals(stream_rows):
            feed = self._looked_up[stream]
            feed.rows.expect(feed.left(ordinals))

    def ordinals(self, stream_rows: StreamRows) -> Iterator[tuple[int, UInt64]]:
        """Yield each stream of some samples, and the rows of its relation that hold their payload."""
        for stream, where in split(stream_rows):
            yield stream, self.payloads[stream].ordinals(stream_rows.rows[where])

    @abstractmethod
    def start(self, draft: Draft) -> None:
        """Make the array of a batch, and start the tasks that fill it."""

    def fetches(self, coming: Coming) -> Iterator[Fetch]:
        """Yield what fetches the bytes of a batch that come over a network, piece by piece."""
        places, values = coming.samples.stream_rows, None if self.by_address else coming.columns[self.column]
        far = self.far(places, values)
        for start, stop in chunks(len(far), self.task_rows):
            some = far[start:stop]
            yield partial(self.fetch_far, places.take(some), None if values is None else values.take(pa.array(some)))

    def fetch_far(self, stream_rows: StreamRows, values: pa.Array | None) -> object:
        """Fetch the bytes of samples as their batch will do; ``values`` are those of the column, if it was read."""
        raise NotImplementedError

    def far(self, stream_rows: StreamRows, values: pa.Array | None = None) -> Int64:
        """Return the places of samples whose bytes come over a network and are kept on the node."""
        far = [
            where
            for stream, where in split(stream_rows)
            if _is_far(
                self.payloads[stream], stream_rows.rows[where], None if values is None else values.take(pa.array(where))
            )
        ]
        return np.sort(np.concatenate([np.empty(0, dtype=np.int64), *far]))


def payload_fields(stages: Stages, lineage: Lineage, metrics: Metrics) -> list[PayloadField]:
    """Open the fields of payload.

    Args:
        stages: the lowered plan.
        lineage: of its maps.
        metrics: where time and bytes are counted.
    """
    out = list[PayloadField]()
    for stage in stages.fields:
        opened = stage.opened(lineage, metrics)
        if opened is not None:
            out.append(opened)
    return out


def _is_far(payload: Payload, rows: UInt64, values: pa.Array | None) -> bool:
    relation, kind = payload.relation, payload.relation.schema.field(payload.column).type
    inner = kind.value_type if is_list(kind) else kind
    if pa.types.is_binary(inner) or pa.types.is_large_binary(inner):
        return values is None and relation.remote and relation.node_cached  # else the column was read already
    if values is None and relation.remote:
        return True
    if values is None:
        values = relation.fetch(payload.ordinals(rows), [payload.column])[payload.column]
    return names_objects(values, relation.base)
