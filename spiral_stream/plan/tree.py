"""Walking a plan: from the last verb back to the relations."""

from dataclasses import replace
from typing import Final, TypeVar

from spiral_stream.errors import PlanError
from spiral_stream.expr import Col
from spiral_stream.plan.combining import Join
from spiral_stream.plan.fields.profiles import Profile
from spiral_stream.plan.nodes import Cache, Node, Scan, Sql, WithColumns

N = TypeVar("N", bound=Node)
UNION: Final = "union()"  # the relation that a union makes; no registered one is called so


def walk(node: Node) -> list[Node]:
    """Return every node, inputs before the node that reads them."""
    found: list[Node] = []
    pending = [node]
    while pending:
        current = pending.pop()
        found.append(current)
        pending += current.inputs()
    return found[::-1]


def spine(node: Node) -> list[Node]:
    """Return the nodes from this one down its first inputs, last verb first."""
    found = [node]
    while below := found[-1].inputs():
        found.append(below[0])
    return found


def find(node: Node, kind: type[N]) -> N | None:
    """Return the nearest node of a kind on the spine, or None."""
    for each in spine(node):
        if isinstance(each, kind):
            return each
    return None


def need(node: Node, kind: type[N]) -> N:
    """`find`, or an error that says which verb the plan lacks.

    Raises:
        PlanError: the plan has no such verb.
    """
    found = find(node, kind)
    if found is None:
        lacks = ".to_torch() or a kin" if kind.VERB == "deliver" else f".{kind.VERB}(...)"
        msg = f"this plan has no {lacks}; a stream needs .sample(...), .collate(...) and .to_torch() or a kin"
        raise PlanError(msg)
    return found


def base_scan(node: Node) -> Scan:
    """Return the relation that owns the rows of a spine of row-preserving verbs; makers of rows were replaced before."""
    last = spine(node)[-1]
    assert isinstance(last, Scan), last.VERB
    return last


def origin(node: Node, column: str, base: Node | None = None) -> str | None:
    """Return the column of the base relation that a column is, unchanged; None for a joined or computed one.

    The base is the last node of the spine, unless another one is given.
    """
    for each in spine(node):
        if each is base:
            break
        if isinstance(each, WithColumns) and column in each.names:
            expr = each.exprs[each.names.index(column)]
            if not isinstance(expr, Col):
                return None
            column = expr.name
        elif isinstance(each, Join) and column in each.taken():
            return None
    return column


def owner(node: Node, column: str) -> tuple[str, str] | None:
    """Return the relation that a column is of, unchanged, and its name there; None if it is computed.

    A union is called `UNION`; its columns are its own if each side has them of a relation.
    """
    for each in spine(node):
        if isinstance(each, WithColumns) and column in each.names:
            expr = each.exprs[each.names.index(column)]
            if not isinstance(expr, Col):
                return None
            column = expr.name
        elif isinstance(each, Join) and column in (taken := each.taken()):
            return owner(each.right, taken[column])
        elif isinstance(each, Scan):
            return each.relation, column
        elif each.VERB == "union":
            return (UNION, column) if all(owner(side, column) is not None for side in each.inputs()) else None
        elif each.VERB in ("aggregate", "sql"):
            return None
    return None


def profiles(node: Node) -> dict[str, Profile]:
    """Declared cache profiles by column; the declaration nearest to `Sample` wins."""
    out: dict[str, Profile] = {}
    for each in spine(node):
        if isinstance(each, Cache):
            out = {**dict(each.profiles), **out}
        elif isinstance(each, Join):
            theirs = profiles(each.right)
            out = {**{name: theirs[inner] for name, inner in each.taken().items() if inner in theirs}, **out}
    return out


def relations_of(node: Node) -> list[str]:
    """Return the relations of the catalog that a plan reads, in its order."""
    found: dict[str, None] = {}
    for each in walk(node):
        if isinstance(each, Scan | Sql):
            found |= dict.fromkeys(each.relations if isinstance(each, Sql) else (each.relation,))
    return list(found)


def replaced(node: Node, old: Node, new: Node) -> Node:
    """Return the plan with one node of its spine exchanged."""
    if node is old:
        return new
    source = replaced(node.inputs()[0], old, new)
    return replace(node, source=source)  # type: ignore[type-var]  # every node is a dataclass
