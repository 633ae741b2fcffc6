"""Filter record batches in memory by a predicate, for storage that cannot do so itself."""

from collections.abc import Sequence

import pyarrow as pa

from spiral_stream.expr import Expr


def needed(columns: Sequence[str], predicate: Expr | None) -> list[str]:
    """Return the columns to read: those asked for, then those only the predicate names, sorted.

    Examples:
        >>> from spiral_stream.sources import needed
        >>> sorted(needed(["text"], col("doc_id") < 3))
        ['doc_id', 'text']
    """
    extra = set() if predicate is None else predicate.columns() - set(columns)
    return [*columns, *sorted(extra)]


def passing(rows: pa.Table | pa.RecordBatch, predicate: Expr | None, columns: Sequence[str]) -> pa.Table:
    """Return the rows for which ``predicate`` is true, in their order, cut to ``columns``.

    Args:
        rows: has the columns of `needed` (and any others).
        predicate: None keeps all.
        columns: what to return, in this order.

    Raises:
        PlanError: the predicate does not fit the rows' types.

    Examples:
        >>> from spiral_stream.sources import passing
        >>> passing(text_rows, col("doc_id") < 3, ["text"]).num_rows
        3
    """
    import pyarrow.dataset as pads

    from spiral_stream.dialects import numpy as reference
    from spiral_stream.dialects.arrow import to_arrow
    from spiral_stream.dialects.offsets import unsliced_table
    from spiral_stream.dialects.pushdown import split

    table = rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows])
    if predicate is None:
        return table.select(list(columns))
    table = unsliced_table(table)
    lowered, residual = split(predicate, table.schema, to_arrow)
    if lowered is not None:
        table = pads.dataset(table).scanner(filter=to_arrow(lowered, table.schema)).to_table()
    if residual is not None:
        passes = reference.passes(residual, {name: table.column(name) for name in residual.columns()})
        table = table.filter(pa.array(passes))
    return table.select(list(columns))


def split_without(predicate: Expr | None, schema: pa.Schema, hidden: frozenset[str]) -> tuple[Expr | None, Expr | None]:
    """Cut a predicate into what names none of the ``hidden`` columns, and the rest."""
    from spiral_stream.dialects.pushdown import Inexpressible, split

    def lower(part: Expr, _: pa.Schema) -> None:
        if part.columns() & hidden:
            raise Inexpressible

    return split(predicate, schema, lower)
