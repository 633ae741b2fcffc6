"""RELATION in EXPLAIN DATA: the rows that each stream keeps, step by step, and what the source itself skips."""

from typing import Any

from spiral_stream.catalog.source_facts import source_facts
from spiral_stream.explain.subject import Subject, payload_columns, percent
from spiral_stream.plan.maps import SampleTokens
from spiral_stream.plan.nodes import Scan
from spiral_stream.plan.tree import spine
from spiral_stream.planner.rewrites import rewrite
from spiral_stream.planner.streams import StreamStage
from spiral_stream.planner.union_rows import UnionRows


def relation_facts(subject: Subject) -> dict[str, Any]:
    """Return one block without a mixture; with one, a row per stream, and its steps below."""
    streams = subject.stages.streams
    looked_at = list(dict.fromkeys(name for stream in streams for name in _payload_decided_on(subject, stream)))
    decided = f"unknown: the plan decides on {', '.join(looked_at)}" if looked_at else 0
    if not subject.stages.mixed:
        (stream,) = streams
        return {
            "source": _source(stream),
            "pushed into the scan": stream.selected.pushed or "nothing",
            "payload bytes read to decide": decided,
            **_derived(subject),
            "steps": _steps(stream),
        }
    return {
        "payload bytes read to decide": decided,
        **_derived(subject),
        "streams": [
            {
                "stream": stream.name,
                "relation": stream.base.entry.name,
                "source": _source(stream),
                "pass": percent(stream.selected.total, stream.base.manifest.total),
                "pushed into the scan": stream.selected.pushed or "nothing",
            }
            for stream in streams
        ],
        "steps": [{"stream": stream.name, **step} for stream in streams for step in _steps(stream)],
    }


def _derived(subject: Subject) -> dict[str, Any]:
    """A row per relation that the plan makes itself: what it is of, and what it cost."""
    rows = [
        {
            "derived relation": each.entry.name,
            "of": ", ".join(each.of),
            "rows": each.facts["rows"],
            "rows kept": "none: read where they lie" if each.entry.source.KIND == UnionRows.KIND else "all",
            "bytes": each.facts["bytes"],
            "made in": f"{each.facts['seconds']:,.2f} CPU s",
        }
        for each in subject.stages.derived
    ]
    return {"derived": rows} if rows else {}


def _source(stream: StreamStage) -> str:
    entry = stream.base.entry
    facts = source_facts(entry)
    shards = f"{facts.kind}, {len(stream.base.manifest.shard_names):,} storage shards"
    return shards if facts.imported is None else f"{shards}; {facts.imported}"


def _steps(stream: StreamStage) -> list[dict[str, Any]]:
    total = stream.base.manifest.total
    rows = [{"step": f"scan {stream.base.entry.name}", "rows left": total, "share": 1.0}]
    return rows + [
        {"step": what, "rows left": left, "share": left / max(1, total)} for what, left in stream.selected.counts
    ]


def _payload_decided_on(subject: Subject, stream: StreamStage) -> list[str]:
    """Payload columns (bytes, text that is tokenized) that conditions, keys, distinct or sort read."""
    scan, *verbs = list(spine(stream.node))[::-1]
    assert isinstance(scan, Scan)
    work = rewrite(scan.schema(), verbs)
    read = {*work.read(), *(name for part in work.pushed for name in part.columns())}
    texts = {name for node in subject.stages.maps if isinstance(node, SampleTokens) for name in node.transform.columns}
    heavy = texts | payload_columns(stream)
    return [name for name in scan.schema().names if name in read and name in heavy]
