"""What each column is and holds: type, role, description, and the facts that were counted of it."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final, final

import pyarrow as pa

from spiral_stream.catalog.relation.entry import DESCRIPTION, Entry
from spiral_stream.catalog.statistics.measure import ESTIMATED, KNOWN, Statistics
from spiral_stream.display.wording import bars, counted, moment, number, share
from spiral_stream.semantic import semantic_of

_TEXT: Final = 24  # characters of a value
_NAMED: Final = 3  # frequent values of a column that are named


@final
@dataclass(frozen=True, slots=True)
class ColumnSummary:
    """A column of a relation. Facts are None where nothing was counted.

    Examples:
        >>> [each.name for each in spiral.report.report_relation(catalog, "photos").columns][:2]
        ['photo_id', 'image']
    """

    name: str
    kind: str  # the semantic type of a reference, else the Arrow type
    roles: tuple[str, ...]  # of: identity, reference, label, source, shard key
    description: str
    rows: int
    nulls: int | None = None
    nans: int | None = None
    distinct: int | None = None
    distinct_mark: str = ""  # "~ " of an estimate
    least: str = ""
    quartiles: tuple[str, ...] = ()  # estimates
    greatest: str = ""
    mean: str = ""
    histogram: str = ""  # a line of blocks, from the least value to the greatest; of texts, the most frequent first
    counts: tuple[int, ...] = ()  # of the histogram's bins
    frequent: str = ""
    numbers: tuple[tuple[str, float], ...] = ()  # what can be plotted over time, by name

    def cells(self) -> dict[str, str]:
        """Return the column as a row of a table of texts."""
        unknown = self.nulls is None
        return {
            "column": self.name,
            "type": self.kind,
            "nulls": "" if unknown else _part(self.nulls, self.rows),
            "NaN": "" if unknown else _part(self.nans, self.rows),
            "distinct": "" if self.distinct is None else f"{self.distinct_mark}{self.distinct:,}",
            "min": self.least,
            "mean": self.mean,
            "max": self.greatest,
            "quartiles": ", ".join(self.quartiles),
            "histogram": self.histogram,
            "most frequent": self.frequent,
        }


def roles_of(entry: Entry, labels: Collection[str], origins: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Return the roles of each column that has any."""
    found: dict[str, list[str]] = {name: [] for name in entry.schema.names}
    for name in entry.identity:
        found[name].append("identity")
    for field in entry.schema:
        found[field.name] += ["reference"] if semantic_of(field) is not None else []
    for role, names in (("label", labels), ("source", origins), ("shard key", [entry.shard] if entry.shard else [])):
        for name in names:
            found[name].append(role)
    return {name: tuple(roles) for name, roles in found.items() if roles}


def column_summaries(
    entry: Entry, statistics: Statistics | None, roles: dict[str, tuple[str, ...]]
) -> list[ColumnSummary]:
    """Return every column in the order of the schema, with what statistics know of it."""
    known = {} if statistics is None else {row["column"]: row for row in statistics.columns.to_pylist()}
    total = entry.manifest().total
    return [_summary(field, known.get(field.name, {}), roles.get(field.name, ()), total) for field in entry.schema]


def _summary(field: pa.Field, facts: dict[str, Any], roles: tuple[str, ...], rows: int) -> ColumnSummary:
    kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    description = (field.metadata or {}).get(DESCRIPTION, b"").decode(errors="replace")
    shown = semantic_of(field) or str(kind)
    if facts.get("mark") != KNOWN:
        return ColumnSummary(field.name, shown, roles, description, rows)
    mean = facts["mean"]
    is_moment = pa.types.is_temporal(kind)
    frequent = facts["frequent"] or ()
    counts = facts["bins"] if facts["bins"] is not None else [each["count"] for each in frequent]
    return ColumnSummary(
        name=field.name,
        kind=shown,
        roles=roles,
        description=description,
        rows=rows,
        nulls=facts["nulls"],
        nans=facts["nans"],
        distinct=facts["distinct"],
        distinct_mark=_mark(facts["distinct_mark"]),
        least=counted(facts["min"], kind, _TEXT),
        quartiles=tuple(counted(text, kind) for text in facts["quartiles"] or ()),
        greatest=counted(facts["max"], kind, _TEXT),
        mean="" if mean is None else moment(mean, whole=True) if is_moment else number(float(mean)),
        histogram=bars(counts),
        counts=tuple(counts),
        frequent=_mark(facts["frequent_mark"]) * bool(frequent)
        + ", ".join(
            f"{counted(each['value'], kind, _TEXT)} {share(each['count'], rows)}" for each in frequent[:_NAMED]
        ),
        numbers=tuple(_numbers(facts, None if is_moment else mean)),
    )


def _numbers(facts: dict[str, Any], mean: str | None) -> Iterator[tuple[str, float]]:
    for name in ("nulls", "nans", "distinct"):
        yield name, facts[name]
    if mean is not None:
        yield "mean", float(mean)


def _part(count: int | None, rows: int) -> str:
    """A count, and how much of all rows it is."""
    return "0" if not count else f"{count:,} ({share(count, rows)})"


def _mark(mark: str) -> str:
    return "~ " if mark == ESTIMATED else ""
