"""`Relation.describe`: what statistics say of each column of a plan, and which statistics are missing.

Only the catalog is asked: no row is read. Statistics are of all rows of a relation, so where a plan leaves rows out they are
limits: no value is below the least, and no more values are null than those that were counted.
"""

from collections.abc import Mapping
from typing import Any, Final

from spiral_stream.catalog.registry import Registry
from spiral_stream.catalog.relation.entry import STORAGE_SHARD
from spiral_stream.catalog.statistics.measure import KNOWN, load_statistics
from spiral_stream.explain.known import counted
from spiral_stream.explain.text import Explanation
from spiral_stream.plan import combining, nodes
from spiral_stream.plan.tree import UNION, owner, spine, walk

_CHOOSE: Final = nodes.Filter | nodes.Distinct | nodes.Limit | combining.Join


def described(node: nodes.Node, catalog: Registry) -> Explanation:
    """Return the section DESCRIBE with a row per column, and the section NOTES.

    Args:
        node: a relational plan.
        catalog: where its relations are registered.

    Raises:
        CatalogError: statistics are damaged; says how to count again.
    """
    names = {each.relation for each in walk(node) if isinstance(each, nodes.Scan)}
    measured = {name: _counted(catalog, name) for name in sorted(names)}
    rows, unsaid = [], dict[str, list[str]]()
    for field in node.schema():
        found = owner(node, field.name)
        of, column = ("", "") if found is None or found[0] == UNION else found
        facts = (measured.get(of) or {}).get(column, {})
        known = facts if facts.get("mark") == KNOWN else {}
        cells = counted(known, ("rows", "nulls", "NaN"), ("min", "mean", "max"), "-")
        of_what = f"{of}.{column}" if of else "computed"
        rows.append({"column": field.name, "type": str(field.type), "of": of_what, **cells})
        if not known and column != STORAGE_SHARD:
            unsaid.setdefault(_way_out(of, measured), []).append(field.name)
    notes = [f"{', '.join(columns)}: {why}" for why, columns in unsaid.items()]
    verbs = [each.VERB for each in reversed(spine(node)) if isinstance(each, _CHOOSE)]
    if verbs and any(measured.values()):
        notes.insert(0, f"figures are of all rows of {', '.join(sorted(names))}: {', '.join(verbs)} may leave fewer")
    return Explanation({"describe": rows, "notes": notes})


def _counted(catalog: Registry, name: str) -> Mapping[str, Any] | None:
    """What was counted of each column of a relation; None if nothing was."""
    found = load_statistics(catalog.entry(name))
    return None if found is None else {row["column"]: row for row in found.columns.to_pylist()}


def _way_out(relation: str, counted: Mapping[str, Mapping[str, Any] | None]) -> str:
    """Say why a column has no figures, and what would give them."""
    if not relation:
        return (
            'computed by the plan. Measure it with .aggregate(least=("...", "min"), values=("...", "count_distinct"))'
        )
    if counted.get(relation) is None:
        return f'not measured yet. Call catalog.measure("{relation}")'
    return "payload, bytes or nested values, which measure does not read"
