"""`Mix`: several relations as one population, in stated proportions.

A mixture has no rows of its own: each part keeps its selection, order and place. Verbs
written after it mean the same on every part, so `per_stream` gives the plan of each
stream alone; proportions hold for the rows that pass.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fractions import Fraction
from math import isfinite
from numbers import Real
from typing import Any, ClassVar, Final, Literal, final

import pyarrow as pa

from spiral_stream.arguments import Rule, check, is_number, one_of
from spiral_stream.errors import PlanError, shown, warn
from spiral_stream.expr import Lit, kind_of, lit, parse
from spiral_stream.plan.checks import bound_type, need_integer, need_new_names
from spiral_stream.plan.nodes import Node, Project, Relational, WithColumns, need_relation
from spiral_stream.plan.tree import find, replaced
from spiral_stream.sampling.mixing.schedule import shortest_stretch

STREAM_ID: Final = "stream_id"
PATH: Final = "/"  # between the names of nested mixtures
_CLOSE: Final = 1e-9  # to 1, for proportions written in decimals
_COLUMNS: Final = one_of(("common", "all"), '"common", or "all" for nulls where a stream lacks a column')
_TEMPERATURE: Final = Rule(
    lambda value: is_number(value) and value > 0, "a number above 0: 1 keeps proportions, more evens them out"
)
_LARGEST: Final = 1e300  # an amount; a float holds no larger whole number


@final
@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One stream of a mixture: a share of the samples, or an absolute count of them."""

    name: str
    source: Node
    proportion: float | None = None
    repeat: float | None = None
    choose: int | None = None


@final
@dataclass(frozen=True, slots=True, eq=False)
class Mix(Relational):
    """The samples of several relations, with the column ``stream_id``.

    ``schedule`` holds points (sample of the run, proportion of each part), between which proportions go
    linearly; ``by`` names what proportions are of, instead of samples. With ``schedule_in="by"`` the points are at amounts of
    that as well. ``temperature`` T raises proportions, or the amounts that parts have, to the power of 1/T.
    With ``columns="all"`` a column that some parts lack is null there. ``in_turn`` lays the streams of an epoch end to end.
    """

    VERB: ClassVar[str] = "mix"
    parts: tuple[Part, ...]
    epoch_size: int | None = None
    by: str | None = None
    schedule: tuple[tuple[int, tuple[float, ...]], ...] = ()
    temperature: float | None = None
    columns: Literal["common", "all"] = "common"
    schedule_in: Literal["samples", "by"] = "samples"
    in_turn: bool = False
    _columns: pa.Schema = field(init=False, repr=False)  # of 1,000 parts it takes a while, and every verb asks

    def __post_init__(self) -> None:
        if not self.parts:
            msg = "mix: no streams. Give at least one Stream(name, relation, proportion=...)"
            raise PlanError(msg)
        need_new_names("mix (streams)", [part.name for part in self.parts], "Give each stream a name of its own")
        self._check_parts()
        check(self, "mix", columns=_COLUMNS)
        object.__setattr__(self, "_columns", self._merged())
        _check_shares(self.parts)
        self._check_temperature()
        total = sum(part.proportion or 0.0 for part in self.parts)
        if self.parts[0].proportion is not None and abs(total - 1) > _CLOSE:
            msg = f"mix: proportions sum to {total:g}, not 1; they are taken in relation to that"
            warn(msg)
        self._check_size()
        self._check_schedule()
        have = self.schema()
        if self.by is not None and kind_of(bound_type("mix (by)", parse(self.by), have)) not in ("int", "float"):
            msg = f"mix: by={shown(self.by)} is no number of a sample. Name a column of counts, such as token_count_estimate"
            raise PlanError(msg)

    def _check_parts(self) -> None:
        for part in self.parts:
            _check_name(part.name)
            need_relation(f"mix (stream {part.name!r})", part.source)
            nested = find(part.source, Mix)
            if nested is None and STREAM_ID in part.source.schema().names:
                msg = (
                    f"mix: stream {part.name!r} has a column stream_id, which mix adds. Drop or rename it with project"
                )
                raise PlanError(msg)
            if nested is not None and (self.in_turn or nested.in_turn):
                msg = (
                    f"concat: stream {part.name!r} and the whole cannot both be mixtures. Give concat relations that are none, "
                    "and do not mix what it makes"
                )
                raise PlanError(msg)
            if nested is not None and (nested.epoch_size is not None or nested.schedule):
                msg = f"mix: the mix inside stream {part.name!r} has an epoch_size or schedule; the outer one decides it. Drop it"
                raise PlanError(msg)
        if self.in_turn and self.schedule:
            msg = "concat: streams follow each other, so a schedule of shares means nothing. Use mix, or leave the schedule out"
            raise PlanError(msg)

    def _check_size(self) -> None:
        if self.epoch_size is not None:
            need_integer(self.VERB, "epoch_size", self.epoch_size, least=1)
            if self.parts[0].proportion is None and self.temperature is None:
                counted = any(part.repeat is not None or part.choose is not None for part in self.parts)
                found = " with repeat= or choose= counts" if counted else ", and no stream has a proportion"
                msg = f"mix: epoch_size{found}. Give each stream a proportion=, or drop epoch_size"
                raise PlanError(msg)

    def _check_temperature(self) -> None:
        given = self.temperature
        if given is None:
            return
        check(self, "mix", temperature=_TEMPERATURE)
        counted = any(part.repeat is not None or part.choose is not None for part in self.parts)
        if counted or self.schedule:
            found = "a schedule" if self.schedule else "repeat= or choose= counts"
            msg = f"mix: temperature changes proportions, and {found} would not follow. Leave one of them out"
            raise PlanError(msg)

    def _check_schedule(self) -> None:
        if self.schedule_in not in ("samples", "by") or (self.schedule_in == "by" and not (self.by and self.schedule)):
            msg = (
                f"mix: schedule_in={shown(self.schedule_in)}"
                f'{"" if self.by and self.schedule else " without by= and a schedule"}. Give "samples", or "by" where the '
                "schedule counts what by= names, such as tokens"
            )
            raise PlanError(msg)
        if self.schedule and self.epoch_size is None:
            msg = "mix: a schedule is of samples and needs an epoch_size. Give epoch_size=..."
            raise PlanError(msg)
        if self.schedule and self.by is not None and any(find(part.source, Mix) is not None for part in self.parts):
            msg = "mix: a schedule of by= cannot have a mix inside a stream. Name the inner streams in the outer mix"
            raise PlanError(msg)
        before = -1
        for at, shares in self.schedule:
            need_integer(self.VERB, "schedule (sample)", at, least=0)
            if at <= before:
                msg = f"mix: schedule point {at} follows {before}. List points in rising order of samples"
                raise PlanError(msg)
            if len(shares) != len(self.parts) or not all(isfinite(s) and s >= 0 for s in shares) or not sum(shares) > 0:
                msg = f"mix: schedule at sample {at} has proportions {shares}. Give one of at least 0 for each stream, not all 0"
                raise PlanError(msg)
            before = at
        for part, shares in zip(self.parts, zip(*(shares for _, shares in self.schedule), strict=True), strict=False):
            if not any(shares):
                msg = (
                    f"mix: stream {part.name!r} has proportion 0 at every point of the schedule. Give it one above 0 at "
                    "some point, or leave the stream out of the mixture"
                )
                raise PlanError(msg)

    def inputs(self) -> tuple[Node, ...]:
        return tuple(part.source for part in self.parts)

    def schema(self) -> pa.Schema:
        return self._columns

    def _merged(self) -> pa.Schema:
        """The columns that all parts have, or that any has; and the stream's name."""
        schemas = [part.source.schema() for part in self.parts]
        every = self.columns == "all"
        first = [column for schema in schemas for column in schema] if every else list(schemas[0])
        fields: dict[str, pa.Field] = {}
        for column in first:
            if column.name == STREAM_ID or column.name in fields:
                continue
            owned = [other.field(column.name) for other in schemas if column.name in other.names]
            if len(owned) < len(schemas) and not every:
                continue
            for part, other in zip(self.parts, schemas, strict=True):
                if column.name in other.names and (kind := other.field(column.name).type) != column.type:
                    msg = (
                        f"mix: column {column.name!r} is {column.type} in stream {self._first_with(column.name)!r} and "
                        f"{kind} in {part.name!r}. Cast one, or project it away in both"
                    )
                    raise PlanError(msg)
            nullable = len(owned) < len(schemas) or any(each.nullable for each in owned)
            fields[column.name] = column.with_nullable(nullable)
        if not fields:
            msg = "mix: the streams have no column in common. Project them to the same names first"
            raise PlanError(msg)
        return pa.schema([*fields.values(), pa.field(STREAM_ID, pa.utf8(), nullable=False)])

    def _first_with(self, column: str) -> str:
        return next(part.name for part in self.parts if column in part.source.schema().names)


LATER: Final[dict[str, Any]] = {
    "temperature": None,
    "columns": "common",
    "schedule_in": "samples",
    "in_turn": False,
}  # fields of later versions


def tempered(amount: Fraction, temperature: float | None) -> Fraction:
    """Return an amount to the power of 1/temperature, to 12 digits: powers differ in the last digits between machines."""
    return amount if temperature is None else Fraction(f"{float(amount) ** (1 / temperature):.12g}")


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name or PATH in name or "\0" in name:
        msg = f"mix: stream name {name!r}. Give a text without {PATH!r}, which separates the names of nested mixtures"
        raise PlanError(msg)


def _check_shares(parts: Sequence[Part]) -> None:
    shared = [part.proportion is not None for part in parts]
    if any(shared) and not all(shared):
        lacks = parts[shared.index(False)].name
        msg = f"mix: stream {lacks!r} has no proportion and others do. Give all streams one, or none"
        raise PlanError(msg)
    for part in parts:
        given = [name for name in ("proportion", "repeat", "choose") if getattr(part, name) is not None]
        if len(given) > 1:
            msg = f"mix: stream {part.name!r} has {' and '.join(given)}. Give one of them"
            raise PlanError(msg)
        for name in given:
            value = getattr(part, name)
            number = isinstance(value, int if name == "choose" else int | float) and not isinstance(value, bool)
            if not number or value <= 0 or value > _LARGEST or not isfinite(value):
                msg = (
                    f"mix: stream {part.name!r}: {name}={shown(value)}. Give a {'whole ' if name == 'choose' else ''}number "
                    "above 0, or leave the stream out of the mixture"
                )
                raise PlanError(msg)


def per_stream(node: Node) -> list[tuple[str, Node]]:
    """Return the plan of each stream alone, in the mixture's order.

    Returns:
        (stream name, plan); one pair with the name "" where nothing is mixed.
    """
    mix = find(node, Mix)
    if mix is None:
        return [("", node)]
    names = tuple(mix.schema().names)
    out: list[tuple[str, Node]] = []
    for part in mix.parts:
        for inner, source in per_stream(part.source):
            name = f"{part.name}{PATH}{inner}" if inner else part.name
            have = source.schema()
            lacking = [field for field in mix.schema() if field.name not in have.names and field.name != STREAM_ID]
            columns = (STREAM_ID, *(field.name for field in lacking))
            values = (lit(name), *(Lit(None, field.type) for field in lacking))
            tagged = Project(WithColumns(source, columns, values), names)
            out.append((name, replaced(node, mix, tagged)))
    return out


def stretch_of(mix: Mix) -> int | None:
    """The fewest samples in which the schedule goes from one share to another; None without one, or where shares stay."""
    points = [(at, [Fraction(repr(share)) for share in shares]) for at, shares in mix.schedule]
    return shortest_stretch(points) if points else None


_UNITS: Final = {"k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}


def parsed_count(where: str, value: object) -> int | None:
    """Return a count that may be written for people: ``64_000_000``, ``"64M"``, ``"1.5b"``.

    Raises:
        PlanError: it is neither, or no whole number.
    """
    if not isinstance(value, str):
        if value is None or (isinstance(value, int) and not isinstance(value, bool)):
            return value
    else:
        text = value.strip().lower().replace("_", "").replace(",", "")
        unit = _UNITS.get(text[-1:], 1)
        with suppress(ValueError, ZeroDivisionError):
            found = Fraction(text[:-1] if unit > 1 else text) * unit
            if found.denominator == 1:
                return int(found)
    msg = f'{where}={shown(value)}. Give a whole number, or one with a unit: "100k", "64M", "10b", "2t"'
    raise PlanError(msg)


_SCHEDULE: Final = '{0: {"web": 0.9, "code": 0.1}, 1_000: {...}}'


def schedule_points(
    schedule: Mapping[int, Mapping[str, float]] | None, names: Sequence[str], samples_per_step: int
) -> tuple[tuple[int, tuple[float, ...]], ...]:
    """A schedule by step as the plan holds it: by sample, one proportion a stream; a name that is left out has 0.

    Raises:
        PlanError: it is no mapping of mappings, a name is no stream's, or a proportion no number.
    """
    need_integer("mix", "samples_per_step", samples_per_step, least=1)
    if schedule is not None and not isinstance(schedule, Mapping):
        msg = f"mix: schedule is a {type(schedule).__name__}. Give a dict of step -> proportions: {_SCHEDULE}"
        raise PlanError(msg)
    out = []
    for step, shares in (schedule or {}).items():
        if not isinstance(shares, Mapping):
            msg = f"mix: schedule at step {shown(step)} is {shown(shares)}. Give a dict of stream -> proportion: {_SCHEDULE}"
            raise PlanError(msg)
        for name, share in shares.items():
            if isinstance(share, bool) or not isinstance(share, Real):
                msg = f"mix: schedule at step {shown(step)}: {name!r} has {share!r}. Give a number of at least 0"
                raise PlanError(msg)
        unknown = [name for name in shares if name not in names]
        if unknown:
            msg = f"mix: schedule at step {step} names {unknown[0]!r}; the streams are {', '.join(map(repr, names))}"
            raise PlanError(msg)
        need_integer("mix", "schedule (step)", step, least=0)
        out.append((step * samples_per_step, tuple(float(shares.get(name, 0.0)) for name in names)))
    return tuple(out)
