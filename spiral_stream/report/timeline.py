"""How the values of a column move with ingest time.

Three ways, the first that serves: all rows of a small relation; else the time ranges of storage shards, where each covers
little of the whole, so that nothing is read; else rows in evenly spaced runs, and then shares are estimates.
"""

from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spiral_stream.catalog.relation.reader import OpenRelation
from spiral_stream.catalog.statistics.drift import Drift, drift
from spiral_stream.catalog.statistics.measure import KNOWN, Statistics
from spiral_stream.catalog.statistics.skew import Spread
from spiral_stream.explain.shares import MOST_ROWS, spaced

_BINS: Final = 40
_NARROW: Final = 0.1  # of the whole time, that a shard covers, on median
_LEAST_ROWS: Final = 20
_LEAST_SHARDS: Final = 10
OTHER: Final = "other"


@final
@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """The shares of a column's most frequent values in T bins of time."""

    time: str  # the column
    edges: NDArray[np.float64]  # [T + 1], microseconds since 1970, or the values of a column of numbers
    is_moment: bool
    values: tuple[str, ...]  # [K], the most frequent first; the last may be `OTHER`
    rows: NDArray[np.float64]  # [T, K]
    by: str  # what was counted
    drift: Drift | None  # of the rows that were read


def timeline(
    relation: OpenRelation, statistics: Statistics, spread: Spread, column: str, time: str, most: int = 7
) -> Timeline | None:
    """Return how a column moves along a time; None if the time does not vary.

    Args:
        relation: which is read, unless the time ranges of its shards say enough.
        statistics: its statistics.
        spread: of the column over shards.
        column: of labels or sources.
        time: a column of moments or numbers.
        most: values that are told apart.
    """
    total = relation.manifest.total
    found = None if total <= MOST_ROWS else _by_shard(statistics, spread, time, relation.schema.field(time).type)
    moved = None
    if found is None:
        rows, is_complete = spaced(total, MOST_ROWS)
        table = relation.fetch(rows, [column, time])
        table = table.filter(pc.is_valid(table[time]))
        axis = _axis(table[time].combine_chunks())
        texts = table[column].combine_chunks()
        texts = (texts.dictionary_decode() if pa.types.is_dictionary(texts.type) else texts).cast(pa.utf8())
        encoded = texts.dictionary_encode(null_encoding="encode")
        codes, names = encoded.indices.to_numpy().astype(np.int64), encoded.dictionary.to_pylist()
        finite = np.isfinite(axis)
        axis, codes = axis[finite], codes[finite]
        if len(axis) < _LEAST_ROWS:
            return None
        moved = drift(np.unique(codes, return_inverse=True)[1], axis)
        weights, by = np.ones(len(axis)), f"{'all' if is_complete else '~'} {len(axis):,} rows"
    else:
        axis, codes, weights, by = found
        names = list(spread.values)
    if not len(axis) or axis.min() == axis.max():
        return None
    bins = min(_BINS, max(4, len(axis) // 10))
    edges = np.linspace(axis.min(), axis.max(), bins + 1)
    at = np.clip(np.searchsorted(edges, axis, side="right") - 1, 0, bins - 1)
    frequent, groups = _frequent(codes, weights, names, most)
    rows_TK = np.bincount(at * len(frequent) + groups[codes], weights=weights, minlength=bins * len(frequent))
    is_moment = pa.types.is_temporal(relation.schema.field(time).type)
    return Timeline(
        time, edges, is_moment, frequent, rows_TK.reshape(bins, len(frequent)).astype(np.float64), by, moved
    )


def _frequent(
    codes: NDArray[Any], weights: NDArray[Any], names: list[str | None], most: int
) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """The names that are kept, and for each value which of them it counts as."""
    summed = np.bincount(codes, weights=weights, minlength=len(names))
    order = np.argsort(-summed, kind="stable")
    frequent = order if len(order) <= most + 1 else order[:most]
    groups = np.full(len(names), len(frequent), np.int64)
    groups[frequent] = np.arange(len(frequent))
    shown = tuple("null" if names[k] is None else str(names[k]) for k in frequent)
    return (shown if len(frequent) == len(order) else (*shown, OTHER)), groups


def _by_shard(
    statistics: Statistics, spread: Spread, time: str, kind: pa.DataType
) -> tuple[NDArray[np.float64], NDArray[Any], NDArray[Any], str] | None:
    """The middle of each shard's time for each of its values; None if shards are few or cover much of the time."""
    of_time = pc.and_(pc.equal(statistics.shards["column"], time), pc.equal(statistics.shards["mark"], KNOWN))
    rows = statistics.shards.filter(pc.and_(of_time, pc.is_valid(statistics.shards["min"])))
    if len(rows) < _LEAST_SHARDS:
        return None
    least, greatest = (_axis(rows[name].combine_chunks().cast(kind)) for name in ("min", "max"))
    span = float(greatest.max() - least.min())
    if span <= 0 or float(np.median(greatest - least)) > _NARROW * span:
        return None
    middle = dict(zip(rows["shard"].to_pylist(), ((least + greatest) / 2).tolist(), strict=True))
    axis = np.array([middle.get(name, np.nan) for name in spread.shard_names])[spread.shards]
    known = np.isfinite(axis)
    by = f"all rows, by the middle of each shard's time, {len(rows):,} shards"
    return axis[known], spread.codes[known], spread.counts[known], by


def _axis(values: pa.Array) -> NDArray[np.float64]:
    """Moments as microseconds since 1970, numbers as they are."""
    if pa.types.is_date(values.type):
        values = values.cast(pa.timestamp("us"))
    if pa.types.is_timestamp(values.type):
        values = values.cast(pa.timestamp("us", values.type.tz), safe=False).cast(pa.int64())
    elif pa.types.is_temporal(values.type):
        values = values.cast(pa.int64()) if values.type.bit_width == pa.int64().bit_width else values.cast(pa.int32())
    return np.asarray(values.to_numpy(zero_copy_only=False), np.float64)
