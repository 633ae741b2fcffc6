"""The stages of a lowered plan, as values. Relations are open; no payload is read and nothing runs.

A field that is decoded, and a column that is tokenized, hold one value per stream of the plan, in the order of
`Stages.streams`: what that stream reads, in which form it is cached, and where.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar, final

import numpy as np

from spiral_stream.batching.fixed import FixedBatches
from spiral_stream.batching.formation import Formation
from spiral_stream.host_dtypes import host_dtype
from spiral_stream.plan.nodes import Collate, Deliver, Sampled
from spiral_stream.plan.tree import need
from spiral_stream.planner.columns.lineage import Made
from spiral_stream.planner.columns.mixed_columns import MixedColumns
from spiral_stream.planner.columns.payload import Payload
from spiral_stream.planner.columns.streams import StreamStage
from spiral_stream.planner.columns.values import CachedValues
from spiral_stream.planner.field_stages import FieldStage, PayloadCache, PlainStage, SequenceStage
from spiral_stream.planner.made_relations import DerivedRelation
from spiral_stream.sampling.epoch import EpochOrder
from spiral_stream.sampling.order import Order

if TYPE_CHECKING:
    from spiral_stream.cache.kinds.chats import ChatKind
    from spiral_stream.cache.kinds.tokens import TokenKind
    from spiral_stream.transforms.text.chat_encoder import ChatEncoder
    from spiral_stream.transforms.text.encoder import TextEncoder

S = TypeVar("S", bound=FieldStage)


@final
@dataclass(frozen=True, slots=True, eq=False)
class TokenStage:
    """A column of tokens. It is cached where the text is a column of each stream's own relation."""

    name: str
    column: str
    encoder: "TextEncoder | ChatEncoder"
    caches: (
        "tuple[PayloadCache[TokenKind] | PayloadCache[ChatKind], ...]"  # per stream; empty where the text is computed
    )

    @property
    def payloads(self) -> tuple[Payload, ...]:
        """Where the text lies, per stream; empty where it is computed."""
        return tuple(each.payload for each in self.caches)


@final
@dataclass(frozen=True, eq=False)
class Stages:
    """The stage list of a stream: selections -> order -> maps -> batches -> fields -> delivery.

    Nothing of it changes, so what is said of the list is found once, when somebody asks.
    """

    plan: Deliver
    fingerprint: str
    canonical: Any
    data_versions: Mapping[str, str]
    streams: tuple[StreamStage, ...]
    epochs: EpochOrder
    batches: FixedBatches  # of the epoch's positions; where there is a formation, for its lanes only
    formation: Formation | None
    identity: tuple[str, ...]
    maps: tuple[Sampled, ...]  # in order, first after sample first
    fields: tuple[FieldStage, ...]  # in the order of the batch's keys
    tokens: tuple[TokenStage, ...]
    warnings: tuple[str, ...]
    derived: tuple[DerivedRelation, ...] = ()  # relations that the plan makes itself
    values: tuple[CachedValues, ...] = ()  # of functions, one for each `.cache()` after sample

    @cached_property
    def cached(self) -> frozenset[Made]:
        """The columns of maps whose values are kept, for every row."""
        return frozenset(key for each in self.values for key in each.keys)

    @cached_property
    def readers(self) -> tuple[FieldStage | TokenStage, ...]:
        """What may read payload: the columns of tokens, then the fields."""
        return (*self.tokens, *self.fields)

    @cached_property
    def plains(self) -> tuple[PlainStage, ...]:
        """The fields that copy a column."""
        return self.of(PlainStage)

    @cached_property
    def sequences(self) -> tuple[SequenceStage, ...]:
        """The fields of token sequences."""
        return self.of(SequenceStage)

    def of(self, kind: type[S]) -> tuple[S, ...]:
        """The fields of one kind."""
        return tuple(each for each in self.fields if isinstance(each, kind))

    @property
    def order(self) -> Order:
        """The plan's order."""
        return self.epochs.order

    def batches_of(self, epoch: int) -> FixedBatches:
        """Return the batches of an epoch: `batches`, except where the epoch has fewer positions than others."""
        length = self.epochs.length(epoch)
        if length == self.batches.total:
            return self.batches
        return replace(self.batches, lanes=replace(self.batches.lanes, total=length))

    @cached_property
    def mixed_columns(self) -> MixedColumns | None:
        """The narrow columns that all streams have, where there are several."""
        return MixedColumns(self.streams) if len(self.streams) > 1 else None

    @property
    def mixed(self) -> bool:
        """Whether there are several streams."""
        return self.epochs.mixture is not None

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The small columns that every batch reads, identity first."""
        names = dict.fromkeys([*self.identity, *(stage.column for stage in self.plains)])
        return tuple(names)

    @cached_property
    def field_names(self) -> tuple[str, ...]:
        """The batch's keys, in order."""
        return tuple(name for name, _ in need(self.plan, Collate).fields)

    def multiple(self, column: str) -> int:
        """Return the number that widths of a token column's fields are multiples of; all of them share one."""
        return next(stage.multiple for stage in self.sequences if stage.column == column)

    @property
    def formed(self) -> bool:
        """Whether formation, not arithmetic, says who shares a batch."""
        return self.formation is not None

    def close(self) -> None:
        """Release the relations."""
        for stream in self.streams:
            stream.selected.close()
        for each in self.derived:
            each.held.release()

    def batch_bytes(self, rows: int) -> int:
        """Return bytes of a batch's arrays; unknown dimensions count as the kinds of fields say."""
        total = 0
        for stage in self.fields:
            if stage.spec.dtype is not None:
                shape = [stage.UNKNOWN_ITEMS if n is None else n for n in stage.spec.shape]
                total += rows * int(np.prod(shape, dtype=np.int64)) * host_dtype(stage.spec.dtype).itemsize
        return total
