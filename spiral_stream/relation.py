"""The verbs: what a user calls to build a plan. Each is a few lines over a plan node.

A `Relation` is a frozen plan and the catalog its names are looked up in. Every
verb returns a new one, so a prefix may feed several streams.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, final

import pyarrow as pa

from spiral_stream.batching.formation import Composition, DropPartial, Formation, Tail, as_tail
from spiral_stream.catalog.opened import OpenRelation
from spiral_stream.catalog.registry import Registry
from spiral_stream.errors import PlanError, SpiralWarning, shown
from spiral_stream.expr import Alias, Col, Expr, col, lit, name_of
from spiral_stream.extras import need
from spiral_stream.fields.field import Field
from spiral_stream.params import RuntimeParam
from spiral_stream.plan import combining, maps, nodes
from spiral_stream.plan.checks import column_list, need_new_names, unheeded_sort
from spiral_stream.plan.decoded import with_decoded
from spiral_stream.plan.fingerprint import fingerprint
from spiral_stream.plan.mix import Mix, Part, schedule_points, whole_count
from spiral_stream.plan.profiles import Profile, renewed
from spiral_stream.plan.refusal import OnError
from spiral_stream.plan.tree import base_scan
from spiral_stream.planner.meaning import settled, tokenized
from spiral_stream.sampling.assignment import DataParallel
from spiral_stream.sampling.order import Order
from spiral_stream.sources.source import FormerProfile
from spiral_stream.transforms.python import Function
from spiral_stream.transforms.text import Tokenize
from spiral_stream.transforms.transform import Named

if TYPE_CHECKING:
    from spiral_stream.adapters.jax import JaxStream
    from spiral_stream.adapters.torch import TorchStream
    from spiral_stream.explain import Explanation
    from spiral_stream.prepared import PreparedStream

OTHERWISE: Final = "use to_numpy()"  # needs no framework
_RANKS = DataParallel(RuntimeParam("data_parallel_rank"), RuntimeParam("data_parallel_world_size"))


@final
@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """One stream of a mixture.

    Args:
        name: what ``stream_id`` is for its samples.
        relation: the samples.
        proportion: share of the epoch's samples; all streams have one, or none.
        repeat: how often its rows come in an epoch, 1.5 for one and a half times.
        choose: how many of its samples come in an epoch.
    """

    name: str
    relation: "Relation"
    proportion: float | None = None
    repeat: float | None = None
    choose: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.relation, Relation):
            found = repr(self.relation) if isinstance(self.relation, str) else f"a {type(self.relation).__name__}"
            example = self.relation if isinstance(self.relation, str) else "text.web"
            msg = f'Stream {self.name!r}: relation is {found}; give a relation, for example catalog.table("{example}")'
            raise PlanError(msg)


def mix(
    streams: Sequence[Stream],
    *,
    epoch_size: int | str | None = None,
    by: str | None = None,
    schedule: Mapping[int, Mapping[str, float]] | None = None,
    samples_per_step: int = 1,
) -> "Relation":
    """Several relations as one, with the column ``stream_id``; counts of an epoch are exact.

    Args:
        streams: at least one.
        epoch_size: samples an epoch, whatever the relations hold; a number, or a text such as ``"10b"``. None: as many
            as there are rows.
        by: what proportions are of, instead of samples: a numeric column or expression such as ``token_count_estimate``.
        schedule: proportions that change during a run: step -> name -> proportion, linear in between.
        samples_per_step: what a step of the schedule is, in samples of all ranks.

    Raises:
        PlanError: proportions that are negative, NaN or mixed with none; columns of one name and two types.

    Warns:
        UserWarning: proportions do not sum to 1; they are taken in relation to their sum.
    """
    kinds = [type(each).__name__ for each in streams] if isinstance(streams, list | tuple) else None
    if not kinds or set(kinds) != {"Stream"}:
        found = (
            f"a {type(streams).__name__}"
            if kinds is None
            else f"a list of {', '.join(dict.fromkeys(kinds)) or 'nothing'}"
        )
        msg = f"mix: takes a list of streams, and this is {found}; give [Stream(name, relation, proportion=...), ...]"
        raise PlanError(msg)
    first, *others = [stream.relation for stream in streams]
    first._need_relations("mix", *others)  # noqa: SLF001  a verb of relations
    parts = tuple(Part(s.name, s.relation.node, s.proportion, s.repeat, s.choose) for s in streams)
    points = schedule_points(schedule, [stream.name for stream in streams], samples_per_step)
    return Relation(Mix(parts, whole_count("mix: epoch_size", epoch_size), by, points), first.catalog)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Relation:
    """A plan so far. Frozen: every verb returns a new one."""

    node: nodes.Node
    catalog: Registry

    @property
    def schema(self) -> pa.Schema:
        """The columns this plan leaves."""
        return self.node.schema()

    @property
    def fingerprint(self) -> str:
        """The plan's fingerprint: 32 hex digits."""
        return fingerprint(self.node)

    # ---- relational verbs

    def filter(
        self, *predicates: Expr | Callable[..., Any], columns: Sequence[str] = (), batched: bool = True
    ) -> "Relation":
        """Keep the rows for which every predicate is true; after ``sample`` a Python function may be one.

        Args:
            *predicates: expressions over columns; after ``sample`` also functions that return booleans.
            columns: what a function takes, in order.
            batched: whether a function takes Arrow arrays, or one sample's values at a time.
        """
        node = self.node
        for predicate in predicates:
            if isinstance(node, nodes.Sampled):
                called = (
                    None
                    if isinstance(predicate, Expr)
                    else Function(predicate, column_list("filter", columns), pa.bool_(), batched)
                )
                node = maps.SampleFilter(node, called or predicate)  # type: ignore[arg-type]  # an expression where nothing is called
            else:
                node = nodes.Filter(node, predicate)  # type: ignore[arg-type]  # it refuses what is no expression
        return self._with(node)

    where = filter  # noqa: A003  SQL's spelling; `filter` is Polars'

    def project(self, *columns: str | Expr, **computed: Expr) -> "Relation":
        """Keep these columns in this order; ``name=expression`` computes one."""
        named: dict[str, Expr] = {}
        for each in columns:
            expr = col(each) if isinstance(each, str) else each
            name = name_of(expr)
            if name is None:
                msg = f'project: {expr} has no name; write .project(name={expr}) or ({expr}).alias("name")'
                raise PlanError(msg)
            need_new_names("project", [*named, name], "give one of them another: .project(name=...)")
            named[name] = expr
        need_new_names("project", [*named, *computed], "give one of them another")
        named.update({name: lit(value) for name, value in computed.items()})
        new = {name: expr for name, expr in named.items() if not (isinstance(expr, Col) and expr.name == name)}
        source = self.with_columns(**new).node if new else self.node
        return self._with(nodes.Project(source, tuple(named)))

    select = project

    def with_columns(self, **computed: Expr) -> "Relation":
        """Add or replace columns; a number or text makes a constant one."""
        exprs = tuple(e.source if isinstance(e, Alias) else e for e in map(lit, computed.values()))
        verb = maps.SampleColumns if isinstance(self.node, nodes.Sampled) else nodes.WithColumns
        return self._with(verb(self.node, tuple(computed), exprs))

    def join(
        self,
        other: "Relation",
        on: str | Sequence[str] | None = None,
        *,
        how: combining.JoinHow = "inner",
        left_on: str | Sequence[str] | None = None,
        right_on: str | Sequence[str] | None = None,
        suffix: str = "_right",
    ) -> "Relation":
        """Add the columns of the one right row with equal keys (N:1); null keys match nothing.

        Raises:
            PlanError: unknown or unequal key columns. Several right rows for a key are an error when the plan is prepared.
        """
        self._need_relations("join", other)
        left, right = _names(left_on if on is None else on), _names(right_on if on is None else on)
        return self._with(combining.Join(self.node, other.node, left, right, how, suffix))

    def group_by(self, *keys: str) -> "Grouped":
        """Group rows by these columns; ``.aggregate(...)`` follows."""
        return Grouped(self, keys)

    def aggregate(self, **measures: tuple[str, str]) -> "Relation":
        """One row: ``name=(column, "count" | "count_distinct" | "sum" | "min" | "max" | "avg")``."""
        return Grouped(self, ()).aggregate(**measures)

    def distinct(self, *columns: str) -> "Relation":
        """Keep the first row of every distinct value of these columns (all columns if none are named).

        The first of a ``sort`` before it, else in relation order; NaN equals NaN here.
        """
        return self._with(nodes.Distinct(self.node, columns or tuple(self.schema.names)))

    def sort(self, *columns: str, descending: bool = False) -> "Relation":
        """Order the rows, for a following ``limit`` or ``distinct`` and for `to_arrow`; training order is ``sample``'s.

        NaN, then null, come last in both directions; equal rows stay in the order that they had.
        """
        return self._with(nodes.Sort(self.node, columns, descending))

    def limit(self, count: int) -> "Relation":
        """Keep the first ``count`` rows."""
        return self._with(nodes.Limit(self.node, count))

    def union(self, *others: "Relation") -> "Relation":
        """The rows of several relations with equal columns."""
        self._need_relations("union", *others)
        return self._with(combining.Union((self.node, *(other.node for other in others))))

    def cache(self, **profiles: Profile | FormerProfile) -> "Relation":
        """Declare in which form payload columns may be kept; ``materialize()`` builds it."""
        return self._with(nodes.Cache(self.node, tuple((name, renewed(profile)) for name, profile in profiles.items())))

    # ---- the stream

    def sample(
        self,
        *,
        identity: str | Sequence[str] | None = None,
        order: Order,
        epoch: RuntimeParam | int | None = None,
        assignment: DataParallel | None = None,
    ) -> "Relation":
        """Fix which example comes when: identity, order, epoch and who gets it.

        Args:
            identity: columns that identify a sample; by default those the relation was registered with.
            order: for example ``ShardAwareShuffle(seed=17)``.
            epoch: ``RuntimeParam("epoch")`` (default) or a number.
            assignment: ``DataParallel(...)``; by default of the run's rank and world size.

        Raises:
            PlanError: an argument is not one of these, or a ``sort`` comes before ``Sequential``, which keeps to storage.

        Warns:
            SpiralWarning: a ``sort`` comes before another order, which decides anyway.
        """
        names = base_scan(self.node).identity if identity is None else _names(identity)
        base_scan(self.node)
        when = RuntimeParam("epoch") if epoch is None else epoch
        sampled = self._with(nodes.Sample(self.node, names, order, when, assignment or _RANKS))
        if (sorted_by := unheeded_sort(self.node)) is not None:
            msg = (
                f"sample: sort({sorted_by}) has no effect, since {type(order).__name__} decides the order. Drop it, or put "
                "a limit or distinct after it"
            )
            warnings.warn(msg, SpiralWarning, stacklevel=2)
        return sampled

    def map(
        self,
        what: Named | Callable[..., Any],
        *,
        name: str | None = None,
        columns: Sequence[str] = (),
        returns: pa.DataType | None = None,
        batched: bool = True,
        random: bool = False,
        version: str | None = None,
    ) -> "Relation":
        """Add a column to samples: ``.map(Tokenize("text", tokenizer="...") >> "tokens")``, or by a Python function.

        Args:
            what: a named transform, or a function.
            name: the column that a function's values become.
            columns: what it takes, in order: Arrow arrays of many samples, or with ``batched=False`` one sample's values.
            returns: Arrow type of its values.
            batched: see ``columns``.
            random: it also takes the samples' random keys (uint64), or with ``batched=False`` a NumPy generator.
            version: stands for its code in the fingerprint; by default its code and that of its helpers does.

        Raises:
            PlanError: a column is unknown, or something is missing.
        """
        if isinstance(what, Named):
            if not isinstance(what.transform, Tokenize):
                msg = f"map: {type(what.transform).__name__} is a transform of images; give it to Stack(..., transforms=[...])"
                raise PlanError(msg)
            return self._with(tokenized(self.node, what.transform, what.name, self.catalog))
        if name is None or returns is None:
            msg = (
                "map: a function needs name= and returns=, for example "
                '.map(score, columns=["text"], name="score", returns=pa.float32())'
            )
            raise PlanError(msg)
        function = Function(what, column_list("map", columns), returns, batched, random, version)
        return self._with(maps.SampleMap(self.node, function, name))

    def flat_map(
        self,
        function: Callable[..., Any],
        *,
        name: str,
        columns: Sequence[str],
        returns: pa.DataType,
        fan_out: int,
        batched: bool = False,
        random: bool = False,
        version: str | None = None,
    ) -> "Relation":
        """Replace each sample by those in the list that a function returns; the column ``part`` counts them.

        Args:
            function: takes ``columns`` and returns a list of at most ``fan_out`` values a sample.
            name: the column that the values become.
            columns: what it takes, in order.
            returns: Arrow type of one value of the list.
            fan_out: most values a sample.
            batched: whether it takes Arrow arrays and returns a list array.
            random: as for `map`.
            version: as for `map`.
        """
        made = Function(function, column_list("flat_map", columns), pa.list_(returns), batched, random, version)
        return self._with(maps.SampleFlatMap(self.node, made, name, fan_out))

    def assemble(
        self,
        factory: Callable[..., Any],
        *,
        columns: Sequence[str],
        returns: pa.Schema,
        version: str | None = None,
    ) -> "Relation":
        """Make samples of several others: stateful, in order, within one chapter (64 windows of a lane).

        Args:
            factory: called with a context (``epoch``, ``lane``, ``chapter``) at each chapter's start; what it returns has
                ``push(table)`` and ``finish()``, which return tables of new samples, or None.
            columns: what ``push`` gets.
            returns: the columns of a new sample, the identity's among them.
            version: as for `map`.
        """
        made = Function(factory, column_list("assemble", columns), pa.struct(list(returns)), version=version)
        return self._with(maps.SampleAssembly(self.node, made))

    def collate(
        self,
        *,
        batch_size: int | None,
        fields: Mapping[str, Field],
        formation: Formation | None = None,
        composition: Composition | None = None,
        last: Tail | type[Tail] = DropPartial,
        on_error: OnError = "raise",
        error_budget: float | None = None,
    ) -> "Relation":
        """Fix who shares a batch, what becomes of a short last one, and what each field is.

        Args:
            batch_size: samples a batch (rows, where several samples are packed into one); with a budget, at most;
                None leaves it to the budget.
            fields: the batch's keys and what each holds.
            formation: who shares a batch: ``WindowedBucket(...)``, ``Packed(...)``; None takes ``batch_size`` samples in order.
            composition: how the streams of a mixture share a batch: ``StratifiedByStream("stream_id")``, ``OneStream()``.
            last: ``DropPartial``, ``KeepPartial`` or ``PadPartial``.
            on_error: what becomes of a sample whose payload cannot be read: ``"raise"`` stops the stream, ``"skip"`` delivers
                the batch without it, ``"substitute"`` with a copy of the next good sample of the batch in its place.
                `PreparedStream.quarantine` lists them.
            error_budget: most of them that a process puts up with in an epoch: a count, or a fraction of the epoch's
                samples (by default 0.01).

        Warns:
            SpiralWarning: two fields decode one column with equal random transforms, which draw alike.
        """
        if not isinstance(fields, Mapping):
            msg = f'collate: fields={shown(fields)}; give a dict of name -> field, for example {{"x": Stack("x")}}'
            raise PlanError(msg)
        node = with_decoded(self.node, fields)
        formed = settled(node, formation, composition)
        values = (batch_size, as_tail(last), tuple(fields.items()), formed, on_error, error_budget)
        return self._with(nodes.Collate(node, *values))

    def to_torch(self, *, prefetch: int = 2, device: str | None = None) -> "TorchStream":
        """A stream of dicts of tensors; also a torch ``IterableDataset``.

        Raises:
            MissingExtraError: PyTorch is not installed.
        """
        need("torch", "to_torch", OTHERWISE)
        from spiral_stream.adapters.torch import TorchStream

        return TorchStream(nodes.Deliver(self.node, "torch", prefetch, device), self.catalog)

    def to_numpy(self, *, prefetch: int = 2) -> "PreparedStream":
        """A stream of dicts of NumPy arrays."""
        from spiral_stream.prepared import PreparedStream

        return PreparedStream(nodes.Deliver(self.node, "numpy", prefetch), self.catalog)

    def to_jax(self, *, prefetch: int = 2) -> "JaxStream":
        """A stream of dicts of JAX arrays; JAX has to be installed where it is bound or read."""
        from spiral_stream.adapters.jax import JaxStream

        return JaxStream(nodes.Deliver(self.node, "jax", prefetch), self.catalog)

    # ---- looking

    def to_arrow(self) -> pa.Table:
        """All rows of a relational plan as a table."""
        if not isinstance(self.node, nodes.Relational):
            msg = f"to_arrow: follows {self.node.VERB}; collect the relation before sample, or iterate the stream"
            raise PlanError(msg)
        from spiral_stream.planner.select import collect

        return collect(self.node, lambda name: OpenRelation(self.catalog.entry(name)))

    def explain(self) -> "Explanation":
        """The outline of a plan that is no stream yet; a stream's ``explain()`` has every section."""
        from spiral_stream.explain import explain_plan

        return explain_plan(self.node)

    def _need_relations(self, verb: str, *others: "Relation") -> None:
        """Names are looked up in one catalog: that of the first relation."""
        for other in others:
            if not isinstance(other, Relation):
                msg = f"{verb}: {shown(other)} is a {type(other).__name__}; give a relation, for example catalog.table(...)"
                raise PlanError(msg)
            if other.catalog.root != self.catalog.root:
                msg = (
                    f"{verb}: the relations are of two catalogs, {self.catalog.root} and {other.catalog.root}; "
                    "register both in one"
                )
                raise PlanError(msg)

    def _with(self, node: nodes.Node) -> "Relation":
        return replace(self, node=node)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Grouped:
    """A relation grouped by keys, waiting for its measures."""

    relation: Relation
    keys: tuple[str, ...]

    def aggregate(self, **measures: tuple[str, str]) -> Relation:
        """One row a group: ``name=(column, function)``. Float sums and averages depend on the thread count's order."""
        for name, each in measures.items():
            if not (isinstance(each, tuple) and len(each) == 2):  # noqa: PLR2004  column and function
                msg = f'aggregate ({name}): {each!r}; give (column, function), for example {name}=("x", "sum")'
                raise PlanError(msg)
        parts = tuple((column, function, name) for name, (column, function) in measures.items())
        return self.relation._with(combining.Aggregate(self.relation.node, self.keys, parts))  # noqa: SLF001  one of our own kind

    agg = aggregate


def _names(names: str | Sequence[str] | None) -> tuple[str, ...]:
    if names is None:
        msg = "join: no keys; give on=..., or left_on=... and right_on=..."
        raise PlanError(msg)
    return (names,) if isinstance(names, str) else tuple(names)
