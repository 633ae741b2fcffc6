"""What EXPLAIN explains: a lowered plan, the bindings of a run, and the facts that sections share.

Facts that take time (rows in caches, the epoch's first batches) are computed once, when a section first asks.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.batching import tail
from spiral_stream.batching.lanes import Lanes
from spiral_stream.catalog.registry import Registry
from spiral_stream.explain.formed import FirstBatches, first_batches
from spiral_stream.expr import kind_of
from spiral_stream.plan.verbs.maps import SampleTokens
from spiral_stream.planner.binding.bindings import Bound
from spiral_stream.planner.columns.streams import StreamStage
from spiral_stream.planner.prepared_data.build import CacheWork, built, caches, needed
from spiral_stream.planner.stages import Stages
from spiral_stream.runtime.columns.samples import SampleReader
from spiral_stream.runtime.forming.inputs import Forming
from spiral_stream.runtime.metrics import Metrics
from spiral_stream.runtime.numbering.numbering import BatchStore
from spiral_stream.runtime.numbering.run_batches import RunBatches
from spiral_stream.semantic import semantic_of

MEETING_ROWS: Final = 65_536  # looked at, to tell what meets in a batch
STOPS: Final = 0  # the stream fails, or delivers nothing
COSTS: Final = 1  # what makes training slow or bad


@dataclass(slots=True)
class Warnings:
    """Warnings for the user, each with its remedy; the worst first, then in the order of discovery."""

    found: list[tuple[int, str]] = field(default_factory=list)

    def add(self, text: str, rank: int = COSTS) -> None:
        """Add a warning."""
        self.found.append((rank, text))

    def lines(self) -> list[str]:
        """Return all warnings, numbered."""
        return [f"{i} {text}" for i, (_, text) in enumerate(sorted(self.found, key=lambda each: each[0]), 1)]


@final
@dataclass(frozen=True, eq=False)
class Subject:
    """The stream that is explained."""

    stages: Stages
    bound: Bound
    devices: Mapping[str, str | None]  # where each array field is delivered
    threads: int
    metrics: Mapping[str, Any] | None  # what the running stream measured
    numbering: RunBatches
    catalog: Registry
    state_bytes: int  # of a state at the epoch's start, as JSON
    decided: Sequence[Mapping[str, Any]] = ()  # the shares that the run decided on
    warnings: Warnings = field(default_factory=Warnings)

    @cached_property
    def reader(self) -> SampleReader:
        """A reader of its own, which sees caches as they are now and does not count in the stream's metrics."""
        return SampleReader(self.stages, self.bound.run_seed, Metrics())

    def close(self) -> None:
        """Close the reader if a section opened it."""
        if "reader" in self.__dict__:
            self.reader.close()

    @property
    def formed(self) -> tuple[BatchStore, Forming]:
        """The batches of a plan with a formation, and what its chapters share."""
        return self.numbering.store, self.forming

    @cached_property
    def forming(self) -> Forming:
        """What the chapters of a plan with a formation share."""
        assert self.stages.formation is not None
        return Forming(self.stages, self.reader, self.stages.formation)

    @cached_property
    def rows_built(self) -> dict[tuple[str, int], int]:
        """(cache fingerprint, stream) -> rows that the stream reads and the cache holds."""
        return {key: built(work) for key, work in self._works.items()}

    @cached_property
    def rows_read(self) -> dict[tuple[str, int], int]:
        """(cache fingerprint, stream) -> rows that the stream reads of the relation that holds the payload."""
        streams = self.stages.streams
        return {
            key: streams[key[1]].selected.total if work.payload.relation is streams[key[1]].base else needed(work)
            for key, work in self._works.items()
        }

    @cached_property
    def _works(self) -> dict[tuple[str, int], CacheWork]:
        stages = self.stages
        numbers = {id(payload): k for each in stages.readers for k, payload in enumerate(each.payloads)}
        return {(work.kind.fingerprint, numbers[id(work.payload)]): work for work in caches(stages)}

    def pass_of(self, k: int) -> tuple[int, bool]:
        """Return the first pass over stream ``k`` that the epoch reads, and whether the epoch is that pass."""
        epochs, epoch = self.stages.epochs, self.bound.epoch
        size = self.stages.order.size(self.stages.streams[k].population)
        if epochs.mixture is not None:
            return int(epochs.mixture.span(epoch, k)[0]) // max(1, size), False
        if not epochs.extent.parts:
            return epoch, epochs.length(epoch) == size and self.stages.batches.lanes.count == 1
        passes, _ = epochs.extent.back(epoch, np.zeros(1, dtype=np.uint64), size)
        return int(passes[0]), False

    @cached_property
    def meeting(self) -> tuple[NDArray[np.uint64], bool]:
        """Positions of the epoch that may share a batch, shape [G, M], and whether these are all batches.

        Up to 65,536 positions, of whole batches that are delivered, or of whole windows; evenly spaced where there are more.
        """
        stages, group = self.stages, self.bound.together
        batches = stages.batches_of(self.bound.epoch)
        if stages.formation is not None:
            return _windows(batches.lanes, stages.formation.window_size), False
        count = min(tail.end(batches.last, batches.formed, group), batches.formed)
        chosen = _spaced(min(count, batches.total // batches.batch_size), batches.batch_size)
        none = np.empty((0, batches.batch_size), dtype=np.uint64)
        found = np.stack([batches.positions(each) for each in chosen.tolist()]) if len(chosen) else none
        return found, len(chosen) == count and batches.total == stages.epochs.total

    @cached_property
    def meeting_uses(self) -> tuple[NDArray[np.int32], NDArray[np.uint64]]:
        """Stream and use of each of these positions, where streams are mixed."""
        return self.stages.epochs.uses(self.bound.epoch, self.meeting[0].ravel())

    def coverage(self, fingerprints: Iterable[str]) -> tuple[int, int]:
        """Return how many rows the caches of one field hold, and how many are read; one cache per stream."""
        keys = [(fingerprint, k) for k, fingerprint in enumerate(fingerprints)]
        return sum(self.rows_built[key] for key in keys), sum(self.rows_read[key] for key in keys)

    @cached_property
    def first(self) -> FirstBatches | str:
        """The first batches of the epoch; or why they cannot be known without reading payload."""
        numbering, forming = self.formed
        return first_batches(forming, numbering, self.bound.epoch, self.payload)

    def is_built(self, fingerprint: str, stream: int) -> bool:
        """Return whether a cache holds every row that a stream needs."""
        key = (fingerprint, stream)
        return key in self._works and self.rows_built[key] == self.rows_read[key]

    @cached_property
    def payload(self) -> frozenset[str]:
        """Columns that EXPLAIN does not read: bytes, references to bytes, text that is tokenized."""
        texts = {name for node in self.stages.maps if isinstance(node, SampleTokens) for name in node.transform.columns}
        return frozenset(texts.union(*(payload_columns(stream) for stream in self.stages.streams)))


def payload_columns(stream: StreamStage) -> set[str]:
    """Return the columns of a stream that hold bytes or references to bytes."""
    fields = [*stream.base.schema, *stream.node.schema()]
    return {each.name for each in fields if semantic_of(each) or kind_of(each.type) == "binary"}


def _windows(lanes: Lanes, window: int) -> NDArray[np.uint64]:
    """The positions of whole windows; shape [G, M]."""
    size = max(1, min(window, lanes.total // lanes.count))
    begins = [np.arange(lanes.begin(k), lanes.begin(k + 1) - size + 1, size) for k in range(lanes.count)]
    starts = np.concatenate(begins).astype(np.uint64)
    return np.add.outer(starts[_spaced(len(starts), size)], np.arange(size, dtype=np.uint64))


def _spaced(count: int, rows: int) -> NDArray[np.int64]:
    """Numbers of groups: all of them, or some that are evenly spaced."""
    most = max(1, MEETING_ROWS // max(1, rows))
    return np.arange(count) if count <= most else np.linspace(0, count - 1, most).astype(np.int64)
