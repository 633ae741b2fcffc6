"""In which order a window's batches are delivered: random, with groups of similar batches together.

Batches are numbered by quantile. Groups of ``cost_group`` neighbouring batches are shuffled as units, in the order of a
keyed hash of their number (docs/decisions/0033). Ranks in one step get similar costs, and steps come in no order of
length. The hash depends on the chapter's key and the window, not on the lane, so all lanes deliver similar quantiles at
the same time.
"""

from functools import partial
from typing import Final

import numpy as np

from spiral_stream.batching.formation import Int64
from spiral_stream.seeding import combine, combine_one, key

_FEW: Final = 32  # groups whose hashes cost less one by one


def emission_order(count: int, cost_group: int, chapter_key: int, *where: int) -> Int64:
    """Return which batch is delivered at each place.

    Args:
        count: J, batches of the window.
        cost_group: neighbouring batches that stay together.
        chapter_key: `Setting.key`.
        where: the window's number in the chapter, and further numbers that make the draw differ from others.

    Returns:
        shape [J], int64: a permutation of the batches' numbers by quantile.
    """
    groups, drawn_by = -(-count // cost_group), key("emission", chapter_key, *where)
    if groups <= _FEW:
        few = sorted(range(groups), key=partial(combine_one, drawn_by))
        return np.array([at for group in few for at in range(count)[group * cost_group :][:cost_group]], dtype=np.int64)
    drawn = np.argsort(combine(np.uint64(drawn_by), np.arange(groups, dtype=np.uint64)), kind="stable")
    order: Int64 = (drawn[:, None] * cost_group + np.arange(cost_group)).ravel()
    return order[order < count]
