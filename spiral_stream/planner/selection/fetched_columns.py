"""Fetch columns of selected rows late: which relation each comes from, and its values.

Every column that a relational spine leaves is an expression over *leaves*: columns
of the base relation by name, and columns of the k-th joined relation by `right_leaf`.
Reading a batch fetches the leaves it needs by row address, in one call per relation,
and computes the rest.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Protocol, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.dialects.numpy import to_column
from spiral_stream.expr import Alias, Call, Cast, Col, Expr, Lit, lit
from spiral_stream.sources.arrow.table import MemoryReader
from spiral_stream.sources.source import Unit

UInt64 = NDArray[np.uint64]
Read = Any  # pa.Array, pa.ChunkedArray or Ragged; pyarrow ships no types

_OF_RIGHT: Final = "\0"  # in no column's name, unlike ":" or "."


class Fetchable(Protocol):
    """Something whose rows can be fetched by ordinal: an open relation, or a table in memory."""

    schema: pa.Schema

    def fetch(self, ordinals: UInt64, columns: Sequence[str]) -> pa.Table:
        """Return rows in the order asked."""
        ...


class Readable(Fetchable, Protocol):
    """Something whose rows can be read column by column too, lists as addresses."""

    def read(self, ordinals: UInt64, columns: Sequence[str], ragged: AbstractSet[str]) -> "dict[str, Read]":
        """Return rows in the order asked."""
        ...


@final
class FetchedColumns:
    """A `Readable` of something that gives tables only."""

    def __init__(self, source: Fetchable) -> None:
        self._source, self.schema = source, source.schema

    def fetch(self, ordinals: UInt64, columns: Sequence[str]) -> pa.Table:
        return self._source.fetch(ordinals, columns)

    def read(self, ordinals: UInt64, columns: Sequence[str], ragged: AbstractSet[str]) -> "dict[str, Read]":  # noqa: ARG002  there are none
        return dict(zip(columns, self._source.fetch(ordinals, columns).columns, strict=True))


def right_leaf(k: int, name: str) -> str:
    """Return the leaf name of a column of the k-th joined relation."""
    return f"{k}{_OF_RIGHT}{name}"


def leaf_of(leaf: str) -> tuple[int | None, str]:
    """Return the joined relation that a leaf belongs to (None: the base), and the column's name there."""
    k, joined, name = leaf.partition(_OF_RIGHT)
    return (int(k), name) if joined else (None, leaf)


def substitute(expr: Expr, env: Mapping[str, Expr]) -> Expr:
    """Return the bound expression with each column replaced by what it stands for, and constants computed."""
    if isinstance(expr, Col):
        return env[expr.name]
    if isinstance(expr, Call):
        args = tuple([substitute(arg, env) for arg in expr.args])
        first, computed = args[0], Call(expr.op, args)
        return _constant(computed, first) if all(isinstance(arg, Lit) for arg in args) else computed
    if isinstance(expr, Cast):
        source = substitute(expr.source, env)
        return _constant(Cast(source, expr.type), source) if isinstance(source, Lit) else Cast(source, expr.type)
    if isinstance(expr, Alias):
        return substitute(expr.source, env)
    assert isinstance(expr, Lit), expr
    return expr


def _constant(expr: Call | Cast, first: Expr) -> Lit:
    """The value of an expression of constants: computed on one row, since constants alone cannot be bound."""
    assert isinstance(first, Lit)
    one = {"c": pa.array([first.value], first.type)}
    rest = Cast(Col("c"), expr.type) if isinstance(expr, Cast) else Call(expr.op, (Col("c"), *expr.args[1:]))
    column = to_column(rest, one, 1)
    value = lit(column[0])
    assert isinstance(value, Lit)
    return Lit(value.value, column.type)


def compute(expr: Expr, leaves: Mapping[str, pa.ChunkedArray], kind: pa.DataType, rows: int) -> pa.ChunkedArray:
    """Evaluate an expression over ``rows`` fetched leaves, as a column of type ``kind``; null where it has no value."""
    if isinstance(expr, Col):
        return leaves[expr.name]
    needed = {name: leaves[name] for name in expr.columns()}
    return pa.chunked_array([to_column(expr, needed, rows).cast(kind)])


def in_memory(table: pa.Table) -> MemoryReader:
    """Return a table as something to scan and fetch from; its row ordinals are its rows."""
    return MemoryReader(table, [Unit("table", len(table), table.nbytes, "", (len(table),))], ".")


@final
@dataclass(frozen=True, slots=True, eq=False)
class Right:
    """A joined relation, and which of its rows matches each surviving row."""

    rows: Fetchable
    index: Callable[[UInt64], NDArray[np.int64]]  # surviving row -> right ordinal, -1 for a left join's miss


@final
class Columns:
    """Reads columns of surviving rows."""

    def __init__(
        self,
        base: Readable,
        ordinals: Callable[[UInt64], UInt64],
        rights: Sequence[Right],
        env: Mapping[str, Expr],
        schema: pa.Schema,
    ) -> None:
        self._base = base
        self.ordinals = ordinals
        self._rights = rights
        self.env = env
        self.schema = schema

    @cached_property
    def shared(self) -> Hashable | None:
        """What selections of one relation have in common that differ in their rows only; None where others are joined."""
        return None if self._rights else (id(self._base), tuple([(k, str(value)) for k, value in self.env.items()]))

    def fetch(self, rows: UInt64, names: Sequence[str]) -> pa.Table:
        """Return columns of the plan for surviving rows.

        Args:
            rows: shape [P], uint64: which surviving rows, in any order.
            names: columns that the plan leaves.
        """
        found = self.read(rows, names)
        return pa.table([found[name] for name in names], names=list(names))

    def read(self, rows: UInt64, names: Sequence[str], ragged: AbstractSet[str] = frozenset()) -> dict[str, Read]:
        """Return columns of the plan for surviving rows, one by one.

        Args:
            rows: shape [P], uint64: which surviving rows, in any order.
            names: columns that the plan leaves.
            ragged: those of them that are wanted as addresses, where their leaf is a kept column of lists.
        """
        return self._read(self.ordinals(rows), rows, names, ragged)

    def read_at(
        self, ordinals: UInt64, names: Sequence[str], ragged: AbstractSet[str] = frozenset()
    ) -> dict[str, Read]:
        """Return columns by rows of the base, where no other relation is joined; see `read`."""
        assert self.shared is not None
        return self._read(ordinals, ordinals, names, ragged)

    def computed(self, rows: UInt64, leaves: pa.Table, names: Sequence[str]) -> pa.Table:
        """Return columns of the plan for surviving rows whose leaves of the base are at hand.

        Args:
            rows: shape [P], uint64: which surviving rows.
            leaves: those columns of the base, for the same rows.
            names: columns that the plan leaves.
        """
        held = FetchedColumns(in_memory(leaves))
        at = np.arange(len(rows), dtype=np.uint64)
        return Columns(held, lambda _: at, self._rights, self.env, self.schema).fetch(rows, names)

    def _read(self, ordinals: UInt64, rows: UInt64, names: Sequence[str], ragged: AbstractSet[str]) -> dict[str, Read]:
        copied = {name: expr.name for name in names if isinstance(expr := self.env[name], Col)}
        computed = [name for name in names if name not in copied]
        inside = {leaf for name in computed for leaf in self.env[name].columns()}
        wanted = sorted({*copied.values(), *inside})
        addresses = {copied[name] for name in names if name in ragged and name in copied} - inside
        addresses -= {leaf for name, leaf in copied.items() if name not in ragged}
        leaves: dict[str, Any] = {}
        base_leaves = [leaf for leaf in wanted if leaf_of(leaf)[0] is None]
        if base_leaves:
            leaves.update(self._base.read(ordinals, base_leaves, addresses))
        for k, right in enumerate(self._rights):
            theirs = [leaf for leaf in wanted if leaf_of(leaf)[0] == k]
            if theirs:
                leaves.update(_fetch_right(right, rows, theirs))
        out: dict[str, Read] = {name: leaves[leaf] for name, leaf in copied.items()}
        for name in computed:
            out[name] = compute(self.env[name], leaves, self.schema.field(name).type, len(rows))
        return out


def _fetch_right(right: Right, rows: UInt64, leaves: Sequence[str]) -> dict[str, pa.ChunkedArray]:
    names = [leaf_of(leaf)[1] for leaf in leaves]
    index = right.index(rows)
    missed = index < 0
    if missed.all():
        kinds = [right.rows.schema.field(name).type for name in names]
        return {leaf: pa.chunked_array([pa.nulls(len(index), kind)]) for leaf, kind in zip(leaves, kinds, strict=True)}
    table = right.rows.fetch(np.where(missed, 0, index).astype(np.uint64), names)
    if missed.any():
        mask = pa.array(np.where(missed, -1, np.arange(len(index))), mask=missed)
        table = table.take(mask)
    return dict(zip(leaves, table.columns, strict=True))
