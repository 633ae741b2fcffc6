"""The verbs that bring rows together: joins, groups and unions, as frozen values (see `plan.nodes`)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Literal, final, get_args

import pyarrow as pa

from spiral_stream.errors import PlanError, shown
from spiral_stream.expr import kind_of
from spiral_stream.plan.checks import column_names, need_columns, need_compared, need_like_keys, need_new_names
from spiral_stream.plan.nodes import Node, Relational, need_relation

_SHARD: Final = "storage_shard"
JoinHow = Literal["inner", "left", "semi", "anti"]


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
            msg = f"join: {len(self.left_on)} left keys and {len(self.right_on)} right keys. Give the same number, at least one"
            raise PlanError(msg)
        need_relation(self.VERB, self.source)
        need_relation("join (right side)", self.right)
        left, right = self.source.schema(), self.right.schema()
        need_columns("join (left side)", self.left_on, left)
        need_columns("join (right side)", self.right_on, right)
        for ours, theirs in zip(self.left_on, self.right_on, strict=True):
            need_like_keys(left.field(ours), right.field(theirs))
        names = [*left.names, *(ours for ours, _ in self._taken())]
        need_new_names(self.VERB, names, "Give another suffix=..., or project one side first")

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


JoinRule = Literal["one_to_one", "one_to_many", "many_to_one", "many_to_many", "1:1", "1:m", "m:1", "m:m"]


def join_rule(validate: object) -> tuple[bool, bool]:
    """Return whether the keys of the left and of the right side of a join are to be unique.

    Args:
        validate: the word of pandas for it.

    Raises:
        PlanError: it is another one.
    """
    words = [word for word in get_args(JoinRule) if "_" in word]
    short = dict(zip((word for word in get_args(JoinRule) if ":" in word), words, strict=True))
    word = short.get(validate, validate) if isinstance(validate, str) else validate
    if word not in words:
        named = ", ".join(f'"{name}" or "{other}"' for other, name in short.items())
        msg = f"join: validate={shown(validate)} is unknown. Give {named}, which checks nothing"
        raise PlanError(msg)
    left, _, right = str(word).split("_")
    return left == "one", right == "one"


def join_keys(names: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the key columns of one side of a join.

    Raises:
        PlanError: there are none.
    """
    if names is None:
        msg = "join: no keys. Give on=..., or left_on=... and right_on=..."
        raise PlanError(msg)
    return column_names(names)


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
        _need_unmixed(self.VERB, self.source)
        have = self.source.schema()
        if self.keys:
            need_compared("group_by", self.keys, have)
        if not self.measures:
            msg = 'aggregate: nothing to measure. Give name=(column, function), for example n=("sample_id", "count")'
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
        need_new_names(self.VERB, names, "Give the measure another name")

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


def measure_triples(measures: Mapping[str, tuple[str, str]]) -> tuple[tuple[str, str, str], ...]:
    """Return measures as `Aggregate` holds them, from name -> (column, function).

    Raises:
        PlanError: one is not a pair.
    """
    for name, each in measures.items():
        if not (isinstance(each, tuple) and len(each) == 2):  # noqa: PLR2004  column and function
            example = f'{name}=("x", "sum"); rows are ("x", "count") of a column x without nulls'
            msg = f"aggregate ({name}): {each!r}. Give (column, function), for example {example}"
            raise PlanError(msg)
    return tuple((column, function, name) for name, (column, function) in measures.items())


@final
@dataclass(frozen=True, slots=True, eq=False)
class Union(Relational):
    """The rows of several relations with the same columns, one after the other."""

    VERB: ClassVar[str] = "union"
    parts: tuple[Node, ...]

    def __post_init__(self) -> None:
        for part in self.parts:
            need_relation(self.VERB, part)
            _need_unmixed(self.VERB, part)
        first = self.parts[0].schema()
        for part in self.parts[1:]:
            other = part.schema()
            if other.names != first.names or other.types != first.types:
                raise PlanError(_unlike(first, other))

    def inputs(self) -> tuple[Node, ...]:
        return self.parts

    def schema(self) -> pa.Schema:
        first, *others = [part.schema() for part in self.parts]
        fields = [f.with_nullable(f.nullable or any(o.field(f.name).nullable for o in others)) for f in first]
        return pa.schema(fields)


def _need_unmixed(verb: str, node: Node) -> None:
    """Refuse rows of a mixture, which has none of its own: how often each comes is decided epoch by epoch."""
    if node.VERB == "mix":
        msg = (
            f"{verb}: its input is a mixture, which has no rows of its own. Write {verb} inside the streams, before mix"
        )
        raise PlanError(msg)
    for each in node.inputs()[:1]:
        _need_unmixed(verb, each)


def _unlike(first: pa.Schema, other: pa.Schema) -> str:
    """Say which columns of two parts of a union differ, and how to make them alike."""
    ours, theirs = (dict(zip(schema.names, schema.types, strict=True)) for schema in (first, other))
    found = [f"{name} {kind} against {theirs[name]}" for name, kind in ours.items() if theirs.get(name, kind) != kind]
    for whose, here, there in (("first", ours, theirs), ("second", theirs, ours)):
        extra = [f"{name} {kind}" for name, kind in here.items() if name not in there]
        found += [f"the {whose} alone has {', '.join(extra)}"] if extra else []
    if not found:
        orders = " against ".join(", ".join(names) for names in (first.names, other.names))
        return f"union: columns differ: their order: {orders}. Project both alike"
    return f"union: columns differ: {'; '.join(found)}. Project both alike, and change types with with_columns and cast"
