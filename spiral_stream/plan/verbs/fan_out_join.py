"""A join that multiplies rows, seen from its right side: each right row is a sample.

Where one left row has several right ones (several labels of a segment), the pairs are
the samples, and an identity of several columns tells them apart. The right relation owns
them then, and the left one is joined to it, N:1.
"""

from typing import Final

from spiral_stream.expr import Col
from spiral_stream.plan.combining import Join
from spiral_stream.plan.nodes import Node, Project, WithColumns
from spiral_stream.plan.tree import replaced, spine

_ASIDE: Final = "\0"  # after a column's name while both relations have one of that name


def owned_by_right_side(node: Node, identity: tuple[str, ...]) -> Node | None:
    """Return the same rows and columns, owned by the right relation of the join that brings columns of the identity.

    Args:
        node: the relational part of a plan.
        identity: columns that tell its rows apart.

    Returns:
        None where that cannot be: it is no inner join, or not the first of several, or the identity has no right column.
    """
    bringing = (each for each in spine(node) if isinstance(each, Join) and set(identity) & set(each.taken()))
    join = next(bringing, None)
    if join is None or join.how != "inner" or any(isinstance(each, Join) for each in spine(join.source)):
        return None
    ours, theirs = join.source.schema().names, join.right.schema().names
    keys = dict(zip(join.left_on, join.right_on, strict=True))
    other = Join(join.right, join.source, join.right_on, join.left_on, "inner", _ASIDE)
    mine = {name: keys.get(name) or (name + _ASIDE if name in theirs else name) for name in ours}
    where = {**mine, **join.taken()}
    moved = {name: there for name, there in where.items() if name != there}
    rows: Node = WithColumns(other, tuple(moved), tuple(Col(there) for there in moved.values())) if moved else other
    return replaced(node, join, Project(rows, tuple(join.schema().names)))
