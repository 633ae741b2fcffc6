"""Which map makes which column of a sample, and what each column is computed from.

Maps may replace a column, so a name alone does not say which column is meant. A `Key` does: it names the column and
who makes it. `Lineage` answers every question about keys from the plan alone; `runtime.columns.samples` computes the columns.

Maps are numbered from 0, the first after ``sample``. "Upto n" means: for what comes after the first n maps.
"""

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final, Protocol, final

import pyarrow as pa

from spiral_stream.expr import Alias, Call, Cast, Col, Expr
from spiral_stream.plan.functions.cached_functions import function_of, made_by
from spiral_stream.plan.nodes import Sampled
from spiral_stream.plan.verbs.maps import (
    SampleAssembly,
    SampleColumns,
    SampleFilter,
    SampleFlatMap,
    SampleMap,
    SampleRecords,
    SampleTokens,
)

MASK: Final = "\0keeps"  # what a kept filter answered; no column begins with NUL
REFUSED: Final = "\0refused"  # why a kept map refuses a sample
LISTS: Final = "\0lists"  # what a kept flat_map gave
_LENGTH: Final = "\0len "  # before the name of a list column whose lengths stand for it; no column begins with NUL

CALLING: Final = SampleMap | SampleRecords | SampleFlatMap | SampleAssembly  # maps that always call a function


@final
@dataclass(frozen=True, slots=True)
class Stored:
    """A column of the relational part."""

    name: str


@final
@dataclass(frozen=True, slots=True)
class Lengths:
    """The lengths of a stored list column, as an integer column: the lists themselves are not read."""

    name: str


@final
@dataclass(frozen=True, slots=True)
class Made:
    """The column of this name that map ``at`` makes."""

    name: str
    at: int


@final
@dataclass(frozen=True, slots=True)
class Refusal:
    """Why map ``at`` cannot be made for a sample, as a column of text; null where it can."""

    at: int


Key = Stored | Lengths | Made | Refusal


class MappedStages(Protocol):
    """What lineage asks of a stage list (`planner.stages.Stages`)."""

    @property
    def maps(self) -> Sequence[Sampled]:
        """The maps, in order."""
        ...

    @property
    def cached(self) -> frozenset[Made]:
        """The columns whose values are kept."""
        ...

    @property
    def identity(self) -> tuple[str, ...]:
        """The columns that identify a sample."""
        ...

    @property
    def columns(self) -> tuple[str, ...]:
        """The small columns that every batch reads."""
        ...

    @property
    def tokens(self) -> Sequence[Any]:
        """The columns of tokens."""
        ...

    @property
    def sequences(self) -> Sequence[Any]:
        """The fields of sequences."""
        ...

    @property
    def streams(self) -> Sequence[Any]:
        """The streams."""
        ...


@final
class Lineage:
    """Which column each name means, and what it is computed from.

    Args:
        maps: the plan's maps, in order.
        stored: the columns of the relational part.
        fetched: numbers of the tokenizing maps whose text is a stored column, so that their tokens are fetched by address.
        cached: columns that maps make and whose values are kept, so that they are read.
    """

    def __init__(
        self, maps: Sequence[Sampled], stored: pa.Schema, fetched: Iterable[int] = (), cached: Iterable[Made] = ()
    ) -> None:
        self._maps = tuple(maps)
        self._stored = stored
        self._fetched, self.cached = frozenset(fetched), frozenset(cached)
        self.end = len(self._maps)

    @classmethod
    def of(cls, stages: MappedStages) -> "Lineage":
        """The lineage of a stream's maps."""
        tokenizing = [at for at, step in enumerate(stages.maps) if isinstance(step, SampleTokens)]
        fetched = [at for at, stage in zip(tokenizing, stages.tokens, strict=True) if stage.caches]
        return cls(stages.maps, stages.streams[0].node.schema(), fetched, stages.cached)

    def key(self, name: str, upto: int) -> Stored | Made:
        """The column that a name means after the first ``upto`` maps: the last one made so far, else the stored one."""
        for at in range(upto - 1, -1, -1):
            if name in made_by(self._maps[at]):
                return Made(name, at)
        return Stored(name)

    def keys(self, names: Iterable[str], upto: int) -> list[Stored | Made]:
        """`key` for several names."""
        return [self.key(name, upto) for name in names]

    def length_key(self, name: str, upto: int | None = None) -> Stored | Made | Lengths:
        """The column that gives a sequence column's lengths: its tokens, or the stored lengths of a stored list.

        After all maps if ``upto`` is not given.
        """
        found = self.key(name, self.end if upto is None else upto)
        if isinstance(found, Stored) and pa.types.is_list(self._stored.field(name).type):
            return Lengths(name)
        return found

    def expression_keys(self, expr: Expr, upto: int) -> list[Stored | Made | Lengths]:
        """The columns that an expression reads after ``upto`` maps, by name; of stored lists it reads the lengths only."""
        return [self.length_key(name, upto) for name in sorted(expr.columns())]

    def test_keys(self, step: SampleFilter, at: int) -> Sequence[Key]:
        """The columns that a filter, map number ``at``, reads."""
        if Made(MASK, at) in self.cached:
            return [Made(MASK, at)]
        if isinstance(step.predicate, Expr):
            return self.expression_keys(step.predicate, at)
        return self.keys(step.predicate.columns, at)

    def inputs(self, key: Key) -> Sequence[Key]:
        """The columns that a column is computed from; empty if it is read, or made together with the samples."""
        if not isinstance(key, Made) or key in self.cached:
            return []
        step, at = self._maps[key.at], key.at
        if isinstance(step, SampleTokens):
            return [] if at in self._fetched else self.keys(step.transform.columns, at)
        if isinstance(step, SampleColumns):
            return self.expression_keys(step.exprs[step.names.index(key.name)], at)
        if isinstance(step, SampleMap | SampleRecords):
            return self.keys(step.function.columns, at)
        assert isinstance(step, SampleFlatMap | SampleAssembly), step
        return []

    def rests_on(self, keys: Iterable[Key]) -> set[Key]:
        """These columns and all that they are computed from."""
        return set(self.missing(keys, {}))

    def missing(self, keys: Iterable[Key], have: Container[Key]) -> list[Key]:
        """These columns and what they are computed from, without those that exist and what only those need.

        Args:
            keys: the columns asked for.
            have: the columns that exist.
        """
        found: dict[Key, None] = {}
        todo = [key for key in keys if key not in have]
        while todo:
            key = todo.pop()
            if key not in found:
                found[key] = None
                todo += [each for each in self.inputs(key) if each not in have]
        return list(found)

    def sequences_only(self, stages: MappedStages) -> frozenset[str]:
        """Return the stored columns that nothing but fields of sequences reads: addresses of their lists are enough."""
        keys = [self.key(name, self.end) for stage in stages.sequences for name in stage.field.columns]
        read = {*stages.columns, *(name for step in self._maps for name in _given(step))}
        return frozenset({key.name for key in keys if isinstance(key, Stored)} - read)

    @property
    def measured_only(self) -> frozenset[int]:
        """The maps whose tokens are fetched by address and given to no function: lengths are all that decides."""
        given = {self.key(name, at) for at, step in enumerate(self._maps) for name in _given(step)}
        made = {at: made_by(self._maps[at]) for at in self._fetched}
        return frozenset(at for at, names in made.items() if not any(Made(name, at) in given for name in names))

    def fan_out(self, start: int) -> int:
        """How many samples one sample can become by the maps from ``start`` on."""
        return prod(step.fan_out for step in self._maps[start:] if isinstance(step, SampleFlatMap))

    def same_before(self, at: int) -> int:
        """How many maps before map ``at`` call a function of the same name."""
        name = _function_name(self._maps[at])
        return sum(name is not None and _function_name(each) == name for each in self._maps[:at])


def identity_keys(stages: MappedStages, upto: int | None = None) -> list[Stored | Made]:
    """The columns that identify a sample after ``upto`` maps: the relation's, or those that an assembler gave it."""
    assemblies = [at for at, step in enumerate(stages.maps[:upto]) if isinstance(step, SampleAssembly)]
    return [Made(name, assemblies[-1]) if assemblies else Stored(name) for name in stages.identity]


def length_column(name: str) -> str:
    """The name of the column of lengths that `with_lengths` puts in place of a list column."""
    return _LENGTH + name


def with_lengths(expr: Expr, lists: set[str]) -> Expr:
    """The expression with ``len(tokens)`` replaced by a column of lengths, for each column in ``lists``."""
    if isinstance(expr, Call):
        first = expr.args[0]
        if expr.op == "len" and isinstance(first, Col) and first.name in lists:
            return Col(length_column(first.name))
        return Call(expr.op, tuple(with_lengths(arg, lists) for arg in expr.args))
    if isinstance(expr, Cast):
        return Cast(with_lengths(expr.source, lists), expr.type)
    return with_lengths(expr.source, lists) if isinstance(expr, Alias) else expr


def _given(step: Sampled) -> tuple[str, ...]:
    """The columns that a step's function is given."""
    function = function_of(step)
    return () if function is None else function.columns


def _function_name(step: Sampled) -> str | None:
    if isinstance(step, SampleMap | SampleRecords | SampleFlatMap):
        return step.function.name
    return step.predicate.name if isinstance(step, SampleFilter) and not isinstance(step.predicate, Expr) else None
