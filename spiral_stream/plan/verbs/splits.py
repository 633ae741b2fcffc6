"""Splits and folds of a relation by the hash of a column, as conditions that are planned like any filter.

The part of a row depends on its value, the seed and the fractions alone. A row never changes its part when other rows are
added or removed, and rows with one value (the clips of one video, the turns of one chat) stay together. A part has about
its fraction of the values: n values give or take ``sqrt(n * f * (1 - f))``.

Exact parts are cut by the same hash, at borders that the data say: the first part has the values with the smallest hashes. So
they depend on the set of values alone, and their conditions are those of a plan like any other (docs/decisions/0069).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.arguments import Rule, as_integer, integer
from spiral_stream.errors import PlanError, shown
from spiral_stream.expr import Call, Expr, col, kind_of, lit, type_of

SLOTS: Final = 1 << 32  # of a split: fractions are rounded to a part of it
_FRACTION: Final = Rule(
    lambda value: isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1,
    "a fraction above 0, and at most 1",
)
_SLACK: Final = 1e-9  # by which fractions may exceed 1: 0.7 + 0.2 + 0.1
_LARGEST: Final = (1 << 63) - 1  # hash
_MOST_LABELS: Final = 1 << 16  # of a stratified split
_LABELS: Final = ("bool", "int", "text", "binary")
HASH: Final = "hash"  # columns that an exact split reads
LABEL: Final = "label"

Int64 = NDArray[np.int64]


def parts(by: str, seed: int, fractions: Mapping[str, float]) -> dict[str, Expr]:
    """Return the condition of each part, in the order given; together they hold at most every row, and none twice.

    Args:
        by: column whose value decides: an integer, a text or bytes. Rows where it is missing belong to no part.
        seed: another one gives other parts.
        fractions: name -> share of the values, above 0; together at most 1.

    Raises:
        PlanError: there is no part, a fraction is not above 0, or together they exceed 1.
    """
    need_fractions(fractions)
    bounds, before = [0], []
    for fraction in fractions.values():
        before.append(fraction)
        bounds.append(min(SLOTS, round(math.fsum(before) * SLOTS)))
    slot = col(by).hash(seed) % SLOTS
    return {name: _within(slot, bounds[k], bounds[k + 1]) for k, name in enumerate(fractions)}


def is_of_share(test: Expr) -> bool:
    """Whether a condition is that of a part by its fraction alone, which may be empty where there are few values."""
    calls = (each for each in test.walk() if isinstance(each, Call) and each.op == "%")
    return any(
        getattr(of, "op", "") == "hash" and getattr(by, "value", None) == SLOTS
        for of, by in (each.args for each in calls)
    )


def need_fractions(fractions: Mapping[str, float]) -> None:
    """Refuse what are no shares of the values.

    Raises:
        PlanError: there is no part, a fraction is not above 0, or together they exceed 1.
    """
    if not fractions:
        msg = "split: there are no parts. Give a fraction for each, such as split(train=0.9, val=0.1)"
        raise PlanError(msg)
    for name, fraction in fractions.items():
        _FRACTION.need(f"split: {name}=", fraction)
    total = math.fsum(fractions.values())
    if total > 1 + _SLACK:
        said = ", ".join(f"{name}={share:g}" for name, share in fractions.items())
        msg = f"split: {said} make {total:g}, more than 1. Give fractions that make at most 1"
        raise PlanError(msg)


def are_counts(given: Mapping[str, object], *, exact: bool) -> bool:
    """Whether parts are given as numbers of values; else they are fractions.

    Raises:
        PlanError: some are whole numbers and others are not, or 1 may be both.
    """
    counts = {name: as_integer(value) for name, value in given.items()}
    if all(count is None for count in counts.values()):
        return False
    if not exact and all(count in (0, 1) for count in counts.values() if count is not None):
        name = next(name for name, count in counts.items() if count is not None)
        if counts[name] == 1:
            msg = f"split: {name}=1 may be one row, or all of them. Give {name}=1.0 for all, or exact=True for a count"
            raise PlanError(msg)
        return False
    for name, count in counts.items():
        if count is None:
            other = next(name for name, count in counts.items() if count is not None)
            msg = (
                f"split: {name}={shown(given[name])} is no count, and {other}={counts[other]} is one. Give counts for all "
                "parts, or fractions for all with exact=True"
            )
            raise PlanError(msg)
        if count < 1:
            msg = f"split: {name}={count}. Give a count of at least 1"
            raise PlanError(msg)
    return True


def need_label(name: str, have: pa.Schema) -> None:
    """Refuse a column that cannot stratify.

    Raises:
        PlanError: there is no such column, or its values are no labels.
    """
    kind = type_of(col(name), have)
    if kind_of(kind) not in _LABELS:
        msg = f"split: stratify={name!r} is {kind}. Give a column of integers, texts, bytes or booleans"
        raise PlanError(msg)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Deciding:
    """What decides an exact split: V values by their hashes, each of a stratum.

    Attributes:
        hashes: shape [V], int64, by stratum and then ascending.
        strata: shape [V], int64, ascending.
        labels: what each stratum is, sorted; None, which comes last, stands for rows without a label. Without ``stratify``
            there is one stratum.
    """

    hashes: Int64
    strata: Int64
    labels: tuple[Any, ...]

    @classmethod
    def read(cls, batches: Iterable[pa.RecordBatch], *, repeated: bool) -> "Deciding":
        """Collect the columns ``hash`` and, where there are strata, ``label``: 16 bytes per row that has a hash.

        Args:
            batches: of all rows.
            repeated: whether equal hashes are one value; else each row is one.

        Raises:
            PlanError: there are too many labels.
        """
        hashes, strata, codes = [np.empty(0, np.int64)], [np.empty(0, np.int64)], dict[Any, int]()
        for batch in batches:
            found = batch.filter(batch.column(HASH).is_valid())
            hashes.append(found.column(HASH).to_numpy())
            strata.append(
                _coded(found.column(LABEL), codes) if LABEL in found.schema.names else np.zeros(len(found), np.int64)
            )
        labels = sorted(each for each in codes if each is not None) + [None] * (None in codes)
        ranks = np.empty(max(1, len(labels)), np.int64)
        ranks[[codes[each] for each in labels]] = np.arange(len(labels))
        pairs = np.stack([ranks[np.concatenate(strata)] if labels else np.concatenate(strata), np.concatenate(hashes)])
        order = np.lexsort(pairs[::-1])
        pairs = pairs[:, order]
        if repeated and pairs.shape[1]:
            pairs = pairs[:, np.concatenate([[True], (np.diff(pairs, axis=1) != 0).any(axis=0)])]
        return cls(pairs[1], pairs[0], tuple(labels))

    def of_several(self) -> Int64:
        """Return the hashes that stand in several strata."""
        found, times = np.unique(self.hashes, return_counts=True)
        return found[times > 1]


def _coded(column: pa.Array, codes: dict[Any, int]) -> Int64:
    """The code of each label, [N] int64; new ones are added."""
    coded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    values = [*coded.dictionary.to_pylist(), None]
    at = coded.indices.fill_null(len(values) - 1).to_numpy(zero_copy_only=False).astype(np.int64)
    present = np.unique(at)
    table = np.zeros(len(values), np.int64)
    for code in present.tolist():
        table[code] = codes.setdefault(values[code], len(codes))
    if len(codes) > _MOST_LABELS:
        msg = f"split: the column of stratify= has more than {_MOST_LABELS:,} values. Give a column of labels"
        raise PlanError(msg)
    return np.asarray(table[at])


def exact_parts(
    by: str, seed: int, given: Mapping[str, float], values: Deciding, stratify: str | None
) -> dict[str, Expr]:
    """Return the condition of each part, in the order given, so that each has an exact number of the values.

    Args:
        by: column whose value decides.
        seed: of its hash.
        given: name -> number of values, or share of them.
        values: all of them.
        stratify: the column of the strata; None has no strata.

    Raises:
        PlanError: the counts exceed the values, a part would have none, or two values at a border have one hash.
    """
    total = len(values.hashes)
    counts = _counts(given, total, by)
    sizes = np.bincount(values.strata, minlength=max(1, len(values.labels)))
    starts = np.cumsum(sizes) - sizes
    hashed = col(by).hash(seed)
    out, below, taken, before = dict[str, Expr](), None, np.zeros_like(sizes), 0
    for name, count in zip(given, counts, strict=True):
        taken = taken + _allotted(sizes - taken, count)
        before += count
        low, high = _gaps(values.hashes, starts, sizes, taken)
        if (low > high).any():
            msg = (
                f"split: at the border of {name!r}, two rows have one hash of {by!r}: one value twice, or by chance. Name the "
                f'column, by="{by}", to keep equal values together, or give another seed'
            )
            raise PlanError(msg)
        upper = None if before == total else _below(hashed, low, high, before, total, values.labels, stratify)
        found = hashed >= 0 if upper is None else upper
        out[name] = found if below is None else (~below if upper is None else ~below & upper)
        below = upper
    return out


def _counts(given: Mapping[str, float], total: int, by: str) -> list[int]:
    """How many of ``total`` values each part has: as given, or its fraction, rounded so that all rounds add up."""
    if are_counts(given, exact=True):
        counts = [int(each) for each in given.values()]
        if sum(counts) > total:
            said = ", ".join(f"{name}={count:,}" for name, count in zip(given, counts, strict=True))
            msg = f"split: {said} make {sum(counts):,}, and {by!r} has {total:,} values. Give counts that make at most {total:,}"
            raise PlanError(msg)
        return counts
    need_fractions(given)
    shares = [Fraction(repr(float(each))) for each in given.values()]
    whole_of = max(Fraction(1), sum(shares))
    exact = [share / whole_of * total for share in (*shares, whole_of - sum(shares))]
    counts = [math.floor(each) for each in exact]
    for at in sorted(range(len(exact)), key=lambda at: (counts[at] - exact[at], at))[: total - sum(counts)]:
        counts[at] += 1
    for name, count in zip(given, counts, strict=False):
        if not count:
            msg = (
                f"split: {name}={given[name]:g} of {total:,} values of {by!r} is none. Give a larger share, or a count"
            )
            raise PlanError(msg)
    return counts[:-1]


def _allotted(left: Int64, count: int) -> Int64:
    """Shape [L] -> [L]: how many of each stratum a part of ``count`` gets: its share, rounded down or up, largest rests first."""
    total = int(left.sum())
    products = [each * count for each in left.tolist()]
    out = np.array([each // total for each in products], np.int64)
    rests = [each % total for each in products]
    most = sorted(range(len(rests)), key=lambda at: (-rests[at], at))[: count - int(out.sum())]
    out[most] += 1
    return out


def _gaps(hashes: Int64, starts: Int64, sizes: Int64, taken: Int64) -> tuple[Int64, Int64]:
    """The least and the largest border of each stratum that has ``taken`` hashes up to it; [L] each."""
    last = np.maximum(starts + taken - 1, 0)
    following = np.minimum(starts + taken, len(hashes) - 1)
    low = np.where(taken > 0, hashes[last], -1)
    return low, np.where(taken < sizes, hashes[following] - 1, _LARGEST)


def _below(
    hashed: Expr, low: Int64, high: Int64, before: int, total: int, labels: Sequence[Any], stratify: str | None
) -> Expr:
    """Whether a value lies below a border, which differs by stratum. A label that is new later has the share's border."""
    if stratify is None:
        return hashed <= int(low[0])
    usual, label = before * _LARGEST // total, col(stratify)
    groups = _stabbed(low, high, usual)
    missing = next((border for border, members in groups if labels[members[-1]] is None), usual)
    named = [(border, [labels[at] for at in members if labels[at] is not None]) for border, members in groups]
    named = [(border, members) for border, members in named if members]
    parts = [_among(label, members) & (hashed <= border) for border, members in named]
    others = [each for _, members in named for each in members]
    parts.append(~_among(label, others) & (hashed <= usual) if others else hashed <= usual)
    known = ~label.is_null()
    any_of = parts[0] if len(parts) == 1 else Call("or", tuple(parts))
    return (known & any_of) | (label.is_null() & (hashed <= missing))


def _stabbed(low: Int64, high: Int64, usual: int) -> list[tuple[int, list[int]]]:
    """As few borders as serve the strata that the usual one does not: (border, its strata), each in ``[low, high]``."""
    out: list[tuple[int, list[int]]] = []
    for at in np.argsort(high, kind="stable").tolist():
        if low[at] <= usual <= high[at]:
            continue
        if not out or low[at] > out[-1][0]:
            out.append((int(high[at]), []))
        out[-1][1].append(at)
    return [(border, sorted(members)) for border, members in out]


def _among(label: Expr, values: Sequence[Any]) -> Expr:
    if isinstance(values[0], bool):
        return (label if values[0] else ~label) if len(values) == 1 else ~label.is_null()
    return Call("is_in", (label, *map(lit, values)))


def folds(count: int, by: str, seed: int) -> list[tuple[Expr, Expr]]:
    """Return (condition of training, condition of validation) for each fold; every row is validated in one of them.

    Args:
        count: how many folds, at least 2.
        by: column whose value decides, as in `parts`.
        seed: another one gives other folds.

    Raises:
        PlanError: there are fewer than 2.
    """
    integer(2, SLOTS, "an integer of at least 2").need("folds: the number of folds is ", count)  # one to train on
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
