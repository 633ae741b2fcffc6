"""In which order a window's batches are delivered: neighbours in length stay neighbours, all else is drawn.

Batches are numbered by quantile. Runs of ``cost_group`` neighbours move whole, in the
order of a keyed hash of their number, so that ranks of one step get batches of like
cost and steps are in no order of length (docs/decisions/0033). The hash knows the chapter's key
and the window, not the lane: all lanes are at like quantiles together.
"""

import numpy as np

from spiral_stream.batching.formation import Int64
from spiral_stream.seeding import combine, key


def emission_order(count: int, cost_group: int, chapter_key: int, *where: int) -> Int64:
    """Which batch is delivered at each place.

    Args:
        count: J, batches of the window.
        cost_group: neighbours that move whole.
        chapter_key: `Setting.key`.
        where: the window's number in the chapter, and what else tells the draw from others.

    Returns:
        shape [J], int64: a permutation of the batches' numbers by quantile.
    """
    groups = np.arange(-(-count // cost_group), dtype=np.uint64)
    drawn = np.argsort(combine(np.uint64(key("emission", chapter_key, *where)), groups), kind="stable")
    order: Int64 = (drawn[:, None] * cost_group + np.arange(cost_group)).ravel()
    return order[order < count]
