"""What is known of a relation's columns, merged from the facts of its shards. Reads no row.

Everything is gathered for all shards at once: 10,000 shards of a column take some hundredths of a second, and values are
turned into text once each.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spiral_stream.catalog.manifest import Manifest
from spiral_stream.derived.column_facts import ColumnFacts, is_word, restored
from spiral_stream.derived.pieces import Pieces
from spiral_stream.derived.sketches import REGISTERS, estimated_distinct, quantile_places, registers_of

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
HISTOGRAMS: Final = pa.schema(
    [("shard", pa.utf8()), ("column", pa.utf8()), ("value", pa.utf8()), ("count", pa.int64())]
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

Int64 = NDArray[np.int64]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Statistics:
    """Facts of one relation at one data version."""

    shards: pa.Table  # schema SHARDS: one row per shard and column
    histograms: pa.Table  # schema HISTOGRAMS: rows of each value in each shard
    marks: dict[str, str]  # column -> whether its histogram is known; columns not asked are not named
    columns: pa.Table = field(default_factory=COLUMNS.empty_table)  # schema COLUMNS: one row per column


@final
@dataclass(frozen=True, slots=True, eq=False)
class Merged:
    """Facts of the columns that were counted."""

    shards: list[pa.Table]
    histograms: pa.Table
    marks: dict[str, str]
    columns: pa.Table
    bytes: Int64  # [S] of the columns that were counted


def merged(
    manifest: Manifest,
    counted: Sequence[tuple[ColumnFacts, Pieces]],
    candidates: Collection[str],
    most: int,
    unique: Collection[str] = (),
) -> Merged:
    """Merge the facts of all shards.

    Args:
        manifest: the shards.
        counted: the columns.
        candidates: those that have a histogram, if they have few values.
        most: values of a column that has a histogram.
        unique: columns that are known to have another value in every row.

    Raises:
        DamageError: a piece is not what was written.
    """
    order = np.array(pc.sort_indices(manifest.shard_names), np.int64)
    names, rows = manifest.shard_names.take(pa.array(order)), manifest.shard_rows.astype(np.int64)[order]
    total = np.zeros(len(rows), np.int64)
    columns = [_Column(facts, pieces, order, rows) for facts, pieces in counted]
    histograms, marks = [HISTOGRAMS.empty_table()], dict[str, str]()
    for each in sorted(columns, key=lambda column: column.name):
        if each.name in candidates:
            known = each.is_whole and len(each.values) <= most
            marks[each.name] = KNOWN if known else UNKNOWN
            histograms += [each.histogram(names)] if known else []
    for each in columns:
        total[order] += each.summary("bytes")
    shards = [each.shards(names) for each in columns]
    wholes = [COLUMNS.empty_table(), *(each.whole(unique=each.name in unique) for each in columns)]
    return Merged(shards, pa.concat_tables(histograms), marks, pa.concat_tables(wholes), total)


@final
class _Column:
    """The facts of one column, of all shards in the order of their names."""

    def __init__(self, facts: ColumnFacts, pieces: Pieces, order: Int64, rows: Int64) -> None:
        self.facts, self.name = facts, facts.name
        self._pieces, self._order, self._rows = pieces, order, rows
        self._counts = self._joined("counts").astype(np.int64)
        self._of_shard = np.repeat(np.arange(len(order)), self._items("counts"))
        self.is_whole = bool(self.summary("whole").all())
        self._points = self._items("points")
        if is_word(facts.kind):
            bits, self._codes = np.unique(self._joined("values"), return_inverse=True)
            self.values = _text(restored(bits, facts.kind))
            self._least, self._greatest = self._word_ends()
        else:
            self._least, self._greatest, named = self._texts()
            encoded = named.dictionary_encode()
            self.values = encoded.dictionary.take(pc.sort_indices(encoded.dictionary))
            places = np.asarray(pc.index_in(encoded.dictionary, self.values).to_numpy(zero_copy_only=False), np.int64)
            self._codes = places[encoded.indices.to_numpy()]
            self._sort()

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

    def histogram(self, names: pa.Array) -> pa.Table:
        """Return the rows of each value in each shard; null comes last."""
        nulls = self.summary("nulls")
        without = np.flatnonzero(nulls)
        shards = np.concatenate([self._of_shard, without])
        order = np.argsort(shards, kind="stable")
        values = pa.concat_arrays([self.values.take(pa.array(self._codes)), pa.nulls(len(without), pa.utf8())])
        return pa.table(
            {
                "shard": names.take(pa.array(shards[order])),
                "column": pa.repeat(self.name, len(order)),
                "value": values.take(pa.array(order)),
                "count": np.concatenate([self._counts, nulls[without]])[order],
            },
            schema=HISTOGRAMS,
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
        held, hashes = self._joined("registers").reshape(-1, REGISTERS), self._joined("hashes")
        if not len(held):
            return len(np.unique(hashes)) + (nans > 0), KNOWN
        found = estimated_distinct(registers_of(hashes, held.max(axis=0)))
        return min(max(found, int(self.summary("distinct").max())), values - max(0, nans - 1)), ESTIMATED

    def _extremes(self) -> tuple[str | None, str | None]:
        there = np.flatnonzero(self._rows - self.summary("nulls") - self.summary("nans") > 0)
        if not len(there):
            return None, None
        kind = self.facts.kind
        if is_word(kind):
            order = self._sorted_points()[0]
            ends = _text(restored(self._joined("points")[order[[0, -1]]], kind))
            return ends[0].as_py(), ends[1].as_py()
        typed = pa.utf8() if _is_text(kind) else kind
        least, greatest = (each.take(pa.array(there)).cast(typed) for each in (self._least, self._greatest))
        return str(pc.min(least).as_py()), str(pc.max(greatest).as_py())

    def _quartiles(self) -> list[str] | None:
        if not is_word(self.facts.kind) or not self._points.sum():
            return None
        order, points = self._sorted_points()
        valid = self._rows - self.summary("nulls") - self.summary("nans")
        at = quantile_places(order, self._points, valid)[1:4]
        found: list[str] = _text(restored(points[at], self.facts.kind)).to_pylist()
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
        if not is_word(self.facts.kind) or not self._points.sum():
            return None
        if self.is_whole:
            found, weights = self._numbers(self._joined("values")), self._counts.astype(np.float64)
        else:
            valid = self._rows - self.summary("nulls") - self.summary("nans")
            found = self._numbers(self._joined("points"))
            weights = np.repeat(valid / np.maximum(self._points, 1), self._points)
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

    def _numbers(self, bits: NDArray[np.uint64]) -> NDArray[np.float64]:
        kind = self.facts.kind
        if pa.types.is_floating(kind):
            return bits.view("<f8")
        return (bits if pa.types.is_unsigned_integer(kind) else bits.view("<i8")).astype(np.float64)

    def _sorted_points(self) -> tuple[Int64, NDArray[np.uint64]]:
        points, kind = self._joined("points"), self.facts.kind
        if pa.types.is_floating(kind):
            typed: NDArray[Any] = points.view("<f8")
        else:
            typed = points if pa.types.is_unsigned_integer(kind) else points.view("<i8")
        return np.argsort(typed, kind="stable"), points

    def _frequent(self) -> list[dict[str, Any]]:
        summed = np.bincount(self._codes, weights=self._counts, minlength=len(self.values)).astype(np.int64)
        top = np.argsort(-summed, kind="stable")[:FREQUENT]
        return [{"value": self.values[at].as_py(), "count": int(summed[at])} for at in top.tolist()]

    # ---- of the shards

    def _sort(self) -> None:
        """Put the values of each shard in order; those of words are."""
        order = np.argsort(self._of_shard * (len(self.values) + 1) + self._codes, kind="stable")
        self._codes, self._counts = self._codes[order], self._counts[order]

    def _word_ends(self) -> tuple[pa.Array, pa.Array]:
        points, ends = self._joined("points"), np.cumsum(self._points)
        if not len(points):
            return (pa.nulls(len(ends), pa.utf8()),) * 2
        last = np.maximum(ends - 1, 0)
        first = np.minimum(ends - self._points, len(points) - 1)
        least, greatest = (_text(restored(points[at], self.facts.kind)) for at in (first, last))
        return least, greatest

    def _texts(self) -> tuple[pa.Array, pa.Array, pa.Array]:
        """The least and the greatest of each shard, and the values that are kept of all of them."""
        lengths = self._joined("lengths").astype(np.int64)
        ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        data = pa.py_buffer(self._joined("text"))
        text = pa.Array.from_buffers(pa.large_utf8(), len(lengths), [None, pa.py_buffer(ends), data])
        items = self._items("lengths")
        first = np.cumsum(items) - items
        other = np.ones(len(lengths), np.bool_)
        other[first] = other[first + 1] = False
        found = (text.take(pa.array(first)), text.take(pa.array(first + 1)), text.filter(pa.array(other)))
        least, greatest, named = (each.cast(pa.utf8()) for each in found)
        return least, greatest, named

    def _joined(self, slot: str) -> NDArray[Any]:
        return self._pieces.joined(slot, self._order)

    def _items(self, slot: str) -> Int64:
        return self._pieces.counts[slot][self._order].astype(np.int64)


def _text(values: pa.Array) -> pa.Array:
    return values.cast(pa.utf8())


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
