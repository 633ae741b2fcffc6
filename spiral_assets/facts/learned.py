"""Limits that are learned from the last registrations: the median of each value, and how far it usually is from it.

A limit is the median plus and minus some spreads. A spread is 1.4826 times the median distance to the median, which is the
standard deviation of a normal distribution, and up to half of the registrations may be wild without moving it. Few registrations
tell a spread badly, so it is widened by 1 + 6 / n: of values that are normal, 6 in 1,000 are outside 5 spreads after 8
registrations, and 1 in 1,000 after 20 (drawn 200,000 times). A value that never moved has the least spread of its kind, so
that one row more is no alarm.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from statistics import median
from typing import Final, Literal, final, get_args

import dagster as dg

Kind = Literal["rows", "nulls", "labels", "lengths", "sizes", "drift"]
Severity = Literal["warn", "error"]
Values = Mapping[str, Mapping[str, float]]  # kind -> name of a value -> the value

# Kind -> the least spread, as a share of the median, and as it is.
LEAST: Final[Mapping[str, tuple[float, float]]] = {
    "rows": (0.01, 1.0),
    "nulls": (0.01, 0.001),
    "labels": (0.01, 0.002),
    "lengths": (0.01, 0.1),
    "sizes": (0.02, 0.5),
    "drift": (0.02, 0.002),
}
_NORMAL: Final = 1.4826  # standard deviations of a normal distribution per median distance
_WIDENING: Final = 6


@final
@dataclass(frozen=True)
class Learned:
    """Limits that the check ``values_are_as_before`` learns from the last registrations of a relation.

    Attributes:
        of: what is looked at: ``rows``, ``nulls`` (shares of null and NaN), ``labels`` (shares of each label), ``lengths``
            (mean bytes of texts), ``sizes`` (mean width and height of 64 drawn images) and ``drift`` (means of numbers, and how
            labels are spread over shards and time).
        last: registrations that limits are learned from.
        observe: with fewer registrations than these, nothing is an alarm.
        spreads: how far from the median a value may be.
        severity: ``warn``, or ``error``, which stops what is built on the relation's statistics; or one by kind: ``{"rows":
            "error"}``, others warn.

    Examples:
        >>> from spiral_assets.assets import Learned, Limits, relation_assets
        >>> source = {"kind": "parquet", "path": "photos.parquet"}
        >>> limits = Limits(learned=Learned(last=30, severity={"rows": "error"}))
        >>> made = relation_assets("shop.photos", source, limits=limits)
        >>> sorted(key.name for asset in made.assets for key in asset.check_keys)
        ['values_are_as_before']
    """

    of: Sequence[Kind] = get_args(Kind)
    last: int = 20
    observe: int = 8
    spreads: float = 5.0
    severity: Severity | Mapping[str, Severity] = "warn"

    def __post_init__(self) -> None:
        unknown = [each for each in (*self.of, *self._severities()) if each not in LEAST]
        if unknown:
            msg = f"learned limits: {unknown[0]!r} is none of {', '.join(LEAST)}. Correct it"
            raise dg.DagsterInvalidDefinitionError(msg)
        if not 1 <= self.observe <= self.last:
            msg = f"learned limits: observe={self.observe}, last={self.last}. Give observe from 1 to last"
            raise dg.DagsterInvalidDefinitionError(msg)
        if self.spreads <= 0:
            msg = f"learned limits: spreads={self.spreads}. Give a number above 0, such as 5"
            raise dg.DagsterInvalidDefinitionError(msg)

    def blocks(self, kind: str) -> bool:
        """Whether a value of a kind that is out of its limits stops what is built on the relation.

        Args:
            kind: of value.
        """
        said = self.severity if isinstance(self.severity, str) else self.severity.get(kind, "warn")
        return said == "error"

    def _severities(self) -> Iterable[str]:
        return () if isinstance(self.severity, str) else self.severity


@final
@dataclass(frozen=True)
class Observation:
    """What was measured of one registration.

    Attributes:
        number: orders registrations; a later one has a higher number.
        data_version: of the relation.
        values: by kind and name.
    """

    number: int
    data_version: str
    values: Values = field(default_factory=dict)


@final
@dataclass(frozen=True)
class Band:
    """Limits of one value."""

    median: float
    low: float
    high: float

    def holds(self, value: float) -> bool:
        """Whether a value is within the limits."""
        return self.low <= value <= self.high


@final
@dataclass(frozen=True)
class Judged:
    """One value of the latest registration.

    Attributes:
        kind: of value.
        name: of the value.
        value: as it is.
        band: its limits; None where there are too few registrations.
        course: number of a registration, its value, and the limits that it had.
    """

    kind: str
    name: str
    value: float
    band: Band | None
    course: tuple[tuple[int, float, Band | None], ...]

    @property
    def is_far(self) -> bool:
        """Whether it is out of its limits."""
        return self.band is not None and not self.band.holds(self.value)

    @property
    def distance(self) -> float:
        """How far it is from the median, in units of the limits; above 1 it is out of them."""
        if self.band is None:
            return 0.0
        return abs(self.value - self.band.median) / (self.band.high - self.band.median)


def band_of(before: Iterable[float], kind: str, options: Learned) -> Band | None:
    """Return the limits that earlier values give; None for too few of them. Their order does not matter.

    Args:
        before: values of earlier registrations.
        kind: of value.
        options: how limits are learned.
    """
    values = [each for each in before if isfinite(each)]
    if len(values) < options.observe:
        return None
    middle = median(values)
    share, least = LEAST[kind]
    usual = _NORMAL * (1 + _WIDENING / len(values)) * median(abs(each - middle) for each in values)
    width = options.spreads * max(usual, share * abs(middle), least)
    return Band(middle, middle - width, middle + width)


def judged(observations: Iterable[Observation], options: Learned) -> list[Judged]:
    """Judge the values of the latest registration by those before it, the farthest first.

    Registrations of the same data one after the other count once. Observations may come in any order.

    Args:
        observations: of registrations, the latest among them.
        options: how limits are learned.
    """
    shown = distinct(observations)
    if not shown:
        return []
    found = [
        _judged(kind, name, shown, options)
        for kind in options.of
        for name in shown[-1].values.get(kind, {})
        if isfinite(shown[-1].values[kind][name])
    ]
    vanished = [
        _judged("labels", name, shown, options)
        for name in sorted(_names(shown[-options.last - 1 : -1]) - set(shown[-1].values.get("labels", {})))
        if "labels" in options.of and not _is_cut(shown[-1], name)
    ]
    return sorted([*found, *vanished], key=lambda one: (-one.distance, one.kind, one.name))


def distinct(observations: Iterable[Observation]) -> list[Observation]:
    """Return observations from the first registration to the last; of the same data one after the other, the last one."""
    found: list[Observation] = []
    for each in sorted(observations, key=lambda one: one.number):
        if found and found[-1].data_version == each.data_version:
            found.pop()
        found.append(each)
    return found


REST: Final = "(others)"  # of the labels of a column: those that are not named


def _names(observations: Sequence[Observation]) -> set[str]:
    return {name for each in observations for name in each.values.get("labels", {}) if not name.endswith(REST)}


def _is_cut(observation: Observation, name: str) -> bool:
    """Whether the labels of a column are not all named, so that one that is missing may be there."""
    column = name.partition("=")[0]
    shares = observation.values.get("labels", {})
    return f"{column}={REST}" in shares or not any(each.startswith(f"{column}=") for each in shares)


def _judged(kind: str, name: str, shown: Sequence[Observation], options: Learned) -> Judged:
    course: list[tuple[int, float, Band | None]] = []
    values: list[float] = []
    for at, value in _course(kind, name, shown):
        course.append((at, value, band_of(values[-options.last :], kind, options)))
        values.append(value)
    _, value, band = course[-1]
    return Judged(kind, name, value, band, tuple(course))


def _course(kind: str, name: str, shown: Sequence[Observation]) -> Iterator[tuple[int, float]]:
    """Yield place and value in each registration that has it; a label that is not there has no rows."""
    for at, each in enumerate(shown):
        value = each.values.get(kind, {}).get(name)
        if value is None and kind == "labels" and not _is_cut(each, name):
            value = 0.0
        if value is not None and isfinite(value):
            yield at, value
