"""The verbs of a plan as frozen values: what each needs, what columns it leaves.

A node is checked at birth, knows its output schema, and cannot run. Relational
nodes turn rows into rows; `Sample`, `Collate` and `Deliver` follow once each, in
that order. Execution is the planner's and the runtime's business. Nodes hold
expressions, whose ``==`` builds trees, so plans compare by fingerprint.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Final, Literal, final

import pyarrow as pa

from spiral_stream.batching.formation import Formation, Tail
from spiral_stream.cursor import LAST_EPOCH
from spiral_stream.errors import PlanError, shown
from spiral_stream.expr import Expr, kind_of
from spiral_stream.fields.field import Field
from spiral_stream.params import RuntimeParam
from spiral_stream.plan.checks import (
    bound_type,
    device_name,
    need_columns,
    need_compared,
    need_identity,
    need_like_keys,
    need_new_names,
    need_stored_order,
    need_whole,
)
from spiral_stream.plan.fields import check_fields, check_formation, warn_of_fields_drawn_alike
from spiral_stream.plan.profiles import Profile, forms_of
from spiral_stream.plan.refusal import OnError, check_on_error
from spiral_stream.sampling.assignment import DataParallel
from spiral_stream.sampling.order import Order
from spiral_stream.sampling.sequential import Sequential
from spiral_stream.sampling.shard_aware import ShardAwareShuffle
from spiral_stream.semantic import holds_reference, semantic_of

_SHARD: Final = "storage_shard"
_PLACES: Final = {_SHARD, "stream_id"}  # which shard and stream a row is of is known without a column
JoinHow = Literal["inner", "left", "semi", "anti"]


class Node(ABC):
    """One verb over its input. Subclasses are frozen, slotted and final."""

    VERB: ClassVar[str]

    @abstractmethod
    def schema(self) -> pa.Schema:
        """The columns this node leaves, in order."""

    def inputs(self) -> "tuple[Node, ...]":
        """The nodes it reads from; the first is the one that owns the rows."""
        source = getattr(self, "source", None)
        return () if source is None else (source,)


class Relational(Node):
    """A node whose output is a relation: it may come before `Sample` only."""


class Sampled(Node):
    """A node whose output is samples in order: `Sample`, and the maps between it and `Collate`."""


def need_relation(verb: str, node: Node) -> None:
    """Refuse an input that is sampled or collated already."""
    if not isinstance(node, Relational):
        msg = f"{verb}: follows {node.VERB}; relational work comes before sample"
        raise PlanError(msg)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Scan(Relational):
    """All rows of a relation of the catalog."""

    VERB: ClassVar[str] = "scan"
    relation: str
    columns: pa.Schema
    identity: tuple[str, ...]

    def schema(self) -> pa.Schema:
        return self.columns


@final
@dataclass(frozen=True, slots=True, eq=False)
class Filter(Relational):
    """Keep the rows for which the predicate is true."""

    VERB: ClassVar[str] = "filter"
    source: Node
    predicate: Expr

    def __post_init__(self) -> None:
        need_relation(self.VERB, self.source)
        kind = bound_type(self.VERB, self.predicate, self.source.schema())
        if not pa.types.is_boolean(kind):
            msg = f'filter: the predicate is {kind}, not bool; compare it, for example col("x") > 0'
            raise PlanError(msg)

    def schema(self) -> pa.Schema:
        return self.source.schema()


@final
@dataclass(frozen=True, slots=True, eq=False)
class Project(Relational):
    """Keep only these columns, in this order."""

    VERB: ClassVar[str] = "project"
    source: Node
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        need_relation(self.VERB, self.source)
        have = self.source.schema()
        need_columns(self.VERB, self.names, have)
        need_new_names(self.VERB, self.names, "name it once, or give the copy a name: .project(copy=col(...))")
        if not self.names:
            msg = f"project: no columns; name at least one of {', '.join(have.names)}"
            raise PlanError(msg)

    def schema(self) -> pa.Schema:
        have = self.source.schema()
        return pa.schema([have.field(name) for name in self.names])


@final
@dataclass(frozen=True, slots=True, eq=False)
class WithColumns(Relational):
    """Add computed columns, or replace columns of the same name."""

    VERB: ClassVar[str] = "with_columns"
    source: Node
    names: tuple[str, ...]
    exprs: tuple[Expr, ...]

    def __post_init__(self) -> None:
        need_relation(self.VERB, self.source)
        have = self.source.schema()
        for name, expr in zip(self.names, self.exprs, strict=True):
            bound_type(f"with_columns ({name})", expr, have)

    def schema(self) -> pa.Schema:
        have = self.source.schema()
        out = {field.name: field for field in have}
        for name, expr in zip(self.names, self.exprs, strict=True):
            out[name] = pa.field(name, bound_type(self.VERB, expr, have))
        return pa.schema(list(out.values()))


@final
@dataclass(frozen=True, slots=True, eq=False)
class Join(Relational):
    """Add the columns of the one matching right row (N:1) to each left row."""

    VERB: ClassVar[str] = "join"
    source: Node
    right: Node
    left_on: tuple[str, ...]
    right_on: tuple[str, ...]
    how: JoinHow = "inner"
    suffix: str = "_right"

    def __post_init__(self) -> None:
        if self.how not in ("inner", "left", "semi", "anti"):
            msg = f"join: how={self.how!r} is unknown; it is one of inner, left, semi, anti"
            raise PlanError(msg)
        if not self.left_on or len(self.left_on) != len(self.right_on):
            msg = f"join: {len(self.left_on)} left keys and {len(self.right_on)} right keys; give the same number, at least one"
            raise PlanError(msg)
        need_relation(self.VERB, self.source)
        need_relation("join (right side)", self.right)
        left, right = self.source.schema(), self.right.schema()
        need_columns("join (left side)", self.left_on, left)
        need_columns("join (right side)", self.right_on, right)
        for ours, theirs in zip(self.left_on, self.right_on, strict=True):
            need_like_keys(left.field(ours), right.field(theirs))
        names = [*left.names, *(ours for ours, _ in self._taken())]
        need_new_names(self.VERB, names, "give another suffix=..., or project one side first")

    def inputs(self) -> tuple[Node, ...]:
        return (self.source, self.right)

    def taken(self) -> dict[str, str]:
        """Right columns that come through: name in the output -> name on the right."""
        return dict(self._taken()) if self.how in ("inner", "left") else {}

    def _taken(self) -> list[tuple[str, str]]:
        left = set(self.source.schema().names)
        names = [
            name for name in self.right.schema().names if name not in self.right_on and self.how in ("inner", "left")
        ]
        named = [(name + self.suffix if name in left else name, name) for name in names]
        return [(ours, name) for ours, name in named if not (name == _SHARD and ours in left)]  # every relation has one

    def schema(self) -> pa.Schema:
        right, missed = self.right.schema(), self.how == "left"
        fields = {ours: right.field(theirs).with_name(ours) for ours, theirs in self.taken().items()}
        added = [field.with_nullable(True) if missed else field for field in fields.values()]
        return pa.schema([*self.source.schema(), *added])


@final
@dataclass(frozen=True, slots=True, eq=False)
class Aggregate(Relational):
    """One row per distinct key: ``(column, function, name of the result)``."""

    VERB: ClassVar[str] = "aggregate"
    source: Node
    keys: tuple[str, ...]
    measures: tuple[tuple[str, str, str], ...]

    FUNCTIONS: ClassVar[tuple[str, ...]] = ("count", "count_distinct", "sum", "min", "max", "avg")

    def __post_init__(self) -> None:
        need_relation(self.VERB, self.source)
        have = self.source.schema()
        if self.keys:
            need_compared("group_by", self.keys, have)
        if not self.measures:
            msg = 'aggregate: nothing to measure; give name=(column, function), for example n=("sample_id", "count")'
            raise PlanError(msg)
        for column, function, name in self.measures:
            if function not in self.FUNCTIONS:
                msg = f"aggregate ({name}): {function!r} is unknown; there are {', '.join(self.FUNCTIONS)}"
                raise PlanError(msg)
            need_columns(f"aggregate ({name})", (column,), have)
            kind = have.field(column).type
            if function in ("sum", "avg") and kind_of(kind) not in ("int", "float"):
                msg = f"aggregate ({name}): {function} of {column!r}, which is {kind}; it takes numbers. Use count"
                raise PlanError(msg)
            if function in ("min", "max", "count_distinct"):
                need_compared(f"aggregate ({name})", (column,), have)
        names = [*self.keys, *(name for _, _, name in self.measures)]
        need_new_names(self.VERB, names, "give the measure another name")

    def schema(self) -> pa.Schema:
        have = self.source.schema()
        out = [have.field(name) for name in self.keys]
        for column, function, name in self.measures:
            kind = have.field(column).type
            if function in ("count", "count_distinct"):
                kind = pa.int64()
            elif function == "avg" or (function == "sum" and pa.types.is_floating(kind)):
                kind = pa.float64()
            elif function == "sum":
                kind = pa.int64()
            out.append(pa.field(name, kind))
        return pa.schema(out)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Distinct(Relational):
    """Keep the first row of every distinct value of these columns: of the sort before it, else in relation order."""

    VERB: ClassVar[str] = "distinct"
    source: Node
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        need_relation(self.VERB, self.source)
        need_compared(self.VERB, self.names, self.source.schema())

    def schema(self) -> pa.Schema:
        return self.source.schema()


@final
@dataclass(frozen=True, slots=True, eq=False)
class Sort(Relational):
    """Order the rows, for a following `Limit`; what is trained in which order is `Sample`'s."""

    VERB: ClassVar[str] = "sort"
    source: Node
    names: tuple[str, ...]
    descending: bool = False

    def __post_init__(self) -> None:
        need_relation(self.VERB, self.source)
        need_compared(self.VERB, self.names, self.source.schema())

    def schema(self) -> pa.Schema:
        return self.source.schema()


@final
@dataclass(frozen=True, slots=True, eq=False)
class Limit(Relational):
    """Keep the first ``count`` rows: of the sort before it, else in relation order."""

    VERB: ClassVar[str] = "limit"
    source: Node
    count: int

    def __post_init__(self) -> None:
        need_relation(self.VERB, self.source)
        need_whole(self.VERB, "count", self.count, least=1)

    def schema(self) -> pa.Schema:
        return self.source.schema()


@final
@dataclass(frozen=True, slots=True, eq=False)
class Union(Relational):
    """The rows of several relations with the same columns, one after the other."""

    VERB: ClassVar[str] = "union"
    parts: tuple[Node, ...]

    def __post_init__(self) -> None:
        for part in self.parts:
            need_relation(self.VERB, part)
        first = self.parts[0].schema()
        for part in self.parts[1:]:
            other = part.schema()
            if other.names != first.names or other.types != first.types:
                msg = (
                    f"union: columns differ: {_columns_text(first)} against {_columns_text(other)}; project both alike"
                )
                raise PlanError(msg)

    def inputs(self) -> tuple[Node, ...]:
        return self.parts

    def schema(self) -> pa.Schema:
        first, *others = [part.schema() for part in self.parts]
        fields = [f.with_nullable(f.nullable or any(o.field(f.name).nullable for o in others)) for f in first]
        return pa.schema(fields)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Sql(Relational):
    """A query in DuckDB's dialect over relations of the catalog."""

    VERB: ClassVar[str] = "sql"
    text: str
    relations: tuple[str, ...]
    columns: pa.Schema
    floats: tuple[str, ...] = ()  # columns that the text reads and that may hold NaN, as relation.column; for people

    def schema(self) -> pa.Schema:
        return self.columns


@final
@dataclass(frozen=True, slots=True, eq=False)
class Cache(Relational):
    """Declare in which form payload columns may be kept: (column, profile) pairs."""

    VERB: ClassVar[str] = "cache"
    source: Node
    profiles: tuple[tuple[str, Profile], ...]

    def __post_init__(self) -> None:
        need_relation(self.VERB, self.source)
        have = self.source.schema()
        need_columns(self.VERB, tuple(name for name, _ in self.profiles), have)
        for name, profile in self.profiles:
            semantic = semantic_of(have.field(name))
            if semantic is None:
                marked = [field.name for field in have if semantic_of(field)]
                way = f"Cache {' or '.join(marked)}, or leave it out" if marked else "Leave cache out"
                kind = have.field(name).type
                if holds_reference(kind):
                    way += f', or, if its values name or hold images or videos, register it with semantic={{"{name}": ...}}'
                msg = f"cache: {name!r} is {kind}, no reference to payload; a cache keeps what references name. {way}"
                raise PlanError(msg)
            if not isinstance(profile, Profile):
                msg = f"cache: {name!r} is given {profile!r}; give {forms_of(semantic)}"
                raise PlanError(msg)
            if semantic != profile.SEMANTIC:
                kept = f"{type(profile).__name__} keeps {profile.SEMANTIC}"
                msg = f"cache: {name!r} is {semantic}, and {kept}; give {forms_of(semantic)}"
                raise PlanError(msg)

    def schema(self) -> pa.Schema:
        return self.source.schema()


@final
@dataclass(frozen=True, slots=True, eq=False)
class Sample(Sampled):
    """Which example comes when, and to whom."""

    VERB: ClassVar[str] = "sample"
    source: Node
    identity: tuple[str, ...]
    order: Order
    epoch: RuntimeParam | int
    assignment: DataParallel

    def __post_init__(self) -> None:
        if not isinstance(self.source, Relational):
            msg = (
                f"sample: follows {self.source.VERB}; a plan samples once, after its relational work and before collate"
            )
            raise PlanError(msg)
        need_identity(self.identity, self.source.schema())
        if not isinstance(self.order, Order):
            msg = (
                f"sample: order={shown(self.order)} is not an order; give ShardAwareShuffle(seed=...), HashBucketed(...), "
                "GlobalShuffle(...) or Sequential()"
            )
            raise PlanError(msg)
        if isinstance(self.order, Sequential):
            need_stored_order(self.source)
        if isinstance(self.order, ShardAwareShuffle) and (key := tuple(sorted(set(self.order.shard_key) - _PLACES))):
            need_compared("sample (shard_key)", key, self.source.schema())
        if not isinstance(self.assignment, DataParallel):
            msg = f"sample: assignment={shown(self.assignment)}; give DataParallel(rank=..., world_size=...)"
            raise PlanError(msg)
        if not isinstance(self.epoch, RuntimeParam):
            need_whole(self.VERB, "epoch", self.epoch, least=0, most=LAST_EPOCH)
        elif self.epoch.name != "epoch":
            msg = f'sample: epoch=RuntimeParam({self.epoch.name!r}); give RuntimeParam("epoch") or an integer'
            raise PlanError(msg)

    def schema(self) -> pa.Schema:
        return self.source.schema()


@final
@dataclass(frozen=True, slots=True, eq=False)
class Collate(Node):
    """Who shares a batch, and what the batch's fields look like."""

    VERB: ClassVar[str] = "collate"
    source: Node
    batch_size: int | None
    last: Tail
    fields: tuple[tuple[str, Field], ...]
    formation: Formation | None = None  # None: batches of a fixed count, by arithmetic
    on_error: OnError = "raise"
    error_budget: float | None = None  # not part of the fingerprint: it changes no batch

    def __post_init__(self) -> None:
        if not isinstance(self.source, Sampled):
            msg = f"collate: follows {self.source.VERB}; call .sample(identity=..., order=...) before it, once"
            raise PlanError(msg)
        if self.batch_size is not None:
            need_whole(self.VERB, "batch_size", self.batch_size, least=1, most=2**31 - 1)
        elif self.formation is None:
            msg = (
                "collate: batch_size=None needs a formation that bounds a batch; give "
                "formation=WindowedBucket(..., budget=BatchBudget(max_tokens=...)), or a batch_size"
            )
            raise PlanError(msg)
        have = self.source.schema()
        check_fields(self.fields, have)
        check_formation(self.formation, self.batch_size, self.fields, have)
        warn_of_fields_drawn_alike(self.fields)
        check_on_error(self.on_error, self.error_budget, self.formation, self.source)

    def schema(self) -> pa.Schema:
        return self.source.schema()


@final
@dataclass(frozen=True, slots=True, eq=False)
class Deliver(Node):
    """To which framework, how far ahead, on which device. Not part of the fingerprint."""

    VERB: ClassVar[str] = "deliver"
    source: Node
    framework: Literal["torch", "numpy", "jax", "arrow"]
    prefetch: int = 2
    device: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.source, Collate):
            msg = f"to_{self.framework}: follows {self.source.VERB}; a stream needs .sample(...) and .collate(...) before it"
            raise PlanError(msg)
        need_whole(f"to_{self.framework}", "prefetch", self.prefetch, least=1, most=2**20)
        if self.device is not None:
            object.__setattr__(self, "device", device_name(f"to_{self.framework}: device", self.device))

    def schema(self) -> pa.Schema:
        return self.source.schema()


def _columns_text(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
