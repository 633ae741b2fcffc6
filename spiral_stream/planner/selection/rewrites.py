"""Move filters to the scan of the relation they refer to, wherever that leaves the rows the same.

The verbs after a relation are read once, with every column as an expression over
*leaves* (columns of the base relation, and of the k-th joined one). A condition whose
leaves all belong to the base runs in its scan; one whose leaves all belong to the right
side of an inner join runs there; both only if no distinct, sort or limit comes before
it, since those choose among the rows they get. What is left are steps in the plan's
order, and the few base columns that they look at.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from operator import and_
from typing import final

import pyarrow as pa

from spiral_stream.dialects.pushdown import conjuncts
from spiral_stream.expr import Alias, Col, Expr, bind
from spiral_stream.plan import combining, nodes
from spiral_stream.planner.selection.fetched_columns import leaf_of, right_leaf, substitute


@final
@dataclass(frozen=True, slots=True, eq=False)
class Keep:
    """Keep the rows that pass."""

    predicate: Expr  # over leaves
    text: str


@final
@dataclass(frozen=True, slots=True, eq=False)
class Match:
    """Look up the matching row of a joined relation for each row."""

    verb: combining.Join
    right: nodes.Node  # the right side, with the filters that were moved there
    moved: tuple[str, ...]  # those filters
    keys: tuple[Expr, ...]  # over leaves

    def text(self, missed: int) -> str:
        """Say what the join did, as EXPLAIN shows it."""
        verb = self.verb
        where = f", right rows where {' & '.join(self.moved)}" if self.moved else ""
        return f"{verb.how} join on {', '.join(verb.left_on)} ({missed:,} left rows without a match{where})"


@final
@dataclass(frozen=True, slots=True, eq=False)
class First:
    """Keep the first row of every distinct value."""

    verb: nodes.Distinct
    keys: tuple[Expr, ...]  # over leaves


@final
@dataclass(frozen=True, slots=True, eq=False)
class Arrange:
    """Sort the rows."""

    verb: nodes.Sort
    keys: tuple[Expr, ...]  # over leaves


@final
@dataclass(frozen=True, slots=True, eq=False)
class Head:
    """Keep the first rows."""

    count: int


Step = Keep | Match | First | Arrange | Head


@final
@dataclass(frozen=True, eq=False)
class Rewritten:
    """The relational verbs over one base, as a scan and steps."""

    pushed: tuple[Expr, ...]  # conditions that the base's scan applies, over its columns
    steps: tuple[Step, ...]
    env: Mapping[str, Expr]  # each column that is left, over leaves

    @cached_property
    def joins(self) -> list[Match]:
        """The steps that look up rows of other relations."""
        return [step for step in self.steps if isinstance(step, Match)]

    @cached_property
    def condition(self) -> Expr | None:
        """All pushed conditions in one."""
        return reduce(and_, self.pushed) if self.pushed else None

    @cached_property
    def pushed_text(self) -> str | None:
        """The pushed conditions, for people."""
        return str(self.condition) if self.pushed else None

    def read(self, also: Iterable[str] = ()) -> list[str]:
        """Base columns that the steps look at, and those behind the columns in ``also``; sorted."""
        exprs = [self.env[name] for name in also]
        for step in self.steps:
            exprs += [step.predicate] if isinstance(step, Keep) else getattr(step, "keys", ())
        return sorted({leaf for each in exprs for leaf in each.columns() if leaf_of(leaf)[0] is None})


def rewrite(base: pa.Schema, verbs: Sequence[nodes.Node]) -> Rewritten:
    """Move filters, and put the rest in terms of leaves.

    Args:
        base: columns of what is scanned.
        verbs: the row-keeping verbs over it, first to last.
    """
    work = _Rewriting(base)
    for verb in verbs:
        work.apply(verb)
    return Rewritten(tuple(work.pushed), tuple(work.steps), work.env)


@final
class _Rewriting:
    def __init__(self, base: pa.Schema) -> None:
        self.env: dict[str, Expr] = {name: Col(name) for name in base.names}
        self.pushed: list[Expr] = []
        self.steps: list[Step] = []
        self._joins: list[int] = []  # the step of the k-th join
        self._may_move = True

    def apply(self, verb: nodes.Node) -> None:
        if isinstance(verb, nodes.Filter):
            for part in conjuncts(substitute(bind(verb.predicate, verb.source.schema()), self.env)):
                self._filter(part)
        elif isinstance(verb, nodes.Project):
            self.env = {name: self.env[name] for name in verb.names}
        elif isinstance(verb, nodes.WithColumns):
            have = verb.source.schema()
            bound = [bind(e.source if isinstance(e, Alias) else e, have) for e in verb.exprs]
            self.env = {**self.env, **{n: substitute(e, self.env) for n, e in zip(verb.names, bound, strict=True)}}
        elif isinstance(verb, combining.Join):
            k = len(self._joins)
            self._joins.append(len(self.steps))
            self.steps.append(Match(verb, verb.right, (), tuple(self.env[name] for name in verb.left_on)))
            self.env = {**self.env, **{ours: Col(right_leaf(k, theirs)) for ours, theirs in verb.taken().items()}}
        elif isinstance(verb, nodes.Distinct | nodes.Sort):
            keys = tuple(self.env[name] for name in verb.names)
            self._choose(First(verb, keys) if isinstance(verb, nodes.Distinct) else Arrange(verb, keys))
        elif isinstance(verb, nodes.Limit):
            self._choose(Head(verb.count))
        else:
            assert isinstance(verb, nodes.Cache), verb

    def _choose(self, step: Step) -> None:
        self.steps.append(step)
        self._may_move = False

    def _filter(self, part: Expr) -> None:
        """Put a condition where it runs earliest."""
        sides = {leaf_of(leaf)[0] for leaf in part.columns()}
        if self._may_move and sides == {None}:
            self.pushed.append(part)
            return
        k = next(iter(sides)) if self._may_move and len(sides) == 1 else None
        step = None if k is None else self.steps[self._joins[k]]
        if k is not None and isinstance(step, Match) and step.verb.how == "inner":
            # not into a left join: a filter sees the nulls of rows without a match
            moved = substitute(part, {leaf: Col(leaf_of(leaf)[1]) for leaf in part.columns()})
            right = nodes.Filter(step.right, moved)
            self.steps[self._joins[k]] = replace(step, right=right, moved=(*step.moved, str(moved)))
        else:
            self.steps.append(Keep(part, f"filter {_readable(part)}"))


def _readable(predicate: Expr) -> str:
    """The predicate with leaves by their column names."""
    return str(substitute(predicate, {leaf: Col(leaf_of(leaf)[1]) for leaf in predicate.columns()}))
