"""The skew of one column of labels or sources over storage shards: numbers, input for charts, and advice."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, final

import numpy as np

from spiral_stream.catalog.relation.reader import OpenRelation
from spiral_stream.catalog.statistics.drift import distance_by_chance
from spiral_stream.catalog.statistics.measure import Statistics
from spiral_stream.catalog.statistics.skew import Skew, skew_in, spread_of
from spiral_stream.display.wording import number, one_line, share
from spiral_stream.report import charts
from spiral_stream.report.blocks import BlockMix, block_mixes, population_of
from spiral_stream.report.charts import Form, Picture
from spiral_stream.report.heatmap import Heat, heat_of
from spiral_stream.report.timeline import Timeline, timeline
from spiral_stream.sampling.order import Population
from spiral_stream.sampling.orders.shard_aware import ShardAwareShuffle

_ONE: Final = 1.01  # effective values of a shard that has one
_NEAR: Final = 1.25  # times the distance by chance: blocks that are nearly as good as random rows
_LITTLE: Final = 0.02  # a distance that nobody minds
_MIXED: Final = 2.5  # times the distance by chance, of the shards that are farthest from the whole
_LISTED: Final = 20


@final
@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """An order whose blocks are counted, and the rows that it orders."""

    order: ShardAwareShuffle
    population: Population
    shard_names: tuple[str, ...]  # that the population counts
    used_by: str


@final
@dataclass(frozen=True, slots=True, eq=False)
class ColumnSkew:
    """The skew of one column.

    Examples:
        >>> _ = catalog.measure("photos")
        >>> found = spiral.report.report_relation(catalog, "photos", labels=["label"])
        >>> [each.column for each in found.skews]
        ['label']
    """

    column: str
    skew: Skew
    by_chance: float  # mean distance of a shard of random rows, as long as the median shard
    values: int
    rows: int
    largest: str  # the most frequent value
    largest_rows: int
    heat: Heat
    blocks: tuple[BlockMix, ...]
    used_by: str  # whose block size is marked; "" where blocks are not counted
    timeline: Timeline | None
    _drawn: dict[Form, list[Picture]] = field(default_factory=dict, init=False, repr=False)

    def numbers(self) -> dict[str, float]:
        """Return what can be plotted over time."""
        found = {
            "distance_mean": self.skew.mean,
            "distance_p95": self.skew.p95,
            "distance_worst": float(self.skew.distance.max()),
            "distance_by_chance": self.by_chance,
            "effective": self.skew.effective_global,
            "effective_by_shard": float(self.skew.effective.mean()),
            "largest_share": self.largest_rows / self.rows,
        }
        if self.timeline is not None and self.timeline.drift is not None:
            found["explained_by_time"] = self.timeline.drift.explained
        return {name: value for name, value in found.items() if np.isfinite(value)}

    def facts(self) -> Iterator[tuple[str, str]]:
        """Yield what is said of the column, each with its name."""
        skew = self.skew
        yield "values", f"{self.values:,}, in effect {number(skew.effective_global)}"
        yield "values in effect in a shard", f"{number(float(skew.effective.mean()))}, mean"
        yield "most frequent", f"{one_line(self.largest)}: {share(self.largest_rows, self.rows)} of the rows"
        yield "distance of a shard", f"{number(skew.mean)} mean, {number(skew.p95)} 95th percentile"
        yield "distance by chance", f"{number(self.by_chance)}: a shard of as many random rows"
        if self.timeline is not None and self.timeline.drift is not None:
            moved = self.timeline.drift
            explained, chance = share(moved.explained, 1), share(moved.explained_by_chance, 1)
            yield f"variance of {self.timeline.time} that it explains", f"{explained} (by chance {chance})"

    @property
    def is_one_value_per_shard(self) -> bool:
        """Whether each shard holds one value, as with one folder per class."""
        return len(self.skew.distance) > 1 and float(self.skew.effective.max()) < _ONE and self.values > 1

    @property
    def enough_rows(self) -> int | None:
        """The smallest block size that was counted whose blocks are nearly as mixed as random rows."""
        return next((b.block_rows for b in self.blocks if b.mean <= max(_NEAR * b.by_chance, _LITTLE)), None)

    @property
    def is_mixed(self) -> bool:
        """Whether nearly all shards are as near to the whole as random rows would be."""
        return self.skew.mean <= _NEAR * self.by_chance and self.skew.p95 <= _MIXED * self.by_chance

    def advice(self) -> str:
        """Say what to do about the skew."""
        if self.is_mixed and not self.is_one_value_per_shard:
            return "Shards are as mixed as random rows would be: any order of shards will do"
        rows = self.enough_rows
        enough = "" if rows is None else f"a shuffle_block_size of {rows:,} rows or more, or "
        mixing = f"Train with {enough}HashBucketed or GlobalShuffle"
        if self.is_one_value_per_shard:
            return (
                f"Each storage shard holds one value of {self.column}. That is how one folder per class lies, and no fault "
                f"of the data; but the order of training has to mix shards. {mixing}"
            )
        return f"{mixing}; or write the rows of each value into many shards"

    def worst_rows(self) -> list[dict[str, str]]:
        """Return the shards farthest from the whole, as rows of a table."""
        order = np.argsort(-self.skew.distance, kind="stable")[:_LISTED]
        return [
            {
                "storage shard": self.skew.shard_names[k],
                "distance": number(float(self.skew.distance[k])),
                "values in effect": number(float(self.skew.effective[k])),
            }
            for k in order
        ]

    def pictures(self, form: Form = "svg") -> list[Picture]:
        """Draw the pictures, once: the page of a report and that of its asset show the same, half a CPU second each."""
        if form not in self._drawn:
            self._drawn[form] = self._draw(form)
        return list(self._drawn[form])

    def _draw(self, form: Form) -> list[Picture]:
        name, skew, many = self.column, self.skew, len(self.skew.shard_names) > 1
        found = []
        if many:  # one shard is the whole, and has nothing to be compared with
            found += [
                charts.worst_shards(name, skew.shard_names, skew.distance, self.by_chance, form),
                charts.heat_map(name, self.heat, form),
                charts.effective_values(name, skew.effective, skew.effective_global, form),
            ]
        if self.timeline is not None:
            found.append(charts.over_time(name, self.timeline, form))
        if self.blocks and many:
            found.append(charts.block_sizes(name, self.blocks, skew.mean, self.used_by, form))
        return found


def column_skew(
    relation: OpenRelation, statistics: Statistics, column: str, time: str | None, blocks: Blocks | None
) -> ColumnSkew | None:
    """Return the skew of a column; None if it has no histogram.

    Args:
        relation: which is read where drift over time cannot be told from statistics.
        statistics: its statistics.
        column: of labels or sources.
        time: a column of ingest time; None looks at none.
        blocks: whose blocks are counted; None counts none.
    """
    spread = spread_of(statistics, column)
    if spread is None:
        return None
    skew = skew_in(spread)
    overall = np.bincount(spread.codes, weights=spread.counts).astype(np.int64)
    largest = int(np.argmax(overall))
    median = int(np.median(np.bincount(spread.shards, weights=spread.counts)))
    mixes: Sequence[BlockMix] = ()
    if blocks is not None:
        mixes = block_mixes(spread, list(blocks.shard_names), blocks.population, blocks.order)
    return ColumnSkew(
        column=column,
        skew=skew,
        by_chance=distance_by_chance(overall, max(1, median)),
        values=len(spread.values),
        rows=int(overall.sum()),
        largest="null" if spread.values[largest] is None else str(spread.values[largest]),
        largest_rows=int(overall[largest]),
        heat=heat_of(spread),
        blocks=tuple(mixes),
        used_by="" if blocks is None else blocks.used_by,
        timeline=None if time is None or time == column else timeline(relation, statistics, spread, column, time),
    )


def default_blocks(relation: OpenRelation, block_size: int | None) -> Blocks:
    """Return a shard-aware order of all rows, for where no stream is given."""
    order = (
        ShardAwareShuffle(seed=0) if block_size is None else ShardAwareShuffle(seed=0, shuffle_block_size=block_size)
    )
    names = tuple(relation.manifest.shard_names.to_pylist())
    return Blocks(
        order, population_of(relation.manifest), names, "by default" if block_size is None else "that was asked for"
    )
