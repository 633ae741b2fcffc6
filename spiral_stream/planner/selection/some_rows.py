"""Rows of a relational plan in their order: how many there are, a few of them, or all in batches.

Nothing is kept on disk. Filters, computed columns, joins and limits are decided for each batch of the scan, and columns are
fetched by address for the rows that are left, so memory holds a batch, and the keys of joined relations. `distinct` and
`sort` look at all rows: their keys, and 8 bytes per row that they leave, are in memory. What an aggregate or SQL text makes
is a table in memory.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.catalog.relation.reader import OpenRelation
from spiral_stream.plan import combining, nodes
from spiral_stream.plan.tree import replaced, walk
from spiral_stream.planner.selection.fetched_columns import in_memory
from spiral_stream.planner.selection.rewrites import Arrange, First, Head, rewrite
from spiral_stream.planner.selection.whole import Base, Chosen, ChosenRows, Open, bottom_of, collect, in_order
from spiral_stream.relational import engine
from spiral_stream.sources.source import SCAN_ROWS

UInt64 = NDArray[np.uint64]
_SAME: Final = nodes.Project | nodes.WithColumns | nodes.Sort | nodes.Cache  # as many rows as before


def known_count(node: nodes.Node, total_of: Callable[[str], int]) -> int | None:
    """Return the number of rows where it is known without a scan, else None.

    Args:
        node: a relational plan.
        total_of: gives the rows of a relation by its name.
    """
    if isinstance(node, nodes.Scan):
        return total_of(node.relation)
    if isinstance(node, combining.Union):
        counts = [known_count(part, total_of) for part in node.parts]
        known = [each for each in counts if each is not None]
        return sum(known) if len(known) == len(counts) else None
    if isinstance(node, combining.Aggregate):
        return None if node.keys else 1
    if isinstance(node, _SAME) or (isinstance(node, combining.Join) and node.how == "left"):
        return known_count(node.source, total_of)
    if isinstance(node, nodes.Limit):
        below = known_count(node.source, total_of)
        return None if below is None else min(node.count, below)
    return None


def count(node: nodes.Node, open_relation: Open) -> int:
    """Return the number of rows; reads the columns that decide, and no others."""
    found = known_count(node, lambda name: _total(open_relation(name)))
    return sum(map(_rows, _chunks(node, open_relation))) if found is None else found


def batches(
    node: nodes.Node, open_relation: Open, rows: int, names: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield all rows, ``rows`` at a time; the last batch may be shorter.

    Args:
        node: a relational plan.
        open_relation: gives an open relation by name, the same one for the same name.
        rows: of a batch.
        names: columns to read; None reads all.

    Raises:
        PlanError: a join finds several right rows for one left row.
        SourceError: storage failed.
    """
    schema = node.schema() if names is None else pa.schema([node.schema().field(name) for name in names])
    held: list[pa.Table] = []
    lacking = rows
    with closing(_chunks(node, open_relation)) as pieces:
        for piece in pieces:
            columns, at, total = piece.columns(), 0, _rows(piece)
            while at < total:
                end = min(total, at + lacking)
                held.append(columns.fetch(np.arange(at, end, dtype=np.uint64), schema.names).cast(schema))
                at, lacking = end, lacking - (end - at)
                if not lacking:
                    yield from pa.concat_tables(held).combine_chunks().to_batches()
                    held, lacking = [], rows
    if held:
        yield from pa.concat_tables(held).combine_chunks().to_batches()


def rows_at(node: nodes.Node, open_relation: Open, numbers: UInt64) -> pa.Table:
    """Return the rows at some places in the order of the plan.

    Args:
        node: a relational plan.
        open_relation: gives an open relation by name, the same one for the same name.
        numbers: shape [P], uint64, ascending, each below the number of rows.
    """
    schema = node.schema()
    found, begin = [schema.empty_table()], 0
    with closing(_chunks(node, open_relation)) as pieces:
        for piece in pieces:
            here = numbers[(numbers >= begin) & (numbers < (end := begin + _rows(piece)))]
            if len(here):
                found.append(piece.columns().fetch(here - np.uint64(begin), schema.names).cast(schema))
            begin = end
            if not len(numbers) or begin > int(numbers[-1]):
                break
    return pa.concat_tables(found).combine_chunks()


def _chunks(node: nodes.Node, open_relation: Open, above: Sequence[list[int]] | None = None) -> Generator[Chosen]:
    """The rows of a plan in pieces, in their order.

    Args:
        node: the plan.
        open_relation: gives an open relation by name.
        above: how many rows each of its last limits lets pass yet, where those are of a union that it is a side of.
    """
    bottom, verbs = bottom_of(node)
    work = rewrite(bottom.schema(), verbs)
    heads = [step.count for step in work.steps if isinstance(step, Head)]
    left = (
        [[each] for each in heads]
        if above is None
        else [*([each] for each in heads[: len(heads) - len(above)]), *above]
    )
    looks_at_all = any(isinstance(step, First | Arrange) for step in work.steps)
    if isinstance(bottom, combining.Union) and not looks_at_all and not (left and _choosy(bottom)):
        for part in bottom.parts:
            if not all(rest for (rest,) in left):
                return
            yield from _chunks(replaced(node, bottom, part), open_relation, left)
        return
    base = open_relation(bottom.relation) if isinstance(bottom, nodes.Scan) else in_memory(_made(bottom, open_relation))
    rows = ChosenRows(base, work, node.schema(), open_relation)
    if looks_at_all or not (work.pushed or work.steps):
        rows.run()
        yield rows.chosen(ascending=False)
    elif all(rest for (rest,) in left):
        with closing(in_order(base, work.read(), work.condition)) as tables:
            yield from rows.pieces(tables, left)


def _made(bottom: nodes.Node, open_relation: Open) -> pa.Table:
    """The rows that an aggregate, SQL text or a union makes."""
    if not isinstance(bottom, combining.Aggregate):
        return collect(bottom, open_relation)
    read = list(dict.fromkeys([*bottom.keys, *(column for column, _, _ in bottom.measures)]))
    have = bottom.source.schema()
    reader = pa.RecordBatchReader.from_batches(
        pa.schema([have.field(name) for name in read]), batches(bottom.source, open_relation, SCAN_ROWS, read)
    )
    return engine.aggregate(reader, bottom.keys, bottom.measures).cast(bottom.schema())


def _choosy(union: combining.Union) -> bool:
    """Whether a side looks at all of its rows, so that a limit over the union cannot be counted down batch by batch."""
    return any(isinstance(each, nodes.Distinct | nodes.Sort) for part in union.parts for each in walk(part))


def _total(base: Base) -> int:
    return base.manifest.total if isinstance(base, OpenRelation) else sum(each.num_rows for each in base.scan([]))


def _rows(piece: Chosen) -> int:
    return _total(piece.base) if piece.ordinals is None else len(piece.ordinals)
