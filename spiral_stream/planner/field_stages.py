"""What a field of a batch has become: its stage, which answers for its kind wherever somebody asks.

A kind of field is one class. `planner.lower` asks the classes in order which of them a plan's field is of (`FieldStage.of`).
`runtime.fields.kinds` is the list of them, and each lies in the room that fills its fields. Batches, EXPLAIN, caches and
contact sheets ask the stage, and know no kind by name. No payload is read here, and nothing runs.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar, final

import numpy as np
import pyarrow as pa

from spiral_stream.batching.formation import Formation
from spiral_stream.cache.kinds.kind import Kind
from spiral_stream.cache.store.store import CacheStore
from spiral_stream.errors import PlanError
from spiral_stream.fields.field import Field, FieldSpec
from spiral_stream.fields.sequence import SequenceField, is_tokens
from spiral_stream.fields.step_total import StepTotal
from spiral_stream.host_dtypes import host_dtype
from spiral_stream.plan.fields.dtypes import together, widths_of
from spiral_stream.plan.fields.profiles import Original, Profile
from spiral_stream.plan.nodes import Collate
from spiral_stream.plan.tree import profiles
from spiral_stream.planner.columns.lineage import Lineage
from spiral_stream.planner.columns.payload import Payload, payload_of
from spiral_stream.planner.columns.streams import StreamStage

K = TypeVar("K", bound=Kind)


@final
@dataclass(frozen=True, slots=True, eq=False)
class PayloadCache(Generic[K]):
    """A payload column as one stream reads it, the form it is cached in, and the cache's folder."""

    payload: Payload
    kind: K
    store: CacheStore


@dataclass(frozen=True, slots=True, eq=False)
class FieldStage(ABC):
    """A field of a batch, and what everybody asks of it. Each kind of field derives from it, in a room of `runtime.fields`.

    `of` makes it of a plan's field, and `opened` what fills it; the rest is what a field of numbers would answer.
    """

    FILLED: ClassVar[bool] = False  # whether another field of the batch makes its array, and nothing is read for it
    DECODES: ClassVar[bool] = False  # whether bytes become numbers
    NEIGHBOURS: ClassVar[bool] = False  # whether rows near those of a batch are worth fetching with them
    UNKNOWN_ITEMS: ClassVar[int] = 256  # that a dimension counts for where only the data knows it

    name: str
    column: str  # that is copied, or names the bytes
    spec: FieldSpec
    payloads: tuple[Payload, ...] = dataclass_field(default=(), kw_only=True)  # where the bytes lie, per stream
    caches: tuple[PayloadCache[Any], ...] = dataclass_field(
        default=(), kw_only=True
    )  # what `materialize` builds, per stream

    @classmethod
    @abstractmethod
    def of(cls, name: str, field: Field, spec: FieldSpec, lowering: "Lowering") -> "FieldStage | None":
        """Lower a field of a plan; None if it is of another kind.

        Args:
            name: of the field.
            field: of the plan.
            spec: what the batch will hold.
            lowering: the rest of the plan.
        """

    def opened(self, lineage: Lineage, metrics: Any) -> Any:
        """Open what fills the field, a `runtime.fields.payload_field.PayloadField`; None if columns do."""
        del lineage, metrics

    @property
    def read(self) -> tuple[str, ...]:
        """The columns that are read before `opened` starts; none where rows are looked up by address."""
        return ()

    @property
    def is_mask(self) -> bool:
        """Whether the field tells values from padding."""
        return False

    @property
    def draws(self) -> bool:
        """Whether the field draws random numbers."""
        return False

    @property
    def ends_on_device(self) -> bool:
        """Whether a device may normalize the values."""
        return False

    @property
    def frames(self) -> int:
        """Frames of video per sample."""
        return 0

    @property
    def held_frames(self) -> int:
        """Frames, in the size of their file, that a thread holds while it decodes a sample."""
        return 0

    @property
    def when(self) -> str:
        """When and where the field is made, for EXPLAIN; the device follows. Empty: EXPLAIN has no line for it."""
        return "with membership;"

    @property
    def value(self) -> tuple[int, str] | str:
        """Bytes of a value and what a value is, for EXPLAIN; or why nobody knows."""
        if self.spec.dtype is None:
            return "Python values"
        items = int(np.prod([n or 1 for n in self.spec.shape], dtype=np.int64))
        return items * host_dtype(self.spec.dtype).itemsize, ""

    def formed_bytes(self, formation: Formation, rows: int) -> int | None:
        """Return the most bytes of a field whose items are counted by no row: 0 for other fields, None if nobody knows.

        Args:
            formation: of the batches; its budgets bound them.
            rows: of a batch.
        """
        del formation, rows
        return 0

    def task_rows(self, rows: int) -> int:
        """Return how many rows a task fetches over a network, where ``rows`` is the usual number; 0: it is not foretold."""
        return rows if self.payloads else 0

    def pictures(self, fields: Mapping[str, Any], row: int) -> list[Any] | None:
        """Return what a row of a batch shows: pictures, [H, W, 3], uint8 each; None if it is none of pixels."""
        del fields, row
        return None

    @property
    def sample_rate(self) -> int | None:
        """Of sound, in Hz."""
        return None


@dataclass(frozen=True, slots=True, eq=False)
class PlainStage(FieldStage):
    """A field copied from a column."""

    field: Field

    @classmethod
    def of(cls, name: str, field: Field, spec: FieldSpec, lowering: "Lowering") -> FieldStage | None:
        """See `FieldStage`: every field that is of no other kind."""
        del lowering
        return cls(name, field.column, spec, field)

    @property
    def is_mask(self) -> bool:
        """See `FieldStage`."""
        return self.field.MASK

    def shape(self, rows: int) -> tuple[int, ...]:
        """Return the array's shape for this many rows."""
        return (rows, *(n for n in self.spec.shape if n is not None))


@final
@dataclass(frozen=True, slots=True, eq=False)
class SequenceStage(FieldStage):
    """A field of token sequences: padded, or placed by a packing."""

    field: SequenceField
    multiple: int = 1  # widths are multiples of this, for all fields of the column
    length: int | None = None  # the width of every batch, if one of the column's fields says it
    together: tuple[str, ...] = ()  # the columns that share their width, this one included; empty if it is alone

    @classmethod
    def of(cls, name: str, field: Field, spec: FieldSpec, lowering: "Lowering") -> FieldStage | None:
        """See `FieldStage`."""
        if not isinstance(field, SequenceField):
            return None
        fields, column = lowering.collate.fields, field.column
        multiple, length = widths_of(fields, column)
        if is_tokens(lowering.have.field(column).type):
            return cls(name, column, spec, field, multiple, length, together(fields, column))
        return PlainStage(name, column, spec, field.rows(multiple, length))

    @property
    def is_mask(self) -> bool:
        """See `FieldStage`."""
        return self.field.MASK

    @property
    def when(self) -> str:
        """See `FieldStage`."""
        return f"in Collate, one pass over {self.column};"

    @property
    def value(self) -> tuple[int, str] | str:
        """See `FieldStage`."""
        return (np.dtype(self.spec.dtype).itemsize, " a token") if self.spec.dtype else "Python values"


@final
@dataclass(frozen=True, slots=True, eq=False)
class StepTotalStage(FieldStage):
    """What an optimizer step comes to: a number that is known when a batch is drawn."""

    field: StepTotal

    @classmethod
    def of(cls, name: str, field: Field, spec: FieldSpec, lowering: "Lowering") -> FieldStage | None:
        """See `FieldStage`."""
        del lowering
        return cls(name, field.column, spec, field) if isinstance(field, StepTotal) else None


@final
@dataclass(frozen=True, eq=False)
class Lowering:
    """The plan that fields are lowered for: what is collated, out of which streams, and the folder of their caches."""

    collate: Collate
    streams: Sequence[StreamStage]
    root: Path

    @cached_property
    def have(self) -> pa.Schema:
        """The columns that fields are collated from."""
        return self.collate.schema()

    def payloads(self, name: str, column: str) -> tuple[Payload, ...]:
        """Find where a field's bytes lie, per stream.

        Raises:
            PlanError: the column is computed.
        """
        return tuple(self._payload(name, column, stream) for stream in self.streams)

    def _payload(self, name: str, column: str, stream: StreamStage) -> Payload:
        found = payload_of(stream.selected, stream.base, column)
        if found is None:
            msg = (
                f"collate: field {name!r}: {column!r}{f' of stream {stream.name!r}' if stream.name else ''} is computed, or "
                "of a joined relation that is itself joined or computed; payload is read from a relation of the "
                "catalog: join that one by itself"
            )
            raise PlanError(msg)
        return found

    def profiles(self, column: str) -> list[Profile]:
        """Return the form in which a column is cached, per stream."""
        return [profiles(stream.node).get(column, Original()) for stream in self.streams]

    def cached(self, payload: Payload, kind: K) -> "PayloadCache[K]":
        """Return the cache of a payload in one form."""
        return cached(payload, kind, self.root)


def cached(payload: Payload, kind: K, root: Path) -> "PayloadCache[K]":
    """Return the cache of a payload in one form, in a folder of caches."""
    return PayloadCache(payload, kind, CacheStore(root / "caches" / kind.fingerprint, kind.facts()))
