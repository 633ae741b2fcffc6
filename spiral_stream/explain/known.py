"""What EXPLAIN can say of a plan that is not a stream yet: rows, statistics and skew of the relations that it reads.

Only the catalog is asked: no source is opened. What a condition or a join leaves is known when a stream is made of the plan.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from spiral_stream.catalog.registry import Registry
from spiral_stream.catalog.relation.entry import STORAGE_SHARD, Entry
from spiral_stream.catalog.relation.manifest import UNKNOWN_BYTES, Manifest
from spiral_stream.catalog.statistics.measure import KNOWN, Statistics, load_statistics
from spiral_stream.catalog.statistics.skew import skew_of
from spiral_stream.explain.figure import Figure, FigureSource, marked
from spiral_stream.explain.relation import source_line
from spiral_stream.explain.skew import DISTANCE, one_per_shard, shard_row, way_out
from spiral_stream.plan import nodes
from spiral_stream.plan.tree import relations_of, walk

_CUT: Final = 24  # characters of a value
_COUNTS: Final = {"NaN": "nans"}  # labels that are not the names of counts
UNFINISHED: Final = "unknown: finish the plan with .sample(), .collate() and .to_torch() or a kin"


def known_facts(node: nodes.Node, catalog: Registry) -> dict[str, Any]:
    """Return the sections RELATION and SKEW, as far as the catalog knows."""
    entries = [catalog.entry(name) for name in relations_of(node)]
    if not entries:
        return {}
    known = [(entry, entry.manifest(), load_statistics(entry)) for entry in entries]
    counted = [row for entry, _, found in known if found is not None for row in _columns(entry, found)]
    unmeasured = [entry.name for entry, _, found in known if found is None]
    relation: dict[str, Any] = {"relations": [_relation(*each) for each in known]}
    if unmeasured:
        relation = {"statistics": way_out(unmeasured), **relation}
    if not all(isinstance(each, nodes.Scan) for each in walk(node)):
        relation = {"rows that the plan keeps": UNFINISHED, **relation}
    if counted:
        relation["statistics of columns"] = counted
    skewed = [row for entry, _, found in known if found is not None for row in _skewed(entry, found)]
    return {"relation": relation, "skew": {"distance": DISTANCE, "columns": skewed} if skewed else _no_skew(unmeasured)}


def _no_skew(unmeasured: list[str]) -> str:
    return way_out(unmeasured) if unmeasured else "unknown: no column has a histogram"


def _relation(entry: Entry, manifest: Manifest, found: Statistics | None) -> dict[str, Any]:
    sizes = manifest.shard_bytes
    known = sizes[sizes != UNKNOWN_BYTES]
    rows = manifest.shard_rows
    size: Any = "unknown"
    if len(known):
        size = Figure(int(known.sum()), "bytes", marked(len(known) == len(sizes)), source="registration")
    return {
        "relation": entry.name,
        "source": source_line(entry, manifest),
        "rows": Figure(manifest.total, "rows", source="registration"),
        "rows a shard": Figure(float(np.median(rows)) if len(rows) else 0, "rows", source="registration"),
        "bytes": size,
        "identity": ", ".join(entry.identity) + ("" if entry.identity_unique else " (not unique)"),
        "measured": "no" if found is None else "yes",
    }


def _columns(entry: Entry, found: Statistics) -> list[dict[str, Any]]:
    """What is counted of each column."""
    return [
        {"relation": entry.name, "column": each["column"], **counted(each, ("nulls", "NaN"), ("min", "max"), "unknown")}
        for each in found.columns.to_pylist()
    ]


def counted(facts: Mapping[str, Any], counts: Sequence[str], values: Sequence[str], unknown: str) -> dict[str, Any]:
    """Return cells of a table: what statistics say of a column.

    Args:
        facts: of the column; empty where nothing is known.
        counts: of its rows, by their labels.
        values: of it, by their names.
        unknown: stands for the number of its values where nobody counted them.
    """
    known = {label: facts.get(_COUNTS.get(label, label)) for label in counts}
    source, distinct = statistics(facts.get("mark", KNOWN)), facts.get("distinct")
    cells: dict[str, Any] = {label: "-" if each is None else source(each, "rows") for label, each in known.items()}
    cells["distinct"] = unknown if distinct is None else statistics(facts["distinct_mark"])(distinct, "values")
    return cells | {name: shortened(facts.get(name)) for name in values}


def _skewed(entry: Entry, found: Statistics) -> list[dict[str, Any]]:
    names = [
        name for name, mark in found.marks.items() if mark == KNOWN and name not in (STORAGE_SHARD, *entry.identity)
    ]
    rows = [(name, skew_of(found, name)) for name in names]
    return [
        {"relation": entry.name, **shard_row(name, skew)}
        for name, skew in rows
        if skew is not None and not one_per_shard(skew)
    ]


def statistics(mark: str) -> FigureSource:
    """Return the source of what `Catalog.measure` has counted."""
    return FigureSource("statistics", marked(mark == KNOWN))


def shortened(value: str | None) -> str:
    """Write a value that statistics hold as text."""
    if value is None:
        return "-"
    return value if len(value) <= _CUT else f"{value[: _CUT - 3]}..."
