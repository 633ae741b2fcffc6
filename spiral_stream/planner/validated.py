"""Check ``validate=`` of a join: on a side that must be unique, no key occurs twice."""

from collections.abc import Callable
from typing import Final

from spiral_stream.catalog.relation.reader import OpenRelation
from spiral_stream.errors import PlanError, shown
from spiral_stream.plan.combining import join_rule
from spiral_stream.plan.nodes import Node, Project
from spiral_stream.planner.selection.whole import collect
from spiral_stream.relational.join import repeated_keys

_WEAKER: Final = {(True, True): "many_to_many", (True, False): "many_to_{}", (False, True): "{}_to_many"}


def need_rule(
    validate: str,
    sides: tuple[tuple[Node, tuple[str, ...]], tuple[Node, tuple[str, ...]]],
    opened: Callable[[str], OpenRelation],
) -> None:
    """Read the keys of a join, and refuse what breaks the rule. Memory holds the key columns of one side.

    Args:
        validate: the rule, in pandas' words.
        sides: the left and the right relation, each with its keys.
        opened: gives an open relation by name.

    Raises:
        PlanError: says which keys several rows of a side have, and the ways out.
    """
    unique = join_rule(validate)
    found = [
        repeated_keys(collect(Project(node, tuple(dict.fromkeys(keys))), opened)) if is_unique else (0, "")
        for (node, keys), is_unique in zip(sides, unique, strict=True)
    ]
    broken = (found[0][0] > 0, found[1][0] > 0)
    if not any(broken):
        return
    left, right = (name for _, name in sides)
    said = [
        f"{count:,} {'key has' if count == 1 else 'keys have'} several rows on the {side}: {examples}"
        for side, (count, examples) in zip(("left", "right"), found, strict=True)
        if count
    ]
    apart = [
        f"on the {side} with .distinct({', '.join(map(repr, keys))})"
        for side, keys, bad in zip(("left", "right"), (left, right), broken, strict=True)
        if bad
    ]
    other = unique[1] if broken[0] else unique[0]
    weaker = _WEAKER[broken].format("one" if other else "many")
    msg = (
        f"join on {', '.join(left)}: validate={shown(validate)}, and {'; '.join(said)}. Keep one row per key "
        f'{" and ".join(apart)}, or give validate="{weaker}"'
    )
    raise PlanError(msg)
