"""How far each storage shard's labels differ from the relation's: block shuffling has to even this out.

The distance is total variation: half the sum over labels of the difference of
shares, 0 for a shard that looks like the whole, towards 1 for one that shares no
label with it. The effective number of labels is the exponential of the entropy
of a shard's shares: 1 for a shard of one class. Cost and memory are those of the
histogram's non-zero counts.
"""

from dataclasses import dataclass
from typing import final

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from spiral_stream.catalog.statistics.measure import Statistics
from spiral_stream.errors import CatalogError, shown


@final
@dataclass(frozen=True, slots=True, eq=False)
class Skew:
    """Distances of the shards of one column's histogram. S shards that hold rows.

    Examples:
        >>> skew = catalog.skew("photos", "label")
        >>> len(skew.worst(2)), 0 <= skew.mean < 1
        (2, True)
    """

    shard_names: tuple[str, ...]  # [S]
    distance: NDArray[np.float64]  # [S], total variation to the whole, in [0, 1)
    effective: NDArray[np.float64]  # [S], effective number of labels, at least 1
    mean: float
    p95: float
    effective_global: float

    def worst(self, count: int = 3) -> list[tuple[str, float]]:
        """Return the shards farthest from the whole, farthest first; ties by name."""
        order = np.lexsort((np.arange(len(self.distance)), -self.distance))[:count]
        return [(self.shard_names[i], float(self.distance[i])) for i in order]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Spread:
    """The rows of each value of a column in each shard: N counts that are not zero, of S shards and V values."""

    shard_names: tuple[str, ...]  # [S] that hold rows, sorted
    values: tuple[str | None, ...]  # [V] as text, in no order
    shards: NDArray[np.int32]  # [N], non-decreasing
    codes: NDArray[np.int32]  # [N], the value
    counts: NDArray[np.int64]  # [N], positive


def spread_of(statistics: Statistics, column: str) -> Spread | None:
    """Return a column's histogram by shard, or None where none is known."""
    if not isinstance(column, str):  # pyarrow crashes on a list that holds itself
        msg = f"skew: column={shown(column)} is no name. Give the name of a column"
        raise CatalogError(msg)
    counted = statistics.histograms.filter(pc.equal(statistics.histograms.column("column"), column))
    if not len(counted):
        return None
    shards = counted.column("shard").combine_chunks().dictionary_encode()
    values = counted.column("value").combine_chunks().dictionary_encode(null_encoding="encode")
    return Spread(
        tuple(shards.dictionary.to_pylist()),
        tuple(values.dictionary.to_pylist()),
        shards.indices.to_numpy(),
        values.indices.to_numpy(),
        counted.column("count").to_numpy(),
    )


def skew_of(statistics: Statistics, column: str) -> Skew | None:
    """Return the skew of a column's histogram, or None where no histogram is known."""
    spread = spread_of(statistics, column)
    return None if spread is None else skew_in(spread)


def skew_in(spread: Spread) -> Skew:
    """Return how far the shards of a spread differ from the whole."""
    distance, effective, whole = distances(spread.shards, spread.codes, spread.counts)
    mean, p95 = float(distance.mean()), float(np.quantile(distance, 0.95))
    return Skew(spread.shard_names, distance, effective, mean, p95, whole)


def distances(
    shards: NDArray[np.integer], labels: NDArray[np.integer], counts: NDArray[np.integer]
) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """Distances from a sparse histogram.

    Args:
        shards: shape [N], the shard of each non-zero count, 0-based.
        labels: shape [N], its label, 0-based; each (shard, label) once.
        counts: shape [N], rows, positive.

    Returns:
        total variation [S], effective number of labels [S], and that of the whole.
    """
    shard_rows = np.bincount(shards, weights=counts)
    label_rows = np.bincount(labels, weights=counts)
    whole = label_rows / label_rows.sum()
    share = counts / shard_rows[shards]
    # Labels that a shard lacks contribute their whole share: 1 - sum of the shares of those it has.
    own = np.abs(share - whole[labels]) - whole[labels]
    distance = np.clip(np.round(0.5 * (1.0 + np.bincount(shards, weights=own)), 12), 0.0, 1.0)  # sums are good to 1e-15
    entropy = np.bincount(shards, weights=-share * np.log(share))
    present = whole[whole > 0]
    return distance, np.exp(entropy), float(np.exp(-(present * np.log(present)).sum()))
