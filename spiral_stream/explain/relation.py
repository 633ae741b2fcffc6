"""RELATION in EXPLAIN DATA: how many rows each stream has after each step, and what the source itself skips."""

from typing import Any, Final

from spiral_stream.catalog.relation.entry import Entry
from spiral_stream.catalog.relation.manifest import Manifest
from spiral_stream.catalog.relation.source_facts import source_facts
from spiral_stream.explain.figure import RATIO, Figure, FigureSource, Phrase, phrase, ratio
from spiral_stream.explain.subject import Subject, payload_columns
from spiral_stream.plan.nodes import Scan
from spiral_stream.plan.tree import spine
from spiral_stream.plan.verbs.maps import SampleTokens
from spiral_stream.planner.columns.streams import StreamStage
from spiral_stream.planner.selection.rewrites import rewrite
from spiral_stream.planner.union import UnionRows


def relation_facts(subject: Subject) -> dict[str, Any]:
    """Return one block without a mixture; with one, a row per stream, and its steps below."""
    streams = subject.stages.streams
    looked_at = list(dict.fromkeys(name for stream in streams for name in _payload_decided_on(subject, stream)))
    decided = f"unknown: the plan decides on {', '.join(looked_at)}" if looked_at else Figure(0, "bytes")
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
                "pass": ratio(stream.selected.total, stream.base.manifest.total),
                "pushed into the scan": stream.selected.pushed or "nothing",
            }
            for stream in streams
        ],
        "steps": [{"stream": stream.name, **step} for stream in streams for step in _steps(stream)],
    }


_MAKING: Final = FigureSource("its making")


def _derived(subject: Subject) -> dict[str, Any]:
    """A row per relation that the plan makes itself: what it is of, and what it cost."""
    rows = [
        {
            "derived relation": each.entry.name,
            "of": ", ".join(each.of),
            "rows": Figure(each.facts["rows"], "rows", source="registration"),
            "rows kept": "none: read where they lie" if each.entry.source.KIND == UnionRows.KIND else "all",
            "bytes": Figure(each.facts["bytes"], "bytes", source="registration"),
            "made in": _MAKING.phrase("{cpu:,.2f} CPU s", "CPU s", cpu=each.facts["seconds"]),
        }
        for each in subject.stages.derived
    ]
    return {"derived": rows} if rows else {}


def _source(stream: StreamStage) -> Phrase:
    return source_line(stream.base.entry, stream.base.manifest)


def source_line(entry: Entry, manifest: Manifest) -> Phrase:
    """Return what a relation's rows are stored as, in how many shards."""
    facts = source_facts(entry)
    found = phrase(f"{facts.kind}, {{shards}} storage shards", shards=Figure(len(manifest.shard_names), "shards"))
    return found if facts.imported is None else Phrase(f"{found}; {facts.imported}", found.figures)


def _steps(stream: StreamStage) -> list[dict[str, Any]]:
    total = stream.base.manifest.total
    left = [(f"scan {stream.base.entry.name}", total), *stream.selected.counts]
    return [{"step": what, "rows left": Figure(rows, "rows"), "share": _share(rows, total)} for what, rows in left]


def _share(rows: int, total: int) -> Figure:
    return Figure(rows / max(1, total), RATIO)


def _payload_decided_on(subject: Subject, stream: StreamStage) -> list[str]:
    """Payload columns (bytes, text that is tokenized) that conditions, keys, distinct or sort read."""
    scan, *verbs = spine(stream.node)[::-1]
    assert isinstance(scan, Scan)
    work = rewrite(scan.schema(), verbs)
    read = {*work.read(), *(name for part in work.pushed for name in part.columns())}
    texts = {name for node in subject.stages.maps if isinstance(node, SampleTokens) for name in node.transform.columns}
    heavy = texts | payload_columns(stream)
    return [name for name in scan.schema().names if name in read and name in heavy]
