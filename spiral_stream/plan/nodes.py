"""The verbs of a plan as frozen values: what each needs, what columns it leaves.

A node is checked at birth, knows its output schema, and cannot run. Relational
nodes turn rows into rows (those that bring rows together are in `combining`); `Sample`,
`Collate` and `Deliver` follow once each, in that order. Execution is the planner's and the runtime's business. Nodes hold
expressions, whose ``==`` builds trees, so plans compare by fingerprint.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, final

import pyarrow as pa

from spiral_stream.arguments import check, of_kind
from spiral_stream.batching.formation import Formation
from spiral_stream.batching.row_exchange import RowExchange
from spiral_stream.batching.tail import PadPartial, Tail
from spiral_stream.cursor import LAST_EPOCH
from spiral_stream.errors import PlanError, shown
from spiral_stream.expr import Expr
from spiral_stream.fields.field import Field
from spiral_stream.params import RuntimeParam
from spiral_stream.plan.bad_samples import OnError, check_on_error
from spiral_stream.plan.checks import (
    bound_type,
    device_name,
    need_columns,
    need_compared,
    need_identity,
    need_integer,
    need_new_names,
    need_steady,
    need_steady_order,
    need_weights,
)
from spiral_stream.plan.fields.flat_images import check_rows_of_all
from spiral_stream.plan.fields.needed_columns import (
    check_balance,
    check_fields,
    check_formation,
    check_number,
    warn_of_fields_drawn_alike,
)
from spiral_stream.plan.fields.padded import check_padded
from spiral_stream.plan.fields.profiles import Profile, forms_of
from spiral_stream.sampling.assignment import DataParallel
from spiral_stream.sampling.order import Order
from spiral_stream.sampling.orders.shard_aware import ShardAwareShuffle
from spiral_stream.semantic import BYTES_REF, JPEG_REF, holds_reference, is_list, semantic_of

_SHARD: Final = "storage_shard"
_FREE_KEYS: Final = {_SHARD, "stream_id"}  # which shard and stream a row is of is known without a column


class Node(ABC):
    """One verb over its input. Subclasses are frozen, slotted and final."""

    VERB: ClassVar[str]

    @abstractmethod
    def schema(self) -> pa.Schema:
        """Return the columns this node leaves, in order."""

    def inputs(self) -> "tuple[Node, ...]":
        """Return the nodes it reads from; the first is the one that owns the rows."""
        source = getattr(self, "source", None)
        return () if source is None else (source,)


class Simple(Node):
    """A node that leaves the columns of its one input as they are."""

    source: Node

    def schema(self) -> pa.Schema:
        return self.source.schema()


class Relational(Node):
    """A node whose output is a relation: it may come before `Sample` only."""


class Sampled(Node):
    """A node whose output is samples in order: `Sample`, and the maps between it and `Collate`."""


def need_after(verb: str, node: Node, kind: Any, right: str) -> None:
    """Refuse an input that is no node of a kind; ``right`` says what would be right."""
    if not isinstance(node, kind):
        msg = f"{verb}: follows {node.VERB}{right}"
        raise PlanError(msg)


def need_relation(verb: str, node: Node) -> None:
    """Refuse an input that is sampled or collated already."""
    need_after(verb, node, Relational, "; relational work comes before sample")


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
class Filter(Simple, Relational):
    """Keep the rows for which the predicate is true."""

    VERB: ClassVar[str] = "filter"
    source: Node
    predicate: Expr

    def __post_init__(self) -> None:
        need_relation(self.VERB, self.source)
        kind = bound_type(self.VERB, self.predicate, self.source.schema())
        if not pa.types.is_boolean(kind):
            msg = f'filter: the predicate is {kind}, not bool. Compare it, for example col("x") > 0'
            raise PlanError(msg)


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
        need_new_names(self.VERB, self.names, "Name it once, or give the copy a name: .project(copy=col(...))")
        if not self.names:
            msg = f"project: no columns. Name at least one of {', '.join(have.names)}"
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
class Distinct(Simple, Relational):
    """Keep the first row of every distinct value of these columns: of the sort before it, else in relation order."""

    VERB: ClassVar[str] = "distinct"
    source: Node
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        need_relation(self.VERB, self.source)
        need_compared(self.VERB, self.names, self.source.schema())


@final
@dataclass(frozen=True, slots=True, eq=False)
class Sort(Simple, Relational):
    """Order the rows, for a following `Limit`; what is trained in which order is `Sample`'s."""

    VERB: ClassVar[str] = "sort"
    source: Node
    names: tuple[str, ...]
    descending: bool = False

    def __post_init__(self) -> None:
        need_relation(self.VERB, self.source)
        need_compared(self.VERB, self.names, self.source.schema())


@final
@dataclass(frozen=True, slots=True, eq=False)
class Limit(Simple, Relational):
    """Keep the first ``count`` rows: of the sort before it, else in relation order."""

    VERB: ClassVar[str] = "limit"
    source: Node
    count: int

    def __post_init__(self) -> None:
        need_relation(self.VERB, self.source)
        need_integer(self.VERB, "count", self.count, least=1)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Sql(Relational):
    """A query in DuckDB's dialect over relations of the catalog."""

    VERB: ClassVar[str] = "sql"
    text: str
    relations: tuple[str, ...]
    columns: pa.Schema
    floats: tuple[str, ...] = ()  # columns that the text reads and that may hold NaN, as relation.column; for people
    unsteady: tuple[str, ...] = ()  # functions and clauses of the text that give other rows on another run

    def schema(self) -> pa.Schema:
        return self.columns


@final
@dataclass(frozen=True, slots=True, eq=False)
class Cache(Simple, Relational):
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
            if semantic == BYTES_REF or (is_list(have.field(name).type) and semantic != JPEG_REF):
                what = f"{have.field(name).type} of {semantic}"
                msg = f"cache: {name!r} is {what}; images, lists of images, and clips, one per row, are kept. Leave it out"
                raise PlanError(msg)
            if not isinstance(profile, Profile):
                msg = f"cache: {name!r} is given {profile!r}. Give {forms_of(semantic)}"
                raise PlanError(msg)
            if semantic != profile.SEMANTIC:
                keeps = f"{type(profile).__name__} keeps {profile.SEMANTIC}"
                msg = f"cache: {name!r} is {semantic}, and {keeps}. Give {forms_of(semantic)}"
                raise PlanError(msg)


def _texts(node: Node) -> Iterator[Sql]:
    """The SQL texts of a plan, those of right sides too."""
    for source in node.inputs():
        yield from _texts(source)
    if isinstance(node, Sql):
        yield node


@final
@dataclass(frozen=True, slots=True, eq=False)
class Sample(Simple, Sampled):
    """Put rows in order and assign them to ranks."""

    VERB: ClassVar[str] = "sample"
    source: Node
    identity: tuple[str, ...]
    order: Order
    epoch: RuntimeParam | int
    assignment: DataParallel

    def __post_init__(self) -> None:
        once = "; a plan samples once, after its relational work and before collate"
        need_after(self.VERB, self.source, Relational, once)
        need_identity(self.identity, self.source.schema())
        if not isinstance(self.order, Order):
            msg = (
                f"sample: order={shown(self.order)} is not an order. Give ShardAwareShuffle(seed=...), HashBucketed(...), "
                "GlobalShuffle(...), WindowShuffle(...), Weighted(...) or Sequential()"
            )
            raise PlanError(msg)
        need_steady_order(self.source, self.order)
        for text in _texts(self.source):
            need_steady(self.VERB, text.unsteady)
        if isinstance(self.order, ShardAwareShuffle) and (key := tuple(sorted(set(self.order.shard_key) - _FREE_KEYS))):
            need_compared("sample (shard_key)", key, self.source.schema())
        if self.order.weighted_by is not None:
            need_weights(self.order.weighted_by, self.source.schema())
        check(self, "sample", assignment=of_kind(DataParallel, "DataParallel(rank=..., world_size=...)"))
        if not isinstance(self.epoch, RuntimeParam):
            need_integer(self.VERB, "epoch", self.epoch, least=0, most=LAST_EPOCH)
        elif self.epoch.name != "epoch":
            msg = f'sample: epoch=RuntimeParam({self.epoch.name!r}). Give RuntimeParam("epoch") or an integer'
            raise PlanError(msg)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Collate(Simple):
    """Who shares a batch, and what the batch's fields look like."""

    VERB: ClassVar[str] = "collate"
    source: Node
    batch_size: int | None
    last: Tail
    fields: tuple[tuple[str, Field], ...]
    formation: Formation | None = None  # None: batches of a fixed count, by arithmetic
    on_error: OnError = "raise"
    error_budget: float | None = None  # not part of the fingerprint: it changes no batch
    cost: str | None = None  # of a sample: by it, optimizer steps are dealt to ranks
    balance: RowExchange | None = None  # between which batches rows are exchanged, by cost

    def __post_init__(self) -> None:
        need_after(self.VERB, self.source, Sampled, ". Call .sample(identity=..., order=...) before it, once")
        if self.batch_size is not None:
            need_integer(self.VERB, "batch_size", self.batch_size, least=1, most=2**31 - 1)
        elif self.formation is None:
            msg = (
                "collate: batch_size=None needs a formation that bounds a batch. Give "
                "formation=WindowedBucket(..., budget=BatchBudget(max_tokens=...)), or a batch_size"
            )
            raise PlanError(msg)
        have = self.source.schema()
        check_fields(self.fields, have)
        check_padded(self.last, self.formation, self.fields, have)
        check_formation(self.formation, self.batch_size, self.fields, have)
        warn_of_fields_drawn_alike(self.fields)
        check_on_error(self.on_error, self.error_budget, self.formation, self.source)
        blanks = isinstance(self.last, PadPartial) and self.last.blanks
        check_rows_of_all(self.fields, self.formation, skips=self.on_error != "raise", blanks=blanks)
        if self.cost is not None:
            check_number("collate", "cost", self.cost, have)
        check_balance(self.balance, self.cost, self.formation)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Deliver(Simple):
    """Deliver batches: the framework, how far ahead, the device. Not part of the fingerprint."""

    VERB: ClassVar[str] = "deliver"
    source: Node
    framework: Literal["torch", "numpy", "jax", "arrow"]
    prefetch: int = 2
    device: str | None = None

    def __post_init__(self) -> None:
        before = "; a stream needs .sample(...) and .collate(...) before it"
        need_after(f"to_{self.framework}", self.source, Collate, before)
        need_integer(f"to_{self.framework}", "prefetch", self.prefetch, least=1, most=2**20)
        if self.device is not None:
            object.__setattr__(self, "device", device_name(f"to_{self.framework}: device", self.device))
