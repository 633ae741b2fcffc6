"""What lowering leaves: the stages of one stream, with nothing open and nothing run."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from spiral_stream.batching.fixed import FixedBatches
from spiral_stream.cache.prefix import Prefix
from spiral_stream.cache.store import CacheStore
from spiral_stream.catalog.opened import OpenRelation
from spiral_stream.fields.field import Field, FieldSpec
from spiral_stream.plan.nodes import Collate, Deliver
from spiral_stream.plan.tree import need
from spiral_stream.planner.selected import Selected
from spiral_stream.sampling.order import Order, Population
from spiral_stream.transforms.image import ImageProgram


@final
@dataclass(frozen=True, slots=True, eq=False)
class PlainStage:
    """A field copied from a column."""

    name: str
    field: Field
    spec: FieldSpec

    def shape(self, rows: int) -> tuple[int, ...]:
        """The array's shape for this many rows."""
        return (rows, *(n for n in self.spec.shape if n is not None))


@final
@dataclass(frozen=True, slots=True, eq=False)
class ImageStage:
    """A field that is fetched, decoded and transformed."""

    name: str
    column: str
    spec: FieldSpec
    prefix: Prefix
    store: CacheStore
    program: ImageProgram


@final
@dataclass(frozen=True, slots=True, eq=False)
class Stages:
    """The stage list of a stream: selection -> order -> batches -> fields -> delivery."""

    plan: Deliver
    fingerprint: str
    canonical: Any
    data_versions: Mapping[str, str]
    base: OpenRelation
    selected: Selected
    order: Order
    population: Population
    batches: FixedBatches
    identity: tuple[str, ...]
    plains: tuple[PlainStage, ...]
    images: tuple[ImageStage, ...]
    warnings: tuple[str, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """The small columns that every batch reads, identity first."""
        names = dict.fromkeys([*self.identity, *(stage.field.column for stage in self.plains)])
        return tuple(names)

    @property
    def field_names(self) -> tuple[str, ...]:
        """The batch's keys, in order."""
        return tuple(name for name, _ in need(self.plan, Collate).fields)

    def batch_bytes(self, rows: int) -> int:
        """Bytes of a batch's arrays; unknown dimensions count as 256."""
        total = 0
        for spec in [*(s.spec for s in self.plains), *(s.spec for s in self.images)]:
            if spec.dtype is not None:
                shape = [256 if n is None else n for n in spec.shape]
                total += rows * int(np.prod(shape, dtype=np.int64)) * np.dtype(spec.dtype).itemsize
        return total
