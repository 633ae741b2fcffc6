"""Which values each shard has more or less of than the whole: at most a hundred groups of shards by the frequent values."""

from dataclasses import dataclass
from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from spiral_stream.catalog.statistics.skew import Spread

ROWS: Final = 100
VALUES: Final = 40


@final
@dataclass(frozen=True, slots=True, eq=False)
class Heat:
    """The share of K values in G groups of shards, over their share of the whole."""

    groups: tuple[str, ...]  # [G]: the first shard of each
    shards: int
    values: tuple[str, ...]  # [K], the most frequent first
    of_values: int
    ratio: NDArray[np.float64]  # [G, K], at least 0; 1 is the share that the whole has


def heat_of(spread: Spread, rows: int = ROWS, values: int = VALUES) -> Heat:
    """Return a spread in few cells: shards in groups of equal number, by name.

    Args:
        spread: of a column.
        rows: groups at most.
        values: values at most.
    """
    shards, groups = len(spread.shard_names), min(rows, len(spread.shard_names))
    group_of = np.arange(shards) * groups // shards
    overall = np.bincount(spread.codes, weights=spread.counts, minlength=len(spread.values))
    order = np.argsort(-overall, kind="stable")[:values]
    rank = np.full(len(overall), -1)
    rank[order] = np.arange(len(order))
    at, held = group_of[spread.shards], rank[spread.codes]
    is_shown = held >= 0
    cells = np.bincount(at[is_shown] * len(order) + held[is_shown], spread.counts[is_shown], groups * len(order))
    share = cells.reshape(groups, len(order)) / np.bincount(at, spread.counts, groups)[:, None]
    firsts = np.searchsorted(group_of, np.arange(groups))
    return Heat(
        tuple(spread.shard_names[k] for k in firsts),
        shards,
        tuple("null" if spread.values[k] is None else str(spread.values[k]) for k in order),
        len(overall),
        share / (overall[order] / overall.sum()),
    )
