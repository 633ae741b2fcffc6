"""Which rows of the base relation survive a plan's relational part, and what stands beside them.

The spine is walked from the relation upwards. Predicates over base columns go to
the source's scanner; joins, distinct, sort and limit work on the few columns they
name. The result is row addresses (and, for joins whose columns are used later, the
other side's row addresses): no payload is read.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spiral_stream.expr import Alias, Col, Expr, bind
from spiral_stream.plan import nodes
from spiral_stream.plan.tree import spine
from spiral_stream.planner.columns import Columns, Right, Rowed, UInt64, in_memory, right_leaf, substitute
from spiral_stream.relational import engine
from spiral_stream.relational.join import join_n_to_1
from spiral_stream.sources.memory import MemoryReader
from spiral_stream.sources.source import ROW

EXAMPLES: Final = 5


class Base(Rowed, Protocol):
    """A relation that can be scanned with a predicate and fetched by ordinal."""

    def scan(self, columns: Sequence[str], predicate: Expr | None = None) -> Any:
        """Record batches with ``ROW`` last."""
        ...


Open = Callable[[str], Base]


@final
@dataclass
class Chosen:
    """The outcome: rows of the base relation in ascending order, and how many each verb left."""

    base: Base
    env: dict[str, Expr]
    schema: pa.Schema
    ordinals: UInt64 | None = None  # [N]; None: every row of the base survives
    rights: list[tuple[Rowed, NDArray[np.int64]]] = field(default_factory=list)
    counts: list[tuple[str, int]] = field(default_factory=list)  # (what, rows left)
    pushed: Expr | None = None

    def columns(self) -> Columns:
        """A reader of the chosen rows, all in memory."""
        chosen = self.ordinals
        rights = [Right(rows, index.__getitem__) for rows, index in self.rights]
        return Columns(
            self.base, (lambda rows: rows) if chosen is None else chosen.__getitem__, rights, self.env, self.schema
        )


def choose(node: nodes.Node, open_relation: Open) -> Chosen:
    """Run the relational part of a plan.

    Args:
        node: the last relational node.
        open_relation: gives an open relation by name.

    Raises:
        PlanError: a join finds several right rows for one left row, with examples.
        SourceError: storage failed.
    """
    return _Selecting(open_relation).run(node)


def collect(node: nodes.Node, open_relation: Open) -> pa.Table:
    """All rows of a relational plan as one table: ``relation.to_arrow()``."""
    last = node
    if isinstance(last, nodes.Sort):
        order = [(name, "descending" if last.descending else "ascending") for name in last.names]
        return collect(last.source, open_relation).sort_by(order)
    if isinstance(last, nodes.Aggregate):
        return engine.aggregate(collect(last.source, open_relation), last.keys, last.measures).cast(last.schema())
    if isinstance(last, nodes.Union):
        return pa.concat_tables([collect(part, open_relation) for part in last.parts])
    if isinstance(last, nodes.Sql):
        tables = {name: collect_relation(open_relation(name)) for name in last.relations}
        return engine.run_sql(last.text, tables)
    chosen = choose(node, open_relation)
    total = _total(chosen)
    return chosen.columns().fetch(np.arange(total, dtype=np.uint64), node.schema().names).cast(node.schema())


def collect_relation(base: Base) -> pa.Table:
    """Every row and column of an open relation, in relation order."""
    names = base.schema.names
    batches = list(base.scan(names))
    table = (
        pa.Table.from_batches(batches)
        if batches
        else base.schema.empty_table().append_column(ROW, pa.array([], pa.uint64()))
    )
    return table.sort_by(ROW).select(names)


def _total(chosen: Chosen) -> int:
    if chosen.ordinals is not None:
        return len(chosen.ordinals)
    return sum(batch.num_rows for batch in chosen.base.scan([]))


@final
class _Selecting:
    def __init__(self, open_relation: Open) -> None:
        self.open_relation = open_relation

    def run(self, node: nodes.Node) -> Chosen:
        verbs = list(spine(node))[::-1]
        start = next((i for i in range(len(verbs) - 1, -1, -1) if isinstance(verbs[i], nodes.Aggregate)), 0)
        bottom = verbs[start]
        base = (
            self.open_relation(bottom.relation)
            if isinstance(bottom, nodes.Scan)
            else in_memory(collect(bottom, self.open_relation))
        )
        out = Chosen(base, {name: Col(name) for name in bottom.schema().names}, node.schema())
        rest = verbs[start + 1 :]
        state = _State(base, out, rest, self)
        for verb in rest:
            state.apply(verb)
        state.finish()
        return out


def _pushable(verbs: Sequence[nodes.Node], known: set[str]) -> set[int]:
    """Filters over base columns that may run in the scan: those before any distinct, sort or limit."""
    safe: set[int] = set()
    for verb in verbs:
        if isinstance(verb, nodes.Distinct | nodes.Sort | nodes.Limit):
            break
        if isinstance(verb, nodes.WithColumns):
            known = known - set(verb.names)
        if isinstance(verb, nodes.Filter) and verb.predicate.columns() <= known:
            safe.add(id(verb))
    return safe


def _decides_on(verbs: Sequence[nodes.Node], pushed: set[int]) -> set[str]:
    """Columns that verbs outside the scan look at."""
    names: set[str] = set()
    for verb in verbs:
        if isinstance(verb, nodes.Filter) and id(verb) not in pushed:
            names |= verb.predicate.columns()
        elif isinstance(verb, nodes.WithColumns):
            names |= {name for expr in verb.exprs for name in expr.columns()}
        elif isinstance(verb, nodes.Join):
            names |= set(verb.left_on)
        elif isinstance(verb, nodes.Distinct | nodes.Sort):
            names |= set(verb.names)
    return names


@final
class _Frame:
    """The scanned columns of the rows so far, by place."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table
        self.schema = table.schema

    def fetch(self, ordinals: UInt64, columns: Sequence[str]) -> pa.Table:
        return self._table.select(list(columns)).take(pa.array(ordinals))


@final
class _State:
    """Rows so far: ordinals of the base and of each joined relation, side by side."""

    def __init__(self, base: Base, out: Chosen, verbs: Sequence[nodes.Node], parent: _Selecting) -> None:
        self._base, self._out, self._parent = base, out, parent
        self._pushed = _pushable(verbs, set(base.schema.names))
        self._names = sorted(_decides_on(verbs, self._pushed) & set(base.schema.names))
        self._predicates = [
            bind(v.predicate, v.source.schema()) for v in verbs if isinstance(v, nodes.Filter) and id(v) in self._pushed
        ]
        self._rows: UInt64 | None = None
        self._table_of_rows = pa.table({})
        self._all_rights: list[tuple[Rowed, NDArray[np.int64]]] = []
        self._sorted = False

    def apply(self, verb: nodes.Node) -> None:
        env = self._out.env
        if isinstance(verb, nodes.Filter):
            if id(verb) in self._pushed:
                return
            predicate = bind(verb.predicate, verb.source.schema())
            mask = self._values([substitute(predicate, env)], [pa.bool_()])[0]
            self._keep(np.asarray(pc.fill_null(mask, False).to_numpy(zero_copy_only=False)), f"filter {verb.predicate}")
        elif isinstance(verb, nodes.Project):
            self._out.env = {name: env[name] for name in verb.names}
        elif isinstance(verb, nodes.WithColumns):
            have = verb.source.schema()
            added = {
                name: substitute(bind(expr.source if isinstance(expr, Alias) else expr, have), env)
                for name, expr in zip(verb.names, verb.exprs, strict=True)
            }
            self._out.env = {**env, **added}
        elif isinstance(verb, nodes.Join):
            self._join(verb)
        elif isinstance(verb, nodes.Distinct):
            table = self._table(verb.names, verb.schema()).append_column(
                "__at", pa.array(np.arange(len(self._need_rows())))
            )
            first = table.group_by(list(verb.names)).aggregate([("__at", "min")])["__at_min"]
            mask = np.zeros(len(table), dtype=np.bool_)
            mask[first.to_numpy()] = True
            self._keep(mask, f"distinct {', '.join(verb.names)}")
        elif isinstance(verb, nodes.Sort):
            table = self._table(verb.names, verb.schema())
            keys = [(name, "descending" if verb.descending else "ascending") for name in verb.names]
            self._take(pc.sort_indices(table, keys).to_numpy().astype(np.int64))
            self._sorted = True
        elif isinstance(verb, nodes.Limit):
            self._take(np.arange(min(verb.count, len(self._need_rows()))))
            self._out.counts.append((f"limit {verb.count}", len(self._need_rows())))
        else:
            assert isinstance(verb, nodes.Cache), verb

    def finish(self) -> None:
        """Settle the outcome: rows ascending, only the joined relations that columns come from."""
        out = self._out
        if self._rows is None and self._predicates:
            self._need_rows()
        if self._sorted and self._rows is not None:
            self._take(np.argsort(self._rows, kind="stable"))
        out.ordinals = self._rows
        used = sorted({int(leaf.partition(":")[0]) for e in out.env.values() for leaf in e.columns() if ":" in leaf})
        renamed = {k: i for i, k in enumerate(used)}
        leaves = {
            leaf: Col(right_leaf(renamed[int(leaf.partition(":")[0])], leaf.partition(":")[2]))
            if ":" in leaf
            else Col(leaf)
            for e in out.env.values()
            for leaf in e.columns()
        }
        out.env = {name: substitute(e, leaves) for name, e in out.env.items()}
        out.rights = [self._all_rights[k] for k in used]

    def _need_rows(self) -> UInt64:
        """The surviving ordinals, scanning now if nothing was scanned yet."""
        if self._rows is None:
            predicate = None
            for each in self._predicates:
                predicate = each if predicate is None else predicate & each
            kinds = [(name, self._base.schema.field(name).type) for name in self._names]
            empty = pa.schema([*kinds, (ROW, pa.uint64())]).empty_table()
            found = pa.concat_tables([empty, *(pa.table(b) for b in self._base.scan(self._names, predicate))])
            found = found.sort_by(ROW)
            self._rows = found[ROW].to_numpy()
            self._table_of_rows = found.select(self._names)
            self._out.pushed = predicate
            if predicate is not None:
                self._out.counts.append((f"filter {predicate} (in the scan)", len(self._rows)))
        return self._rows

    def _values(self, exprs: Sequence[Expr], kinds: Sequence[pa.DataType]) -> list[pa.ChunkedArray]:
        rows = self._need_rows()
        rights = [Right(relation, index.__getitem__) for relation, index in self._all_rights]
        names = [f"v{i}" for i in range(len(exprs))]
        schema = pa.schema(list(zip(names, kinds, strict=True)))
        frame = _Frame(self._table_of_rows)
        reader = Columns(frame, lambda at: at, rights, dict(zip(names, exprs, strict=True)), schema)
        table = reader.fetch(np.arange(len(rows), dtype=np.uint64), names)
        return [table[name] for name in names]

    def _table(self, names: Sequence[str], schema: pa.Schema) -> pa.Table:
        kinds = [schema.field(name).type for name in names]
        return pa.table(self._values([self._out.env[name] for name in names], kinds), names=list(names))

    def _keep(self, mask: NDArray[np.bool_], what: str) -> None:
        self._take(np.flatnonzero(mask))
        self._out.counts.append((what, len(self._need_rows())))

    def _take(self, at: NDArray[np.int64]) -> None:
        self._rows = self._need_rows()[at]
        self._table_of_rows = self._table_of_rows.take(pa.array(at))
        self._all_rights = [(relation, index[at]) for relation, index in self._all_rights]

    def _join(self, verb: nodes.Join) -> None:
        right = self._right(verb.right)
        left = self._table(verb.left_on, verb.source.schema())
        keys = right.columns().fetch(np.arange(_total(right), dtype=np.uint64), list(verb.right_on))
        on = f"{', '.join(verb.left_on)}"
        index = join_n_to_1(left, keys, how=verb.how, on=on)
        hit = index >= 0
        if verb.how in ("inner", "semi", "anti"):
            mask = ~hit if verb.how == "anti" else hit
            missed = int((~hit).sum())
            self._keep(mask, f"{verb.how} join on {on} ({missed:,} left rows without a match)")
            index = index[mask]
        k = len(self._all_rights)
        if right.rights or _computes(right):
            self._all_rights.append((Computed(right), index))
        else:
            rows = right.ordinals
            beside = index if rows is None else np.append(rows.astype(np.int64), -1)[index]
            self._all_rights.append((right.base, beside))
        taken = {ours: Col(right_leaf(k, theirs)) for ours, theirs in verb.taken().items()}
        self._out.env = {**self._out.env, **taken}

    def _right(self, node: nodes.Node) -> Chosen:
        if any(isinstance(each, nodes.Union | nodes.Sql | nodes.Aggregate) for each in spine(node)):
            table = collect(node, self._parent.open_relation)
            return Chosen(in_memory(table), {name: Col(name) for name in table.column_names}, table.schema)
        return self._parent.run(node)


def _computes(chosen: Chosen) -> bool:
    """Whether a column is more than one of an open relation's own."""
    own = all(isinstance(e, Col) and e.name == name for name, e in chosen.env.items())
    return not own or isinstance(chosen.base, MemoryReader)


@final
class Computed:
    """A joined relation that itself joins or computes: its surviving rows, by their place."""

    def __init__(self, chosen: Chosen) -> None:
        self._columns = chosen.columns()
        self.schema = chosen.schema
        self.total = _total(chosen)

    def fetch(self, ordinals: UInt64, columns: Sequence[str]) -> pa.Table:
        return self._columns.fetch(ordinals, columns)
