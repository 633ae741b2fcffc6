"""A batch while it is being built: what its fields are filled from, and what is still under way."""

from collections.abc import Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import Any, final

from spiral_stream.batching.formation import Membership
from spiral_stream.planner.lineage import Made, Stored
from spiral_stream.planner.physical import SequenceStage
from spiral_stream.runtime.bad_samples import BatchRefusals
from spiral_stream.runtime.following import BatchFollowers
from spiral_stream.runtime.samples import Samples
from spiral_stream.sampling.order import UInt64


@final
@dataclass(slots=True, eq=False)
class BatchDraft:
    """A batch whose fields are being filled."""

    samples: Samples
    shape: Membership
    keys: UInt64  # [S] random keys of the samples; zeros where nothing draws
    refusals: BatchRefusals
    pool: Executor
    fields: dict[str, Any]
    following: BatchFollowers
    parts: list[Future[None]] = field(default_factory=list)
    listed: int = 0  # bytes of the fields that are lists


@final
@dataclass(frozen=True, slots=True, eq=False)
class TokenColumn:
    """The fields of one token column."""

    column: str
    key: Stored | Made
    fields: Sequence[SequenceStage]
