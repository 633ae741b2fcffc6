"""Split a predicate: the part that an engine computes exactly, and the part that is left for us.

A dialect lowers a bound expression, or raises `Inexpressible` where its engine would give another answer (or none).
`split` cuts a predicate at its top-level ANDs: conjuncts that lower are pushed, the others are evaluated afterwards by
`spiral_stream.dialects.numpy`, so the rows that pass are the same everywhere. Which conditions reach a scan is decided
in `planner.selection.rewrites`. `sources.lance.source` keeps conditions on blobs back; `sources.columnar.parquet` skips
row groups only.
"""

from collections.abc import Callable
from functools import reduce

import pyarrow as pa

from spiral_stream.expr import Call, Expr, bind_predicate


class Inexpressible(Exception):  # noqa: N818  a signal between rooms, never shown to a user
    """The engine cannot compute this expression with our semantics."""


def split(
    predicate: Expr | None, schema: pa.Schema, lower: Callable[[Expr, pa.Schema], object]
) -> tuple[Expr | None, Expr | None]:
    """Cut a predicate into what ``lower`` can express and the rest.

    Args:
        predicate: a condition on ``schema``; None keeps every row.
        schema: the columns of the rows that it filters.
        lower: `to_arrow`, `to_parquet` or `to_lance`.

    Returns:
        (pushed, residual): bound predicates, joined by AND, None where there is nothing.

    Raises:
        PlanError: the predicate does not fit the schema.
    """
    if predicate is None:
        return None, None
    pushed: list[Expr] = []
    residual: list[Expr] = []
    for part in conjuncts(bind_predicate(predicate, schema)):
        try:
            lower(part, schema)
        except Inexpressible:
            residual.append(part)
        else:
            pushed.append(part)
    return all_of(pushed), all_of(residual)


def conjuncts(predicate: Expr) -> list[Expr]:
    """Return the conditions that a predicate joins by AND at its top; all are true exactly where it is.

    A condition without columns stays with its neighbour: it belongs to no relation, so it cannot be moved to one.
    """
    if isinstance(predicate, Call) and predicate.op == "and" and all(arg.columns() for arg in predicate.args):
        return [part for arg in predicate.args for part in conjuncts(arg)]
    return [predicate]


def all_of(parts: list[Expr]) -> Expr | None:
    """Join conditions by AND; None if there are none."""
    return reduce(lambda a, b: a & b, parts) if parts else None
