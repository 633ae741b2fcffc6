"""How far each shard's values are from the relation's, for what is joined on and what fields hold."""

from typing import Any

from spiral_stream.catalog.skew import skew_of
from spiral_stream.catalog.statistics import KNOWN, Statistics, load_statistics
from spiral_stream.explain.subject import Subject
from spiral_stream.plan import nodes
from spiral_stream.plan.tree import need, walk
from spiral_stream.planner.streams import StreamStage


def skew_facts(subject: Subject) -> Any:
    """Where statistics are kept; what to materialize where they are not."""
    streams = subject.stages.streams
    found = [(stream, load_statistics(stream.base.entry)) for stream in streams]
    known = [(stream, statistics) for stream, statistics in found if statistics is not None]
    if not subject.stages.mixed:
        if not known:
            return "unknown: materialize asset shard_stats of this relation"
        ((stream, statistics),) = known
        counted = f"all {stream.base.manifest.total:,} rows of {stream.base.entry.name}"
        return {
            "distance": "total variation of a shard's values to the relation's: 0 alike, 1 nothing in common",
            "counted": f"{counted}; the plan keeps {stream.selected.total:,}",
            "columns": _columns(subject, stream, statistics)
            or f"unknown: no joined or delivered column has a histogram in {', '.join(statistics.marks) or 'none'}",
        }
    lacking = dict.fromkeys(stream.base.entry.name for stream, statistics in found if statistics is None)
    if not known:
        return f"unknown: materialize asset shard_stats of {', '.join(lacking)}"
    rows = [{"stream": s.name, **row} for s, statistics in known for row in _columns(subject, s, statistics)]
    return {
        "distance": "total variation of a shard's values to its relation's: 0 alike, 1 nothing in common",
        "counted": "all rows of the relations; what streams differ in is not skew, MIX says how they share",
        **({"unknown": f"materialize asset shard_stats of {', '.join(lacking)}"} if lacking else {}),
        "columns": rows or "unknown: no joined or delivered column has a histogram",
    }


def _columns(subject: Subject, stream: StreamStage, statistics: Statistics) -> list[dict[str, Any]]:
    names = [name for node in walk(stream.node) if isinstance(node, nodes.Join) for name in node.left_on]
    names += [field.column for _, field in need(subject.stages.plan, nodes.Collate).fields]
    rows = []
    for name in dict.fromkeys(names):
        skew = skew_of(statistics, name) if statistics.marks.get(name) == KNOWN else None
        if skew is not None:
            worst = ", ".join(f"{shard} {distance:.2f}" for shard, distance in skew.worst())
            effective = f"{skew.effective.mean():,.1f} of {skew.effective_global:,.1f}"
            row = {"column": name, "mean": skew.mean, "p95": skew.p95, "worst": worst, "values/shard": effective}
            rows.append(row)
    return rows
