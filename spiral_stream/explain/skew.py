"""SKEW in EXPLAIN DATA: how far each shard's values differ from the relation's, and which values dominate, also over time."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from spiral_stream.catalog.statistics.drift import Drift
from spiral_stream.catalog.statistics.measure import KNOWN
from spiral_stream.catalog.statistics.skew import Skew, skew_of
from spiral_stream.errors import listed
from spiral_stream.explain.figure import RATIO, Figure, FigureSource, Phrase, marked, phrase
from spiral_stream.explain.shares import (
    MOST_ROWS,
    Holder,
    Looked,
    Shares,
    holders,
    joined_or_delivered,
    look_at,
    text_columns,
)
from spiral_stream.explain.subject import Subject
from spiral_stream.planner.columns.streams import StreamStage
from spiral_stream.planner.union import UnionRows
from spiral_stream.sampling.order import Order
from spiral_stream.sampling.orders.hash_bucketed import HashBucketed
from spiral_stream.sampling.orders.sequential import Sequential
from spiral_stream.sampling.orders.shard_aware import ShardAwareShuffle
from spiral_stream.sampling.orders.shard_order import ExpandedRange, WithinShards
from spiral_stream.sampling.orders.window_shuffle import WindowShuffle
from spiral_stream.sources.internal.computed import Computed

DISTANCE: Final = "total variation of a shard's values to the relation's: 0 alike, 1 nothing in common"
MADE: Final = (Computed.KIND, UnionRows.KIND)
_COUNTED: Final = FigureSource("counted values")
_NAMED: Final = 8  # relations that a line names
_STREAMS: Final = 16  # most streams of a mixture whose rows are inspected
_FOLLOWS: Final = 0.1  # total variation above that of a random tenth: batches change in the course of an epoch


def way_out(names: list[str], made: Sequence[str] = ()) -> str:
    """Say what counts the values of relations that have no statistics.

    Args:
        names: registered relations.
        made: relations that the plan itself makes, which `Catalog.measure` does not know.
    """
    ways = []
    if names:
        calls = listed([f'catalog.measure("{name}")' for name in names], _NAMED)
        ways = [f"call {calls}, or materialize asset shard_stats of {listed(names, _NAMED)}"]
    if made:
        ways.append(
            f"the plan makes {listed(made, _NAMED)}, and statistics are of registered relations. To have them, "
            'register the result: catalog.register("...", spiral.Arrow(relation.to_arrow()), identity="...")'
        )
    return f"unknown: {'; '.join(ways)}"


def _uncounted(streams: Iterable[StreamStage]) -> str:
    """As `way_out`, of streams whose relations have no statistics."""
    entries = {stream.base.entry.name: stream.base.entry for stream in streams}
    made = [name for name, entry in entries.items() if entry.source.KIND in MADE]
    return way_out([name for name in entries if name not in made], made)


def skew_facts(subject: Subject) -> Any:
    """Return the section; without statistics it says what to materialize."""
    streams = subject.stages.streams
    found = [(stream, holders(subject, k)) for k, stream in enumerate(streams)]
    known = [(stream, held) for stream, held in found if held]
    if not subject.stages.mixed:
        if not known:
            return _uncounted(streams)
        ((stream, held),) = known
        counted = ", ".join(f"all {each.relation.manifest.total:,} rows of {each.relation.entry.name}" for each in held)
        rows_figure = Figure(stream.selected.total, "rows")
        looked = look_at(subject, stream, held)
        marks = dict.fromkeys(name for each in held for name in each.statistics.marks)
        return {
            "distance": DISTANCE,
            "counted": Phrase(f"{counted}; the plan keeps {rows_figure}", {**_totals(held), "kept": rows_figure}),
            "columns": _columns(subject, stream, held, looked)
            or f"unknown: no joined or delivered column has a histogram in {', '.join(marks) or 'none'}",
            **_shares(subject, [({}, looked)]),
        }
    lacking = [stream for stream, held in found if not held]
    if not known:
        return _uncounted(lacking)
    most = MOST_ROWS // min(len(known), _STREAMS)
    looked_at = [({"stream": s.name}, look_at(subject, s, held, most)) for s, held in known[:_STREAMS]]
    rows = [{"stream": s.name, **row} for s, held in known for row in _columns(subject, s, held, None)]
    return {
        "distance": "total variation of a shard's values to its relation's: 0 alike, 1 nothing in common",
        "counted": "all rows of the relations; what streams differ in is not skew, MIX says how they share",
        **({"unknown": _uncounted(lacking).removeprefix("unknown: ")} if lacking else {}),
        "columns": rows or "unknown: no joined or delivered column has a histogram",
        **_shares(subject, looked_at),
    }


def _totals(held: list[Holder]) -> dict[str, Figure]:
    totals = {each.relation.entry.name: each.relation.manifest.total for each in held}
    return {f"rows of {name}": Figure(total, "rows", source="statistics") for name, total in totals.items()}


# ---- by storage shard


def _columns(subject: Subject, stream: StreamStage, held: list[Holder], looked: Looked | None) -> list[dict[str, Any]]:
    """Skew per column: from the relations' histograms, or for joined columns from the rows that the plan keeps."""
    skews = {} if looked is None else {each.column: each.skew for each in looked.columns}
    constant = frozenset[str]() if looked is None else looked.constant
    texts = [name for each in held for name in text_columns(each) if name not in constant]
    rows = []
    for name in dict.fromkeys([*joined_or_delivered(subject, stream), *texts]):
        counted = [each.statistics for each in held if each.statistics.marks.get(name) == KNOWN]
        skew = skew_of(counted[0], name) if counted else skews.get(name)
        if skew is not None and not one_per_shard(skew):
            rows.append(shard_row(name if counted else f"{name} (rows kept)", skew))
    return rows


def one_per_shard(skew: Skew) -> bool:
    """Return whether no two shards share a value: then the column names rows or shards, and has no skew."""
    return len(skew.distance) > 1 and bool(np.isclose(skew.distance.sum(), len(skew.distance) - 1))


def shard_row(name: str, skew: Skew) -> dict[str, Any]:
    """Return how far shards differ in one column."""
    worst = {shard: _COUNTED(far, "total variation", ".2f") for shard, far in skew.worst()}
    return {
        "column": name,
        "mean": _COUNTED(skew.mean, "total variation"),
        "p95": _COUNTED(skew.p95, "total variation"),
        "worst": Phrase(", ".join(f"{shard} {far}" for shard, far in worst.items()), worst),
        "values/shard": phrase(
            "{shard} of {whole}", shard=_values(skew.effective.mean()), whole=_values(skew.effective_global)
        ),
    }


def _values(effective: float) -> Figure:
    return _COUNTED(float(effective), "effective values", ",.1f")


# ---- shares and ingest time


def _shares(subject: Subject, looked: list[tuple[dict[str, str], Looked]]) -> dict[str, Any]:
    """One row per column for its shares, and one for how it moves over time."""
    spread = [{**named, **_spread_row(each, found)} for named, found in looked for each in found.columns]
    moved = [(named, found, each) for named, found in looked for each in found.columns]
    timed = [(named, found, each, each.by_time) for named, found, each in moved if each.by_time is not None]
    if not spread:
        return {}
    rows = sum(found.rows for _, found in looked)
    is_complete = all(found.is_complete for _, found in looked)
    seen = "all {rows} rows that the plan keeps" if is_complete else "~ {rows} of the rows that the plan keeps"
    out: dict[str, Any] = {
        "shares": phrase(
            f"of {seen}; effective values exp(entropy), HHI the sum of squared shares",
            rows=Figure(rows, "rows", marked(is_complete)),
        ),
        "values": spread,
    }
    times = list(dict.fromkeys(found.time for _, found in looked if found.time is not None))
    if not timed:
        return {**out, "ingest time": _untimed(times)}
    _warn(subject, timed)
    return {
        **out,
        "ingest time": f"{', '.join(times)}; explained: share of its variance that lies between a column's values",
        "tenths": "total variation of the first and last tenth, by ingest time or in the epoch's order, to the whole",
        "order": order_text(subject.stages.order),
        "time": [{**named, **_time_row(each, drift, found)} for named, found, each, drift in timed],
    }


def _untimed(times: list[str]) -> str:
    if times:
        return f"unknown: too few rows have a value in {', '.join(times)}"
    return "unknown: the relation has no timestamp column. Register one to see whether values follow it"


_ORDERS: Final[Mapping[type[Order], str]] = {
    HashBucketed: "ignores ingest order: a row's place is a hash of its identity; its tenths are as far as random ones",
    ShardAwareShuffle: (
        "mixes blocks of {0.shuffle_block_size:,} rows: ingest order is gone as far as blocks mix shards"
    ),
    Sequential: "keeps the order of storage, and with it that of ingest",
    WindowShuffle: "keeps the order of storage, and with it that of ingest, beyond {1:,} rows",
    WithinShards: "keeps shards together: ingest order is gone as far as shards are not ordered by it",
    ExpandedRange: ("mixes rows over {0.expanded_range:,} places: ingest order is gone as far as these mix shards"),
}


def order_text(order: Order) -> str:
    """Say what an order does about ingest time."""
    words = _ORDERS.get(type(order), "ignores ingest order: any row at any place; its tenths are as far as random ones")
    return f"{type(order).__name__} {words.format(order, 2 * getattr(order, 'window', 0))}"


def _spread_row(shares: Shares, found: Looked) -> dict[str, Any]:
    source, spread = found.source, shares.spread
    largest = source.ratio(spread.largest_rows, spread.rows)
    return {
        "column": shares.column,
        "values": source(spread.values, "values", ","),
        "largest": Phrase(f"{shares.largest} {largest:m}", {"share": largest}),
        "ten largest": source.ratio(spread.ten_rows, spread.rows),
        "effective": source(spread.effective, "effective values", ",.1f"),
        "HHI": source(spread.index, "squared shares", ".3f"),
    }


def _time_row(shares: Shares, drift: Drift, found: Looked) -> dict[str, Any]:
    source = found.source
    chance = source(drift.explained_by_chance, RATIO, ".1%")
    explained = phrase("unknown: one time (by chance {chance})", chance=chance)
    if not np.isnan(drift.explained):
        of_time = source(drift.explained, RATIO, ".1%")
        explained = phrase("{explained:m} (by chance {chance})", explained=of_time, chance=chance)

    def far(tenths: float) -> Figure:
        return source(tenths, "total variation", ".2f")

    return {
        "column": shares.column,
        "explained": explained,
        "tenths by time": far(drift.tenths),
        "tenths in the order": "-" if shares.in_order is None else far(shares.in_order),
        "a random tenth": far(drift.tenths_by_chance),
    }


def _warn(subject: Subject, timed: list[tuple[dict[str, str], Looked, Shares, Drift]]) -> None:
    """Warn if values follow ingest time and the order keeps that."""
    follow = [
        (f"{each.column} {each.in_order:.2f}, a random tenth {drift.tenths_by_chance:.2f}")
        for _, _, each, drift in timed
        if each.in_order is not None
        and min(each.in_order, drift.tenths) > 2 * drift.tenths_by_chance
        and min(each.in_order, drift.tenths) > drift.tenths_by_chance + _FOLLOWS
    ]
    if follow:
        subject.warnings.add(
            f"batches follow ingest time: the tenths of the order are as far from the whole as {'; '.join(follow)}. "
            "HashBucketed and GlobalShuffle ignore it; a larger shuffle_block_size mixes more of it"
        )
