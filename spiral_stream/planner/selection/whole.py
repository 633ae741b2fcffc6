"""Run the relational steps of a plan over all rows at once: the selected rows, and their matches in joined relations.

`rewrites` says which conditions the scans apply and what is left to do; this room
scans the few base columns that the rest looks at, and does it: joins, distinct, sort
and limit. The result is row addresses (and, for joins whose columns are used later,
the other side's row addresses): no payload is read.
"""

import re
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spiral_stream.catalog.relation.reader import OpenRelation
from spiral_stream.errors import warn
from spiral_stream.expr import Col, Expr
from spiral_stream.plan import combining, nodes
from spiral_stream.plan.tree import spine
from spiral_stream.planner.selection.fetched_columns import (
    Columns,
    Fetchable,
    FetchedColumns,
    Right,
    UInt64,
    in_memory,
    leaf_of,
    right_leaf,
    substitute,
)
from spiral_stream.planner.selection.rewrites import Arrange, First, Head, Keep, Match, Rewritten, Step, rewrite
from spiral_stream.planner.selection.row_frame import Frame
from spiral_stream.relational import engine
from spiral_stream.relational.sql import run_sql
from spiral_stream.sources.arrow.table import MemoryReader, no_rows, without_dictionaries
from spiral_stream.sources.source import ROW

Int64 = NDArray[np.int64]
_ASKS: Final = re.compile(r"\bisnan\b", re.IGNORECASE)
_NAMED: Final = 5  # columns that a message names


class Base(Fetchable, Protocol):
    """A relation that can be scanned with a predicate and fetched by ordinal."""

    def scan(self, columns: Sequence[str], predicate: Expr | None = None) -> Any:
        """Record batches with ``ROW`` last."""
        ...


Open = Callable[[str], Base]


@final
@dataclass
class Chosen:
    """The outcome: rows of the base relation, ascending unless asked otherwise, and how many each verb left."""

    base: Base
    env: Mapping[str, Expr]
    schema: pa.Schema
    ordinals: UInt64 | None = None  # [N]; None: every row of the base survives
    rights: list[tuple[Fetchable, Int64]] = field(default_factory=list)
    counts: list[tuple[str, int]] = field(default_factory=list)  # (what, rows left)
    pushed: Expr | None = None

    def columns(self) -> Columns:
        """Return a reader of the chosen rows, all in memory."""
        chosen = self.ordinals
        rights = [Right(rows, index.__getitem__) for rows, index in self.rights]
        return Columns(
            FetchedColumns(self.base),
            (lambda rows: rows) if chosen is None else chosen.__getitem__,
            rights,
            self.env,
            self.schema,
        )

    def total(self) -> int:
        """The number of rows that were chosen."""
        return sum(b.num_rows for b in self.base.scan([])) if self.ordinals is None else len(self.ordinals)


def choose(node: nodes.Node, open_relation: Open) -> Chosen:
    """Run the relational part of a plan.

    Args:
        node: the last relational node.
        open_relation: gives an open relation by name.

    Raises:
        PlanError: a join finds several right rows for one left row, with examples.
        SourceError: storage failed.
    """
    rows = _over(node, open_relation)
    rows.run()
    return rows.chosen(ascending=True)


def sorted_ordinals(node: nodes.Node, open_relation: Open) -> UInt64:
    """Return the rows of the base relation that survive, in the order of the last sort: shape [N], uint64.

    Args:
        node: the last relational node; it has a sort.
        open_relation: gives an open relation by name.

    Raises:
        PlanError: a join finds several right rows for one left row, with examples.
        SourceError: storage failed.
    """
    rows = _over(node, open_relation)
    rows.run()
    found = rows.chosen(ascending=False).ordinals
    assert found is not None
    return found


def collect(node: nodes.Node, open_relation: Open) -> pa.Table:
    """Return all rows of a relational plan as one table, in the order of its last sort: ``relation.to_arrow()``."""
    if isinstance(node, combining.Aggregate):
        read = dict.fromkeys([*node.keys, *(column for column, _, _ in node.measures)])
        found = engine.aggregate(
            collect(nodes.Project(node.source, tuple(read)), open_relation), node.keys, node.measures
        )
    elif isinstance(node, combining.Union):
        found = pa.concat_tables([collect(part, open_relation).cast(node.schema()) for part in node.parts])
    elif isinstance(node, nodes.Sql):
        tables = {name: _SqlRows(open_relation(name), _compared(node, name)) for name in node.relations}
        found = run_sql(node.text, tables)
        _warn_of_nan(tables)
    else:
        rows = _over(node, open_relation)
        rows.run()
        chosen = rows.chosen(ascending=False)
        found = chosen.columns().fetch(np.arange(chosen.total(), dtype=np.uint64), node.schema().names)
    return found.cast(node.schema())


@final
class _SqlRows:
    """The rows of a relation as SQL text reads them; it sees which columns hold NaN, where the text compares them by order."""

    def __init__(self, base: Base, compared: Collection[str]) -> None:
        self._base, self._compared, self.schema = base, compared, base.schema
        self.with_nan = set[str]()

    def scan(self, columns: Sequence[str], condition: Expr | None) -> Iterator[pa.RecordBatch]:
        for table in in_order(self._base, columns, condition):
            held = [name for name in columns if name in self._compared and name not in self.with_nan]
            self.with_nan |= {name for name in held if pc.any(pc.is_nan(table.column(name))).as_py()}
            yield from table.drop_columns([ROW]).to_batches()


def _compared(node: nodes.Sql, relation: str) -> frozenset[str]:
    """The columns of a relation that may hold NaN and that a text compares by order: there NaN is the largest number."""
    read = [] if _ASKS.search(node.text) else [name.rpartition(f"{relation}.") for name in node.floats]
    return frozenset(name for before, dot, name in read if dot and not before and _is_compared(name, node.text))


def _warn_of_nan(tables: Mapping[str, "_SqlRows"]) -> None:
    """Say which columns hold NaN, if the text compares them by order: with ``col`` NaN is no number."""
    held = [
        f"{name}.{column}"
        for name, table in tables.items()
        for column in table.schema.names
        if column in table.with_nan
    ]
    if held:
        warn(
            f"sql: {', '.join(held[:_NAMED])} holds NaN, which is the largest number in SQL text, so that x >= 0.5 keeps it and "
            "col(x) >= 0.5 does not. Leave it out with AND NOT isnan(x), or filter after sql(...)"
        )


def _is_compared(column: str, text: str) -> bool:
    """Whether a text compares a column by order, as far as its words say: the column stands beside the sign."""
    name = re.escape(column)
    after, before = rf'(?<!\w){name}"?\s*(?:[<>]|between\b)', rf'[<>]=?\s*(?:"?\w+"?\.)*"?{name}(?!\w)'
    return re.search(f"{after}|{before}", text, re.IGNORECASE) is not None


def in_order(base: Base, names: Sequence[str], condition: Expr | None) -> Generator[pa.Table]:
    """Yield the rows that pass, with `ROW` last, in the relation's order: a shard at a time where they are stored in another."""
    schema = pa.schema([*((name, base.schema.field(name).type) for name in names), (ROW, pa.uint64())])
    starts = base.manifest.run_physical if isinstance(base, OpenRelation) else np.empty(0, np.uint64)
    if bool((starts[1:] > starts[:-1]).all()):
        with closing(base.scan(names, condition)) as found:
            for batch in found:
                yield pa.table(batch.columns, schema=schema)
        return
    assert isinstance(base, OpenRelation)
    for shard in range(len(base.manifest.shard_names)):
        batches = [pa.table(batch.columns, schema=schema) for batch in base.scan(names, condition, [shard])]
        if batches:
            yield pa.concat_tables(batches).sort_by(ROW)


def _scanned(base: Base, names: Sequence[str], predicate: Expr | None) -> pa.Table:
    """The rows that pass, in relation order, with `ROW` last."""
    schema = pa.schema([*((name, base.schema.field(name).type) for name in names), (ROW, pa.uint64())])
    batches = [pa.table(batch.columns, schema=schema) for batch in base.scan(names, predicate)]
    table = pa.concat_tables([no_rows(schema), *batches])
    rows = table.column(ROW).to_numpy()
    return table if bool((rows[1:] > rows[:-1]).all()) else table.sort_by(ROW)


def _over(node: nodes.Node, open_relation: Open) -> "ChosenRows":
    """The rows of a plan's last verbs: those over a relation, or over the last verb that makes new rows."""
    bottom, verbs = bottom_of(node)
    base = (
        open_relation(bottom.relation) if isinstance(bottom, nodes.Scan) else in_memory(collect(bottom, open_relation))
    )
    return ChosenRows(base, rewrite(bottom.schema(), verbs), node.schema(), open_relation)


def bottom_of(node: nodes.Node) -> tuple[nodes.Node, list[nodes.Node]]:
    """Return the relation, or the last verb that makes new rows, and the verbs over it, first to last."""
    verbs = spine(node)[::-1]
    makers = nodes.Scan | combining.Aggregate | combining.Union | nodes.Sql
    start = max(i for i, verb in enumerate(verbs) if isinstance(verb, makers))
    return verbs[start], verbs[start + 1 :]


@final
class ChosenRows:
    """Rows so far: ordinals of the base, the columns that steps look at, and the matching row of each joined relation."""

    def __init__(self, base: Base, work: Rewritten, schema: pa.Schema, open_relation: Open) -> None:
        self._base, self._work, self._schema, self._open = base, work, schema, open_relation
        self._counts: list[tuple[str, int]] = []
        self._pushed = work.condition
        self._frame: Frame | None = None  # None: nothing was scanned, all rows are in
        self._arranged = False
        self._sides: dict[int, tuple[Chosen, pa.Table]] = {}  # joined relations by the place of their step

    def run(self, also: Sequence[str] = ()) -> pa.Table:
        """Scan and take every step.

        Args:
            also: columns of the plan whose values are wanted now.

        Returns:
            those columns, for the rows that are left.
        """
        if self._pushed is not None or self._work.steps or also:
            self._frame = Frame(_scanned(self._base, self._work.read(also), self._pushed))
        if self._pushed is not None:
            self._count(f"filter {self._pushed} (in the scan)")
        for at, step in enumerate(self._work.steps):
            self._take(at, step)
        kinds = [self._schema.field(name).type for name in also]
        exprs = [self._work.env[name] for name in also]
        return self._rows.values(exprs, kinds).rename_columns(list(also)) if also else pa.table({})

    def pieces(self, tables: Iterable[pa.Table], left: Sequence[list[int]]) -> Iterator[Chosen]:
        """Yield the outcome of each scanned table, in their order, so that no more rows are held; no step looks at all rows.

        Args:
            tables: scanned rows that passed the pushed conditions, with `ROW`.
            left: for each `Head` among the steps, a list of how many rows it lets pass yet, which is counted down.
        """
        heads = [at for at, step in enumerate(self._work.steps) if isinstance(step, Head)]
        for table in tables:
            self._frame, self._counts = Frame(table), []
            for at, step in enumerate(self._work.steps):
                if isinstance(step, Head):
                    rest = left[heads.index(at)]
                    self._rows.take(np.arange(min(rest[0], len(self._rows.table))))
                    rest[0] -= len(self._rows.table)
                else:
                    self._take(at, step)
            yield self.chosen(ascending=False)
            if not all(rest for (rest,) in left):
                return

    def _take(self, at: int, step: Step) -> None:
        if isinstance(step, Keep):
            self._rows.keep(step.predicate)
            self._count(step.text)
        elif isinstance(step, Match):
            self._match(at, step)
        elif isinstance(step, First):
            self._rows.take(_first_rows(self._rows.values(step.keys, types_of(step.verb, step.verb.names))))
            self._count(f"distinct {', '.join(step.verb.names)}")
        elif isinstance(step, Arrange):
            table = without_dictionaries(self._rows.values(step.keys, types_of(step.verb, step.verb.names)))
            direction = "descending" if step.verb.descending else "ascending"
            self._rows.take(pc.sort_indices(table, [(name, direction) for name in table.column_names]).to_numpy())
            self._arranged = True
        else:
            assert isinstance(step, Head)
            self._rows.take(np.arange(min(step.count, len(self._rows.table))))
            self._count(f"limit {step.count}")

    def chosen(self, *, ascending: bool) -> Chosen:
        """Return the outcome, with only the joined relations that columns come from."""
        if ascending and self._arranged:
            self._rows.take(np.argsort(self._rows.rows, kind="stable"))
        env, used = leaves_of(self._work.env, self._schema)
        rights = [(only(self._rows.rights[k][0], names), self._rows.rights[k][1]) for k, names in used.items()]
        return Chosen(
            base=self._base,
            env=env,
            schema=self._schema,
            ordinals=None if self._frame is None or self._left_alone() else self._rows.rows,
            rights=rights,
            counts=self._counts,
            pushed=self._pushed,
        )

    def _left_alone(self) -> bool:
        """Whether the scan was for values only, and left every row in its place."""
        return self._pushed is None and not self._work.steps

    @property
    def _rows(self) -> Frame:
        assert self._frame is not None
        return self._frame

    def _count(self, what: str) -> None:
        self._counts.append((what, len(self._rows.table)))

    def _match(self, at: int, step: Match) -> None:
        if at not in self._sides:
            self._sides[at] = settled(step, self._open, step.verb.right_on)
        right, keys = self._sides[at]
        index, missed = self._rows.match(left_keys(self._rows, step), keys, step.verb.how)
        self._count(step.text(len(missed)))
        self._rows.rights.append(joined_rows(right, index))


def left_keys(rows: Frame, step: Match) -> pa.Table:
    """Return the keys by which rows look up a joined relation."""
    names = step.verb.left_on
    return rows.values(step.keys, types_of(step.verb.source, names)).rename_columns(list(names))


def settled(step: Match, open_relation: Open, names: Sequence[str]) -> tuple[Chosen, pa.Table]:
    """Return the right side of a join, and columns of it, in the order of its rows."""
    right = _over(step.right, open_relation)
    table = right.run(also=names)
    return right.chosen(ascending=False), table


def leaves_of(env: Mapping[str, Expr], schema: pa.Schema) -> tuple[dict[str, Expr], dict[int, list[str]]]:
    """Return the columns of a plan over the joined relations that they come from, and which of those columns are used.

    Args:
        env: the columns over the leaves of all joins.
        schema: the columns that the plan leaves.

    Returns:
        the columns over leaves whose joins are numbered anew, without those that no column comes from; and
        the old number of each join that is left, and its columns.
    """
    leaves = {leaf for name in schema.names for leaf in env[name].columns()}
    used: dict[int, list[str]] = {}
    for k, name in sorted((k, name) for k, name in map(leaf_of, leaves) if k is not None):
        used.setdefault(k, []).append(name)
    renamed = {k: i for i, k in enumerate(used)}
    by_leaf: dict[str, Expr] = {}
    for leaf in leaves:
        of, name = leaf_of(leaf)
        by_leaf[leaf] = Col(leaf) if of is None else Col(right_leaf(renamed[of], name))
    return {name: substitute(env[name], by_leaf) for name in schema.names}, used


def joined_rows(right: Chosen, index: Int64) -> tuple[Fetchable, Int64]:
    """Return a joined relation and its rows: the open relation itself if all columns are its own."""
    same_names = all(isinstance(e, Col) and e.name == name for name, e in right.env.items())
    if right.rights or not same_names or isinstance(right.base, MemoryReader):
        return ComputedRelation(right), index
    if right.ordinals is None:
        return right.base, index
    return right.base, np.append(right.ordinals.astype(np.int64), -1)[index]


def types_of(node: nodes.Node, names: Sequence[str]) -> list[pa.DataType]:
    """Return the types of a node's columns."""
    schema = node.schema()
    return [schema.field(name).type for name in names]


def _first_rows(keys: pa.Table) -> Int64:
    """Find the first place of each distinct row of keys, ascending; NaN equals NaN here, and -0.0 is 0.0."""
    keys = without_dictionaries(keys)
    columns = [pc.add(c, pa.scalar(0.0, c.type)) if pa.types.is_floating(c.type) else c for c in keys.columns]
    numbered = pa.table([*columns, np.arange(len(keys))], names=[*keys.column_names, "at"])
    found: Int64 = (
        numbered.group_by(keys.column_names, use_threads=False).aggregate([("at", "min")])["at_min"].to_numpy()
    )
    return np.sort(found)


@final
class ComputedRelation:
    """A joined relation that itself joins or computes: its surviving rows, by their place."""

    def __init__(self, chosen: Chosen, names: Sequence[str] | None = None) -> None:
        self._chosen = chosen
        self._columns = chosen.columns()
        self.schema = chosen.schema if names is None else pa.schema([chosen.schema.field(name) for name in names])

    @property
    def total(self) -> int:
        """The number of rows."""
        return self._chosen.total()

    def only(self, names: Sequence[str]) -> "ComputedRelation":
        """Return the same rows with these columns, so that no others are kept."""
        return ComputedRelation(self._chosen, names)

    def fetch(self, ordinals: UInt64, columns: Sequence[str]) -> pa.Table:
        return self._columns.fetch(ordinals, columns)


def only(relation: Fetchable, names: Sequence[str]) -> Fetchable:
    """Return a joined relation with the columns that are used."""
    return relation.only(names) if isinstance(relation, ComputedRelation) else relation
