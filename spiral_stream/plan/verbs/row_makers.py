"""The verbs that make rows of their own: `union`, `aggregate` and SQL text. What `sample` takes as their identity.

Filters, joins, `distinct`, `sort` and `limit` choose among the rows of one relation. These three do not: the rows that
they make belong to a *derived relation* (docs/decisions/0042), which has shards and identities of its own.
"""

from typing import Final

from spiral_stream.errors import PlanError
from spiral_stream.plan.combining import Aggregate, Union
from spiral_stream.plan.nodes import Node, Scan, Sql
from spiral_stream.plan.tree import origin, spine

Maker = Union | Aggregate | Sql
_WAYS_OUT: Final = {
    "sql": 'the rows of SQL text have no identity of their own. Name columns that tell them apart: sample(identity="...")',
    "aggregate": (
        "aggregate without group_by makes one row, which has no key. Group the rows, or name a column of the result: "
        'sample(identity="...")'
    ),
    "union": (
        "the sides of the union have no identity in common. Name columns that tell all rows apart: "
        'sample(identity=["...", "..."])'
    ),
}


def rows_of(node: Node) -> Scan | Maker:
    """Return the relation, or the maker, whose rows a spine of row-preserving verbs chooses among."""
    return next(each for each in spine(node) if isinstance(each, Scan | Maker))


def natural_identity(node: Node) -> tuple[str, ...]:
    """Return the columns that tell the rows of a plan apart by themselves.

    A relation was registered with them; the groups of an aggregate have their keys; a union has what all of its sides
    have. None where there are none, as for SQL text.
    """
    rows = rows_of(node)
    if isinstance(rows, Scan):
        return _renamed(node, rows, rows.identity)
    if isinstance(rows, Aggregate):
        return _renamed(node, rows, rows.keys)
    if isinstance(rows, Sql):
        return ()
    first, *others = [natural_identity(part) for part in rows.parts]
    return _renamed(node, rows, first) if all(each == first for each in others) else ()


def _renamed(node: Node, rows: Node, names: tuple[str, ...]) -> tuple[str, ...]:
    """The names that columns of ``rows`` have after the verbs over it; the same names where the plan has them not."""
    have = node.schema().names
    now = {origin(node, name, rows): name for name in reversed(have)}
    return tuple(name if origin(node, name, rows) == name and name in have else now.get(name, name) for name in names)


def sample_identity(node: Node) -> tuple[str, ...]:
    """Return the identity of samples where `sample` names none.

    Raises:
        PlanError: the rows have none; says how to name one.
    """
    found = natural_identity(node)
    if not found:
        msg = f"sample: {_WAYS_OUT[rows_of(node).VERB]}"
        raise PlanError(msg)
    return found


def identity_of_rows(node: Node, identity: tuple[str, ...]) -> tuple[str, ...]:
    """Return the columns of a maker that tell its rows apart: those of the sample, or else its natural ones.

    Args:
        node: a plan over a maker.
        identity: of its samples.
    """
    rows = rows_of(node)
    found = [origin(node, name, rows) for name in identity]
    present = tuple(name for name in found if name is not None and name in rows.schema().names)
    return present if len(present) == len(identity) else natural_identity(rows)
