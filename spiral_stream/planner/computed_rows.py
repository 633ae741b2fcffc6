"""The rows that `aggregate` and SQL text make, as a table in the order in which they are kept.

An aggregate reads the columns that it looks at and no others, some rows at a time; the engine spills what does not fit its
memory limit. SQL text is given whole relations, inside the memory limit of its process.
"""

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from spiral_stream.errors import PlanError
from spiral_stream.plan import nodes
from spiral_stream.plan.combining import Aggregate
from spiral_stream.planner.selection.find import Workplace
from spiral_stream.planner.selection.whole import Base, collect
from spiral_stream.planner.side import Side
from spiral_stream.relational import engine
from spiral_stream.sources.arrow.views import without_dictionaries


def aggregated(maker: Aggregate, node: nodes.Node, place: Workplace) -> pa.Table:
    """Return the groups of an aggregate, sorted by their keys.

    Args:
        maker: the aggregate.
        node: what it groups, over a relation that ``place`` knows.
        place: where relations are opened and derived files lie.

    Raises:
        PlanError: the engine cannot measure a column, or a limit is passed.
    """
    read = list(dict.fromkeys([*maker.keys, *(column for column, _, _ in maker.measures)]))
    have = node.schema()
    schema = pa.schema([have.field(name) for name in read])
    side = Side(node, place)

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in side.in_order(read):
            yield pa.record_batch(batch.columns[:-1], schema=schema)

    reader = pa.RecordBatchReader.from_batches(schema, batches())
    return engine.aggregate(reader, maker.keys, maker.measures).cast(maker.schema())


def queried(maker: nodes.Sql, identity: Sequence[str], open_relation: Callable[[str], Base]) -> pa.Table:
    """Return the rows of SQL text in the order of their identity, since the text itself promises none.

    Args:
        maker: the text.
        identity: columns that tell its rows apart; without any, all columns that have an order decide.
        open_relation: gives its relations by name.

    Raises:
        PlanError: the engine refuses the text, a limit is passed, or a column is an interval, which cannot be kept.
    """
    for field in maker.schema():
        if "interval" in str(field.type):
            msg = (
                f"sample: column {field.name!r} of the SQL text is {field.type}, which no table of rows keeps. Write it as "
                f"seconds, epoch({field.name}), or as text, CAST({field.name} AS VARCHAR)"
            )
            raise PlanError(msg)
    rows = collect(maker, open_relation)
    ordered = [field.name for field in rows.schema if not pa.types.is_nested(field.type)]
    if keys := [(name, "ascending") for name in identity or ordered]:
        rows = rows.take(pc.sort_indices(without_dictionaries(rows.select([name for name, _ in keys])), keys))
    return rows.combine_chunks()
