"""SKEW in EXPLAIN DATA: how far each shard's values differ from the relation's, and which values dominate, also over time."""

from typing import Any, Final

import numpy as np

from spiral_stream.catalog.shares import Drift
from spiral_stream.catalog.skew import Skew, skew_of
from spiral_stream.catalog.statistics import KNOWN
from spiral_stream.explain.shares import (
    MOST_ROWS,
    Holder,
    Looked,
    Shares,
    holders,
    joined_or_delivered,
    look_at,
    own_texts,
)
from spiral_stream.explain.subject import Subject
from spiral_stream.planner.streams import StreamStage
from spiral_stream.sampling.hash_bucketed import HashBucketed
from spiral_stream.sampling.order import Order
from spiral_stream.sampling.sequential import Sequential
from spiral_stream.sampling.shard_aware import ShardAwareShuffle
from spiral_stream.sampling.shard_order import ExpandedRange, WithinShards
from spiral_stream.sampling.window_shuffle import WindowShuffle

_STREAMS: Final = 16  # most streams of a mixture whose rows are inspected
_FOLLOWS: Final = 0.1  # total variation above that of a random tenth: batches change in the course of an epoch


def skew_facts(subject: Subject) -> Any:
    """Return the section; without statistics it says what to materialize."""
    streams = subject.stages.streams
    found = [(stream, holders(subject, k)) for k, stream in enumerate(streams)]
    known = [(stream, held) for stream, held in found if held]
    if not subject.stages.mixed:
        if not known:
            return "unknown: materialize asset shard_stats of this relation"
        ((stream, held),) = known
        counted = ", ".join(f"all {each.relation.manifest.total:,} rows of {each.relation.entry.name}" for each in held)
        looked = look_at(subject, stream, held)
        marks = dict.fromkeys(name for each in held for name in each.statistics.marks)
        return {
            "distance": "total variation of a shard's values to the relation's: 0 alike, 1 nothing in common",
            "counted": f"{counted}; the plan keeps {stream.selected.total:,}",
            "columns": _columns(subject, stream, held, looked)
            or f"unknown: no joined or delivered column has a histogram in {', '.join(marks) or 'none'}",
            **_shares(subject, [({}, looked)]),
        }
    lacking = dict.fromkeys(stream.base.entry.name for stream, held in found if not held)
    if not known:
        return f"unknown: materialize asset shard_stats of {', '.join(lacking)}"
    most = MOST_ROWS // min(len(known), _STREAMS)
    looked_at = [({"stream": s.name}, look_at(subject, s, held, most)) for s, held in known[:_STREAMS]]
    rows = [{"stream": s.name, **row} for s, held in known for row in _columns(subject, s, held, None)]
    return {
        "distance": "total variation of a shard's values to its relation's: 0 alike, 1 nothing in common",
        "counted": "all rows of the relations; what streams differ in is not skew, MIX says how they share",
        **({"unknown": f"materialize asset shard_stats of {', '.join(lacking)}"} if lacking else {}),
        "columns": rows or "unknown: no joined or delivered column has a histogram",
        **_shares(subject, looked_at),
    }


# ---- by storage shard


def _columns(subject: Subject, stream: StreamStage, held: list[Holder], looked: Looked | None) -> list[dict[str, Any]]:
    """Skew per column: from the relations' histograms, or for joined columns from the rows that the plan keeps."""
    kept = {} if looked is None else {each.column: each.skew for each in looked.columns}
    constant = frozenset[str]() if looked is None else looked.constant
    texts = [name for each in held for name in own_texts(each) if name not in constant]
    rows = []
    for name in dict.fromkeys([*joined_or_delivered(subject, stream), *texts]):
        counted = [each.statistics for each in held if each.statistics.marks.get(name) == KNOWN]
        skew = skew_of(counted[0], name) if counted else kept.get(name)
        if skew is not None and not _one_each(skew):
            rows.append(_shard_row(name if counted else f"{name} (rows kept)", skew))
    return rows


def _one_each(skew: Skew) -> bool:
    """Whether no two shards share a value: then the column names rows or shards, and has no skew."""
    return len(skew.distance) > 1 and bool(np.isclose(skew.distance.sum(), len(skew.distance) - 1))


def _shard_row(name: str, skew: Skew) -> dict[str, Any]:
    worst = ", ".join(f"{shard} {distance:.2f}" for shard, distance in skew.worst())
    effective = f"{skew.effective.mean():,.1f} of {skew.effective_global:,.1f}"
    return {"column": name, "mean": skew.mean, "p95": skew.p95, "worst": worst, "values/shard": effective}


# ---- shares and ingest time


def _shares(subject: Subject, looked: list[tuple[dict[str, str], Looked]]) -> dict[str, Any]:
    """One row per column for its shares, and one for how it moves over time."""
    spread = [{**named, **_spread_row(each, found)} for named, found in looked for each in found.columns]
    moved = [(named, found, each) for named, found in looked for each in found.columns]
    timed = [(named, found, each, each.by_time) for named, found, each in moved if each.by_time is not None]
    if not spread:
        return {}
    rows = sum(found.rows for _, found in looked)
    whole = all(found.whole for _, found in looked)
    seen = f"all {rows:,} rows that the plan keeps" if whole else f"~ {rows:,} of the rows that the plan keeps"
    out: dict[str, Any] = {
        "shares": f"of {seen}; effective values exp(entropy), HHI the sum of squared shares",
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


def order_text(order: Order) -> str:  # noqa: PLR0911  one return an order
    """Say what an order does about ingest time."""
    name = type(order).__name__
    if isinstance(order, HashBucketed):
        return f"{name} ignores ingest order: a row's place is a hash of its identity; its tenths are as far as random ones"
    if isinstance(order, ShardAwareShuffle):
        return f"{name} mixes blocks of {order.shuffle_block_size:,} rows: ingest order is gone as far as blocks mix shards"
    if isinstance(order, Sequential):
        return f"{name} keeps the order of storage, and with it that of ingest"
    if isinstance(order, WindowShuffle):
        return f"{name} keeps the order of storage, and with it that of ingest, beyond {2 * order.window:,} rows"
    if isinstance(order, WithinShards):
        return f"{name} keeps shards together: ingest order is gone as far as shards are not ordered by it"
    if isinstance(order, ExpandedRange):
        return (
            f"{name} mixes rows over {order.expanded_range:,} places: ingest order is gone as far as these mix shards"
        )
    return f"{name} ignores ingest order: any row at any place; its tenths are as far as random ones"


def _spread_row(each: Shares, found: Looked) -> dict[str, Any]:
    mark, spread = "" if found.whole else "~", each.spread
    return {
        "column": each.column,
        "values": f"{mark}{spread.values:,}",
        "largest": f"{each.largest} {mark}{spread.largest_rows / spread.rows:.1%} ({spread.largest_rows:,}/{spread.rows:,})",
        "ten largest": f"{mark}{spread.ten_rows / spread.rows:.1%} ({spread.ten_rows:,}/{spread.rows:,})",
        "effective": f"{mark}{spread.effective:,.1f}",
        "HHI": f"{mark}{spread.index:.3f}",
    }


def _time_row(each: Shares, drift: Drift, found: Looked) -> dict[str, Any]:
    mark = "" if found.whole else "~"
    explained = "unknown: one time" if np.isnan(drift.explained) else f"{mark}{drift.explained:.1%}"
    return {
        "column": each.column,
        "explained": f"{explained} (by chance {drift.explained_by_chance:.1%})",
        "tenths by time": f"{mark}{drift.tenths:.2f}",
        "tenths in the order": "-" if each.in_order is None else f"{mark}{each.in_order:.2f}",
        "a random tenth": f"{mark}{drift.tenths_by_chance:.2f}",
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
