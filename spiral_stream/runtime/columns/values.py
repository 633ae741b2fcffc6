"""Compute the values of cached functions, shard by shard, on the executor that the caller chose.

`ValueSource` gives the one builder of derived data (`derived.build`) a relation whose columns are what the functions give
for the rows that the plan keeps. Another process opens the plan again.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, final

import numpy as np
import pyarrow as pa

from spiral_stream.derived.build import build
from spiral_stream.derived.derivation import ShardTable
from spiral_stream.display.progress import Progress, Report, working
from spiral_stream.expr import Expr
from spiral_stream.plan.verbs.maps import SampleFilter, SampleFlatMap
from spiral_stream.planner.columns.lineage import REFUSED, Made
from spiral_stream.planner.columns.values import CachedValues
from spiral_stream.planner.prepared_data.build import CacheStatus
from spiral_stream.planner.stages import Stages
from spiral_stream.runtime.columns.error_sample import blaming
from spiral_stream.runtime.columns.row_maps import rows_through
from spiral_stream.runtime.columns.samples import SampleReader, Samples
from spiral_stream.sampling.epoch import StreamRows
from spiral_stream.sources.source import ROW
from spiral_stream.threads import doing

ROWS_AT_ONCE: Final = 1024
Opened = Callable[[], tuple[Stages, SampleReader]]


@final
class ValueSource:
    """The rows that one stream of a plan keeps, with what a boundary's functions give for each. It pickles.

    Args:
        opened: opens the plan, in this process or in another one.
        stream: which stream.
        boundary: which boundary.
    """

    def __init__(self, opened: Opened, stream: int, boundary: int) -> None:
        self._opened, self._stream, self._boundary = opened, stream, boundary
        self._found: tuple[Stages, SampleReader] | None = None

    def _open(self) -> tuple[Stages, SampleReader]:
        if self._found is None:
            self._found = self._opened()
        return self._found

    @property
    def made(self) -> CachedValues:
        """What is made."""
        return self._open()[0].values[self._boundary]

    @property
    def schema(self) -> pa.Schema:
        """The columns: "0", "1", ..."""
        return pa.schema([(str(k), kind) for k, (_, kind) in enumerate(self.made.boundary.outputs)])

    @property
    def manifest(self) -> ShardTable:
        """The shards of the relation."""
        return self._open()[0].streams[self._stream].base.manifest

    def scan(
        self, columns: Sequence[str], predicate: Expr | None = None, shards: Sequence[int] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield what the functions give, some rows at a time, with logical ordinals in ``ROW``."""
        assert predicate is None
        assert shards is not None
        stages, reader = self._open()
        stream, boundary, schema = stages.streams[self._stream], self.made.boundary, self.schema
        outputs = [key for key, _ in boundary.outputs]
        for shard in shards:
            first, end = stream.selected.firsts[shard : shard + 2].tolist()
            name = stream.base.manifest.shard_names[shard].as_py()
            for begin in range(first, end, ROWS_AT_ONCE):
                rows = np.arange(begin, min(begin + ROWS_AT_ONCE, end), dtype=np.uint64)
                samples = self._samples(rows)
                with doing(f"keeping values of shard {name}"), blaming(stages, samples):
                    found = rows_through(reader, samples, boundary.end, outputs, boundary.filters)
                typed = [_typed(each, kind) for each, (_, kind) in zip(found, boundary.outputs, strict=True)]
                ordinals = pa.array(stream.selected.columns.ordinals(rows), pa.uint64())
                with_rows = schema.append(pa.field(ROW, pa.uint64()))
                batch = pa.RecordBatch.from_arrays([*typed, ordinals], schema=with_rows)
                yield batch.select([*columns, ROW])

    def _samples(self, rows: Any) -> Samples:
        return Samples.at(StreamRows(np.full(len(rows), self._stream, np.int32), rows, np.zeros(len(rows), np.uint64)))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_found": None}


def _typed(values: pa.Array, kind: pa.DataType) -> pa.Array:
    return values if values.type == kind else values.cast(kind)


def keep_values(opened: Opened, stages: Stages, report: Report | None) -> Progress:
    """Make the values of every boundary, in order; what is there already costs nothing.

    Args:
        opened: opens the plan again, so that a boundary reads what the one before it keeps.
        stages: the plan as it is open.
        report: called with what is done of each build.

    Returns:
        what there is now.
    """
    done = Progress()
    for number, values in enumerate(stages.values):
        for at in range(len(stages.streams)):
            source = ValueSource(opened, at, number)
            with working(f"values of {_names(values)}"):
                build(source, [values.values[at]], values.root, report=report)
            have, need, size = values.built(at)
            shards = len(stages.streams[at].base.manifest.shard_names)
            done += Progress(shards, shards, have, need, 0, size)
    return done


def value_statuses(stages: Stages) -> list[CacheStatus]:
    """Return how far the values of each boundary are made, per stream."""
    out = []
    for values in stages.values:
        for at, stream in enumerate(stages.streams):
            have, need, size = values.built(at)
            out.append(
                CacheStatus(
                    field=", ".join(
                        dict.fromkeys(_field(stages, key) for key, _ in values.boundary.outputs if key.name != REFUSED)
                    ),
                    relation=stream.base.entry.name,
                    column=", ".join(values.boundary.stored),
                    form=f"values of {_names(values)}",
                    fingerprint=values.values[at].fingerprint,
                    folder=values.files[at].folder,
                    rows=need,
                    built=have,
                    payload_bytes=size,
                )
            )
    return out


def _field(stages: Stages, key: Made) -> str:
    """What a kept column is, for people."""
    step = stages.maps[key.at]
    if isinstance(step, SampleFilter):
        assert not isinstance(step.predicate, Expr)
        return f"filter {step.predicate.name}"
    return step.name if isinstance(step, SampleFlatMap) else key.name


def _names(cached: CachedValues) -> str:
    return ", ".join(dict.fromkeys(cached.boundary.names))
