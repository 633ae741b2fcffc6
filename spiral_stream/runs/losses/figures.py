"""Figures of a run as tables, each with the query that makes it: `catalog.sql` on the query gives the same table.

The queries run here in bounded memory, over the columns that they name.
"""

from dataclasses import dataclass
from typing import Final, final

import pyarrow as pa

from spiral_stream.errors import RunError
from spiral_stream.runs.losses.table_query import RunRows

PARTS: Final = 10  # of a run, along its steps


@final
@dataclass(frozen=True, slots=True, eq=False)
class RunFigure:
    """A table of a run.

    Attributes:
        title: of the table.
        table: the answer.
        query: for `Catalog.sql`.

    Examples:
        >>> figure = spiral.results.RunFigure("One", pa.table({"one": [1]}), "SELECT 1 AS one")
        >>> catalog.sql(figure.query).to_arrow().to_pylist() == figure.table.to_pylist()
        True
    """

    title: str
    table: pa.Table
    query: str


def find_figures(rows: RunRows) -> tuple[RunFigure, ...]:
    """Return the figures of a run: what was recorded, by stream, by epoch, and along its steps.

    Args:
        rows: of its table.

    Raises:
        RunError: the table has no rows.
    """
    values = _distinguished(rows.values)
    measured = "".join(
        f', avg({name}) FILTER (isfinite({name})) AS {name}, count(*) FILTER (NOT isfinite({name})) AS "{each} not finite"'
        for each, name in ((each, f'"{each}"') for each in values)
    )
    of = f'FROM "{rows.table}"'
    recorded = _figure(
        rows,
        "What was recorded",
        "SELECT count(*) AS records, count(DISTINCT step) AS steps, min(step) AS first_step, max(step) AS last_step, "
        "count(DISTINCT epoch) AS epochs, count(DISTINCT attempt) AS attempts, "
        f"count(DISTINCT step) FILTER (NOT applied) AS steps_not_applied {of}",
        ("step", "epoch", "attempt", "applied"),
    )
    (found,) = recorded.table.to_pylist()
    if not found["records"]:
        msg = f"run {rows.name!r} has no records. Train some steps, and call run.log(batch=batch, loss=...)"
        raise RunError(msg)
    begin, length = found["first_step"], found["last_step"] - found["first_step"] + 1
    return (
        recorded,
        _figure(
            rows,
            "By stream",
            f"SELECT stream, count(*) AS records, count(DISTINCT row) AS rows, count(*) / count(DISTINCT row) AS passes"
            f"{measured} {of} GROUP BY stream ORDER BY records DESC, stream",
            ("stream", "row", *values),
        ),
        _figure(
            rows,
            "By epoch",
            f"SELECT epoch, min(step) AS first_step, max(step) AS last_step, count(*) AS records{measured} {of} "
            "GROUP BY epoch ORDER BY epoch",
            ("epoch", "step", *values),
        ),
        _figure(
            rows,
            f"Along its steps, in {min(PARTS, length)} parts",
            f"SELECT min(step) AS first_step, max(step) AS last_step, count(*) AS records{measured} {of} "
            f"GROUP BY (step - {begin}) * {min(PARTS, length)} // {length} ORDER BY first_step",
            ("step", *values),
        ),
    )


def _figure(rows: RunRows, title: str, query: str, columns: tuple[str, ...]) -> RunFigure:
    reader = rows.reader({name: name for name in columns})
    return RunFigure(title, rows.answer_named(query, rows.table, reader), query)


def _distinguished(values: tuple[str, ...]) -> tuple[str, ...]:
    """The values whose names differ in more than case, as far as the engine takes ``A`` and ``a`` for one column."""
    first: dict[str, str] = {}
    for each in values:
        first.setdefault(each.lower(), each)
    return tuple(first.values())
