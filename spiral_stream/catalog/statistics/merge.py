"""What is known of a relation's columns, merged from the facts of its shards by way of groups. Reads no row.

Groups (`catalog.statistics.groups`) that are kept are not merged again, so one changed shard costs its group and the
groups' merge.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spiral_stream.catalog.relation.manifest import Manifest
from spiral_stream.catalog.statistics.groups import (
    HISTOGRAMS,
    ShardGroup,
    coded,
    kept_group,
    made_group,
    members_of,
    numbers,
)
from spiral_stream.derived.index import Keys
from spiral_stream.derived.kinds.column_facts import (
    ColumnFacts,
    estimated_distinct,
    is_word,
    quantile_points,
    registers_of,
    restored,
)
from spiral_stream.derived.pieces import FactsInMemory, Pieces
from spiral_stream.semantic import is_text

KNOWN: Final = "known"
ESTIMATED: Final = "estimated"
UNKNOWN: Final = "unknown"
FREQUENT: Final = 8  # values of a column that are named
BINS: Final = 20  # of equal width, from the least to the greatest finite value

SHARDS: Final = pa.schema(
    [
        ("shard", pa.utf8()),
        ("column", pa.utf8()),
        ("mark", pa.utf8()),
        ("rows", pa.int64()),
        ("nulls", pa.int64()),
        ("nans", pa.int64()),
        ("distinct", pa.int64()),
        ("bytes", pa.int64()),  # of the values, without offsets and validity
        ("min", pa.utf8()),  # as text; NaN and null do not count
        ("max", pa.utf8()),
    ]
)
COLUMNS: Final = pa.schema(
    [
        ("column", pa.utf8()),
        ("mark", pa.utf8()),
        ("rows", pa.int64()),
        ("nulls", pa.int64()),
        ("nans", pa.int64()),
        ("distinct", pa.int64()),
        ("distinct_mark", pa.utf8()),
        ("min", pa.utf8()),
        ("max", pa.utf8()),
        ("quartiles", pa.list_(pa.utf8())),  # of numbers and moments
        ("quartiles_mark", pa.utf8()),
        ("frequent", pa.list_(pa.struct([("value", pa.utf8()), ("count", pa.int64())]))),  # most rows first
        ("frequent_mark", pa.utf8()),  # estimated: a value may have more rows, and another one may be missing
        ("mean", pa.utf8()),  # of numbers (as of floats) and moments
        ("bins", pa.list_(pa.int64())),  # rows of each bin, of numbers and moments
        ("bins_mark", pa.utf8()),
    ]
)

_NUMBERS: Final = MappingProxyType(
    {
        "words": np.uint64,
        "counts": np.int64,
        "points": np.uint64,
        "weights": np.float64,
        "hashes": np.uint64,
    }
)

Int64 = NDArray[np.int64]


@final
class Histograms:
    """The rows of each value in each shard, put together when they are asked for.

    Args:
        spans: groups, and which rows of their histograms, in the order of the whole.
        known: the whole, if it is not in groups.
    """

    def __init__(self, spans: Sequence[tuple[ShardGroup, int, int]] = (), known: pa.Table | None = None) -> None:
        self.spans = tuple(spans)
        self._known = known

    @cached_property
    def table(self) -> pa.Table:
        """Schema `HISTOGRAMS`.

        Raises:
            CatalogError: a group is damaged.
        """
        if self._known is not None:
            return self._known
        return pa.concat_tables(
            [HISTOGRAMS.empty_table(), *(group.histogram.slice(at, rows) for group, at, rows in self.spans)]
        )


@final
@dataclass(frozen=True, slots=True, eq=False)
class Statistics:
    """Facts of one relation at one data version.

    Examples:
        >>> found = catalog.measure("photos")
        >>> found.shards.num_rows > 0
        True
    """

    shards: pa.Table  # schema SHARDS: one row per shard and column
    found: Histograms
    marks: dict[str, str]  # column -> whether its histogram is known; columns not asked are not named
    columns: pa.Table = field(default_factory=COLUMNS.empty_table)  # schema COLUMNS: one row per column
    groups: tuple[ShardGroup, ...] = ()  # what it was merged from

    @property
    def histograms(self) -> pa.Table:
        """Schema `HISTOGRAMS`: rows of each value in each shard.

        Raises:
            CatalogError: they are damaged; says how to count again.
        """
        return self.found.table


@final
@dataclass(frozen=True, slots=True, eq=False)
class Merged:
    """Facts of the columns that were counted."""

    shards: list[pa.Table]
    histograms: Histograms
    marks: dict[str, str]
    columns: pa.Table
    bytes: Int64  # [S] of the columns that were counted
    groups: tuple[ShardGroup, ...]


def merged(
    manifest: Manifest,
    keys: Keys,
    counted: Sequence[tuple[ColumnFacts, Pieces | FactsInMemory]],
    candidates: Collection[str],
    most: int,
    unique: Collection[str] = (),
    folder: Path | None = None,
) -> Merged:
    """Merge the facts of all shards.

    Args:
        manifest: the shards.
        keys: shape [S, 2]: of their rows.
        counted: the columns.
        candidates: those that have a histogram, if they have few values.
        most: values of a column that has a histogram.
        unique: columns that are known to have another value in every row.
        folder: of groups that are kept; nothing is written there.

    Raises:
        DamageError: a piece is not what was written.
    """
    order = np.array(pc.sort_indices(manifest.shard_names), np.int64)
    names, rows = manifest.shard_names.take(pa.array(order)), manifest.shard_rows.astype(np.int64)[order]
    facts = [each for each, _ in counted]
    groups = []
    for members in members_of(names, order, rows, keys[order], facts, sorted(candidates), most):
        kept = kept_group(folder, members.key) if folder is not None else None
        groups.append(kept or made_group(members, counted, candidates, most))
    columns = [_Column(each, pieces, order, rows, groups, k) for k, (each, pieces) in enumerate(counted)]
    spans, marks = dict[str, list[tuple[ShardGroup, int, int]]](), dict[str, str]()
    for group in groups:
        for name, at, length in group.spans():
            spans.setdefault(name, []).append((group, at, length))
    known = []
    for each in sorted(columns, key=lambda column: column.name):
        if each.name in candidates:
            is_known = each.is_whole and len(each.values) <= most
            marks[each.name] = KNOWN if is_known else UNKNOWN
            known += spans.get(each.name, []) if is_known else []
    total = np.zeros(len(rows), np.int64)
    for each in columns:
        total[order] += each.summary("bytes")
    shards = [each.shards(names) for each in columns]
    wholes = [COLUMNS.empty_table(), *(each.whole(unique=each.name in unique) for each in columns)]
    return Merged(shards, Histograms(known), marks, pa.concat_tables(wholes), total, tuple(groups))


@final
class _Column:
    """The facts of one column, of all shards in the order of their names."""

    def __init__(
        self,
        facts: ColumnFacts,
        pieces: Pieces | FactsInMemory,
        order: Int64,
        rows: Int64,
        groups: Sequence[ShardGroup],
        place: int,
    ) -> None:
        self.facts, self.name = facts, facts.name
        self._pieces, self._order, self._rows = pieces, order, rows
        self._groups, self._place = groups, place
        self.is_whole = bool(self.summary("whole").all())
        self._least, self._greatest = self._lists("least"), self._lists("greatest")
        if is_word(facts.kind):
            self._bits, codes = np.unique(self._numbers("words"), return_inverse=True)
            self.values = _text(restored(self._bits, facts.kind))
            self._points, self._weights = self._numbers("points"), self._numbers("weights")
        else:
            self.values, codes = coded(self._lists("texts"))
        counts = np.bincount(codes, weights=self._numbers("counts"), minlength=len(self.values))
        self._counts: Int64 = counts.astype(np.int64)  # [values] rows

    def summary(self, name: str) -> Int64:
        """Shape [S]: a number of each shard."""
        return self._pieces.summary[name][self._order]

    def shards(self, names: pa.Array) -> pa.Table:
        """Return a row for each shard."""
        facts = {name: self.summary(name) for name in ("nulls", "nans", "distinct", "bytes")}
        count = len(names)
        none = pa.array(self._rows - facts["nulls"] == facts["nans"])  # extremes of NaN alone are no value
        return (
            pa.table(
                {
                    "shard": names,
                    "column": pa.repeat(self.name, count),
                    "mark": pa.repeat(KNOWN, count),
                    "rows": self._rows,
                    **facts,
                    "min": pc.if_else(none, None, self._least),
                    "max": pc.if_else(none, None, self._greatest),
                }
            )
            .select(SHARDS.names)
            .cast(SHARDS)
        )

    def whole(self, *, unique: bool) -> pa.Table:
        """Return the row of the relation.

        Args:
            unique: whether it is known that no value repeats.
        """
        nulls, nans = int(self.summary("nulls").sum()), int(self.summary("nans").sum())
        values = int(self._rows.sum()) - nulls
        distinct, how = (values, KNOWN) if unique else self._distinct(values, nans)
        least, greatest = self._extremes()
        quartiles = self._quartiles()
        frequent = self._frequent()
        bins = self._bins()
        facts = {
            "column": self.name,
            "mark": KNOWN,
            "rows": int(self._rows.sum()),
            "nulls": nulls,
            "nans": nans,
            "distinct": distinct,
            "distinct_mark": how,
            "min": least,
            "max": greatest,
            "quartiles": quartiles,
            "quartiles_mark": UNKNOWN if quartiles is None else ESTIMATED,
            "frequent": frequent,
            "frequent_mark": KNOWN if self.is_whole else ESTIMATED if frequent else UNKNOWN,
            "mean": self._mean(values - nans),
            "bins": bins,
            "bins_mark": UNKNOWN if bins is None else KNOWN if self.is_whole else ESTIMATED,
        }
        return pa.Table.from_pylist([facts], COLUMNS)

    # ---- of the relation

    def _distinct(self, values: int, nans: int) -> tuple[int, str]:
        if self.is_whole:
            return len(self.values) + (nans > 0), KNOWN
        if len(self._order) == 1:
            return int(self.summary("distinct")[0]), KNOWN
        held, hashes = [each for each in self._each("registers") if len(each)], self._numbers("hashes")
        if not held:
            return len(np.unique(hashes)) + (nans > 0), KNOWN
        found = estimated_distinct(registers_of(hashes, np.maximum.reduce([each.to_numpy() for each in held])))
        return min(max(found, int(self.summary("distinct").max())), values - max(0, nans - 1)), ESTIMATED

    def _extremes(self) -> tuple[str | None, str | None]:
        there = np.flatnonzero(self._rows - self.summary("nulls") - self.summary("nans") > 0)
        if not len(there):
            return None, None
        kind = self.facts.kind
        if is_word(kind):
            ends = _text(restored(self._points[self._by_value[[0, -1]]], kind))
            return ends[0].as_py(), ends[1].as_py()
        typed = pa.utf8() if is_text(kind) else kind
        least, greatest = (each.take(pa.array(there)).cast(typed) for each in (self._least, self._greatest))
        return str(pc.min(least).as_py()), str(pc.max(greatest).as_py())

    def _quartiles(self) -> list[str] | None:
        if not is_word(self.facts.kind) or not len(self._points):
            return None
        valid = int((self._rows - self.summary("nulls") - self.summary("nans")).sum())
        at = quantile_points(self._by_value, self._weights, valid)[1:4]
        found: list[str] = _text(restored(self._points[at], self.facts.kind)).to_pylist()
        return found

    def _mean(self, values: int) -> str | None:
        kind = self.facts.kind
        if not values or not (is_word(kind) or pa.types.is_decimal(kind)):
            return None
        with np.errstate(invalid="ignore", over="ignore"):
            mean = float(self.summary("sum").view("<f8").sum()) / values
        if pa.types.is_temporal(kind) and np.isfinite(mean):
            return str(_text(restored(np.array([round(mean)], "<i8").view("<u8"), kind))[0].as_py())
        return repr(mean)

    def _bins(self) -> list[int] | None:
        """How many rows lie in each bin: counted if all values are kept, else as the points stand for them."""
        if not is_word(self.facts.kind) or not len(self._points):
            return None
        bits = self._bits if self.is_whole else self._points
        found = numbers(bits, self.facts.kind).astype(np.float64)
        weights = self._counts.astype(np.float64) if self.is_whole else self._weights
        finite = np.isfinite(found)
        found, weights = found[finite], weights[finite]
        if not len(found):
            return None
        least, width = found.min(), found.max() / BINS - found.min() / BINS
        with np.errstate(over="ignore"):
            at = np.minimum((found - least) / (width or 1.0), BINS - 1).astype(np.int64)
        summed = np.bincount(at, weights=weights, minlength=BINS)
        counted: list[int] = np.diff(np.round(np.cumsum(summed)), prepend=0).astype(np.int64).tolist()
        return counted

    @cached_property
    def _by_value(self) -> Int64:
        """The places of the points, sorted by value."""
        return np.argsort(numbers(self._points, self.facts.kind), kind="stable")

    def _frequent(self) -> list[dict[str, Any]]:
        top = np.argsort(-self._counts, kind="stable")[:FREQUENT]
        return [{"value": self.values[at].as_py(), "count": int(self._counts[at])} for at in top.tolist()]

    # ---- of the groups

    def _each(self, slot: str) -> Iterator[pa.Array]:
        for group in self._groups:
            yield group.facts.column(slot).chunk(0)[self._place].values

    def _lists(self, slot: str) -> pa.Array:
        return pa.concat_arrays([pa.array([], pa.utf8()), *self._each(slot)])

    def _numbers(self, slot: str) -> NDArray[Any]:
        return np.concatenate([np.zeros(0, _NUMBERS[slot]), *(each.to_numpy() for each in self._each(slot))])


def _text(values: pa.Array) -> pa.Array:
    return values.cast(pa.utf8())
