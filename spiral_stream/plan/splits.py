"""Parts and folds of the rows of a relation, by the hash of a column: conditions, so they are planned like any filter.

The part of a row depends on its value, the seed and the fractions alone. A row never changes its part when other rows are
added or removed, and rows with one value (the clips of one video, the turns of one chat) stay together. A part has about
its fraction of the values: n values give or take ``sqrt(n * f * (1 - f))``.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final

from spiral_stream.errors import PlanError, shown
from spiral_stream.expr import Expr, col

SLOTS: Final = 1 << 32  # of a split: fractions are rounded to a part of it
_SLACK: Final = 1e-9  # by which fractions may exceed 1: 0.7 + 0.2 + 0.1


def parts(by: str, seed: int, fractions: Mapping[str, float]) -> dict[str, Expr]:
    """Return the condition of each part, in the order given; together they hold at most every row, and none twice.

    Args:
        by: column whose value decides: an integer, a text or bytes. Rows where it is missing belong to no part.
        seed: another one gives other parts.
        fractions: name -> share of the values, above 0; together at most 1.

    Raises:
        PlanError: there is no part, a fraction is not above 0, or together they exceed 1.
    """
    if not fractions:
        msg = "split: there are no parts. Give a fraction for each, such as split(train=0.9, val=0.1)"
        raise PlanError(msg)
    for name, fraction in fractions.items():
        if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 < fraction <= 1:
            msg = f"split: {name}={shown(fraction)}. Give a fraction above 0, and at most 1"
            raise PlanError(msg)
    total = math.fsum(fractions.values())
    if total > 1 + _SLACK:
        said = ", ".join(f"{name}={share:g}" for name, share in fractions.items())
        msg = f"split: {said} make {total:g}, more than 1. Give fractions that make at most 1"
        raise PlanError(msg)
    bounds, before = [0], []
    for fraction in fractions.values():
        before.append(fraction)
        bounds.append(min(SLOTS, round(math.fsum(before) * SLOTS)))
    slot = col(by).hash(seed) % SLOTS
    return {name: _within(slot, bounds[k], bounds[k + 1]) for k, name in enumerate(fractions)}


def folds(count: int, by: str, seed: int) -> list[tuple[Expr, Expr]]:
    """Return (condition of training, condition of validation) for each fold; every row is validated in one of them.

    Args:
        count: how many folds, at least 2.
        by: column whose value decides, as in `parts`.
        seed: another one gives other folds.

    Raises:
        PlanError: there are fewer than 2.
    """
    if isinstance(count, bool) or not isinstance(count, int) or not 2 <= count <= SLOTS:  # noqa: PLR2004  one to train on
        msg = f"folds: the number of folds is {shown(count)}. Give an integer of at least 2"
        raise PlanError(msg)
    fold = col(by).hash(seed) % count
    return [(fold != k, fold == k) for k in range(count)]


def deciding(verb: str, by: str | None, identity: Sequence[str]) -> str:
    """Return the column that decides: the one that was named, else the identity.

    Raises:
        PlanError: none was named, and the identity has several columns, or none.
    """
    if by is not None:
        return by
    if len(identity) != 1:
        found = f"the identity is {', '.join(identity)}" if identity else "the rows have no identity of their own"
        msg = f'{verb}: {found}. Name the column whose value decides: by="..."'
        raise PlanError(msg)
    return identity[0]


def _within(slot: Expr, first: int, last: int) -> Expr:
    above = slot >= first
    return above if last == SLOTS else (slot < last if first == 0 else above & (slot < last))
