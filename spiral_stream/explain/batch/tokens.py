"""How many tokens a row of each stream has on average, as far as that is known without reading text.

There are three sources; the first that has an answer counts: the lengths in a complete token cache, the stored lengths of
a list column, and the histogram of a numeric column with "token" in its name. Cost: 1 us per row, for up to a million
rows; of more rows, a quarter of a million are read.
"""

from dataclasses import dataclass
from typing import Final, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spiral_stream.catalog.statistics.measure import KNOWN, load_statistics
from spiral_stream.errors import DataError
from spiral_stream.explain.subject import Subject
from spiral_stream.expr import kind_of
from spiral_stream.plan.tree import origin
from spiral_stream.plan.verbs.maps import SampleAssembly, SampleFilter, SampleFlatMap
from spiral_stream.planner.columns.lineage import Lengths
from spiral_stream.planner.columns.streams import StreamStage, ordinals
from spiral_stream.runtime.columns.tokens import TokenFeed
from spiral_stream.runtime.metrics import Metrics

ALL_ROWS: Final = 1 << 20  # of a stream with up to this many rows, all are read
RUNS: Final = 8  # of larger streams, this many runs are read, evenly spaced
RUN_ROWS: Final = 1 << 15


@final
@dataclass(frozen=True, slots=True)
class MeanTokens:
    """Tokens per row, on average over a stream."""

    tokens: float
    exact: bool
    source: str


def mean_tokens(subject: Subject, stream: int) -> MeanTokens | None:
    """Return the mean over the rows that the plan keeps; None if it is not known."""
    names = sorted({stage.field.column for stage in subject.stages.sequences})
    for name in names[:1]:
        found = _cached(subject, stream, name) or _stored(subject, stream, name)
        if found is not None:
            later = any(isinstance(step, SampleFilter | SampleFlatMap | SampleAssembly) for step in subject.stages.maps)
            return MeanTokens(found.tokens, found.exact and not later, found.source)
    return _counted(subject.stages.streams[stream])


def _cached(subject: Subject, stream: int, name: str) -> MeanTokens | None:
    stages = subject.stages
    for stage in stages.tokens:
        if stage.name != name or not stage.caches:
            continue
        cache = stage.caches[stream]
        if not subject.is_built(cache.kind.fingerprint, stream):
            return None
        feed = TokenFeed(stages.streams[stream].base, cache.kind, cache.store.open(), Metrics())
        rows, is_complete = _rows(stages.streams[stream])
        try:
            lengths = feed.lengths(ordinals(stages.streams, stream, rows))
        except DataError:  # a refused row: the run will stop there, and say so
            return None
        return MeanTokens(float(lengths.mean()), is_complete, "the token cache")
    return None


def _stored(subject: Subject, stream: int, name: str) -> MeanTokens | None:
    key = subject.reader.lineage.length_key(name)
    if not subject.stages.formed or not isinstance(key, Lengths) or isinstance(subject.first, str):
        return None  # lengths of a stored list are read with the first chapter, not for an explanation
    each = subject.stages.streams[stream]
    rows, is_complete = _rows(each)
    return MeanTokens(float(each.selected.lengths(name, rows).mean()), is_complete, f"lengths of {name}")


def _rows(stream: StreamStage) -> tuple[NDArray[np.uint64], bool]:
    """The surviving rows to inspect, and whether those are all."""
    total = stream.selected.total
    if total <= ALL_ROWS:
        return np.arange(total, dtype=np.uint64), True
    starts = np.linspace(0, total - RUN_ROWS, RUNS).astype(np.uint64)
    rows: NDArray[np.uint64] = np.add.outer(starts, np.arange(RUN_ROWS, dtype=np.uint64)).ravel()
    return rows, False


def counting_column(schema: pa.Schema) -> str | None:
    """Return the numeric column that counts tokens by its name, such as ``token_count_estimate``."""
    names = [field.name for field in schema if "token" in field.name and kind_of(field.type) in ("int", "float")]
    return names[0] if names else None


def _counted(stream: StreamStage) -> MeanTokens | None:
    """The mean from the relation's statistics, which cover all of its rows, not only those that the plan keeps."""
    name = counting_column(stream.node.schema())
    column = None if name is None else origin(stream.node, name)
    statistics = load_statistics(stream.base.entry)
    if column is None or statistics is None or statistics.marks.get(column) != KNOWN:
        return None
    counted = statistics.histograms.filter(pc.equal(statistics.histograms["column"], column)).drop_null()
    if not len(counted):
        return None
    values = counted["value"].cast(pa.float64()).to_numpy()
    counts = counted["count"].to_numpy()
    return MeanTokens(float((values * counts).sum() / counts.sum()), exact=False, source=f"statistics of {column}")
