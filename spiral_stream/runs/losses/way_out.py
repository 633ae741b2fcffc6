"""How a run goes on without samples or batches, and how rows are left out for good: as calls to copy, and as arguments.

`stream.skip` leaves them out of a run that stands before them. A filter of the relation leaves them out of every run.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, final

import pyarrow as pa

from spiral_stream.display.wording import one_line
from spiral_stream.expr import Expr, col
from spiral_stream.runs.losses.table_query import STREAM, Sources

_LINE: Final = 2_000  # characters of a call
SHARD: Final = "storage_shard"


@final
@dataclass(frozen=True, slots=True)
class Skip:
    """Arguments of `PreparedStream.skip`.

    Examples:
        >>> skip = spiral.results.Skip({"batches": [3, 4, 5], "epoch": 1})
        >>> print(skip)
        stream.skip(batches=range(3, 6), epoch=1)
        >>> stream.skip(**skip.arguments)
    """

    arguments: Mapping[str, Any]

    def __str__(self) -> str:
        given = ", ".join(f"{name}={_listed(value)}" for name, value in self.arguments.items())
        return f"stream.skip({given})"


@final
@dataclass(frozen=True, slots=True, eq=False)
class Without:
    """The rows of one relation that a filter leaves out.

    Attributes:
        relation: its name.
        condition: for `Relation.filter`.
        text: the same as Python.

    Examples:
        >>> without = spiral.results.Without("photos", col("label") != 2, "col('label') != 2")
        >>> print(without)
        catalog.table('photos').filter(col('label') != 2)
        >>> catalog.table(without.relation).filter(without.condition).count()
        32
    """

    relation: str
    condition: Expr
    text: str

    def __str__(self) -> str:
        return f"catalog.table({self.relation!r}).filter({self.text})"


def skip_of_samples(table: pa.Table, identity: Sequence[str], *, mixed: bool) -> Skip | None:
    """Return the skip of samples.

    Args:
        table: a row per sample, with `STREAM` and the identity columns.
        identity: the names of these columns.
        mixed: whether identities begin with the stream's name.
    """
    named = []
    for row in table.select([STREAM, *identity]).to_pylist():
        values = [row[name] for name in identity if row[name] is not None]
        found = (row[STREAM], *values) if mixed else tuple(values)
        if values:
            named.append(found[0] if len(found) == 1 else found)
    return Skip({"identities": list(dict.fromkeys(named))}) if named else None


def skips_of_batches(batches: Iterable[tuple[int, int]]) -> tuple[Skip, ...]:
    """Return the skips of batches, given as (epoch, number): one for each epoch."""
    by_epoch: dict[int, list[int]] = {}
    for epoch, number in sorted(set(batches)):
        by_epoch.setdefault(epoch, []).append(number)
    return tuple(Skip({"batches": numbers, "epoch": epoch}) for epoch, numbers in by_epoch.items())


def filters_of_samples(table: pa.Table, identity: Sequence[str], sources: Sources) -> tuple[Without, ...]:
    """Return a filter for each relation that has any of the samples; arguments as for `skip_of_samples`."""
    by_relation: dict[str, list[dict[str, Any]]] = {}
    names = [sources.columns.get(name, name) for name in identity]
    columns = [table.column(name) for name in (STREAM, *identity)]
    for stream, *values in zip(*(column.to_pylist() for column in columns), strict=True):
        by_relation.setdefault(sources.relation(stream), []).append(dict(zip(names, values, strict=True)))
    found = (_filter_of(relation, rows, names) for relation, rows in sorted(by_relation.items()))
    return tuple(each for each in found if each is not None)


def filter_of_shard(relation: str, shard: str) -> Without:
    """Return the filter that leaves out a storage shard."""
    return Without(relation, col(SHARD) != shard, f"col({SHARD!r}) != {shard!r}")


def _filter_of(relation: str, rows: Sequence[Mapping[str, Any]], identity: Sequence[str]) -> Without | None:
    columns = [name for name in identity if any(row[name] is not None for row in rows)]
    if not columns:
        return None
    if len(columns) == 1:
        values = list(dict.fromkeys(row[columns[0]] for row in rows))
        text = f"~col({columns[0]!r}).is_in({_listed(values)})"
        return Without(relation, ~col(columns[0]).is_in(values), text)
    conditions, texts = list[Expr](), list[str]()
    for row in rows:
        first, *others = ((col(name) == row[name], f"(col({name!r}) == {row[name]!r})") for name in columns)
        condition, text = first
        for more, more_text in others:
            condition, text = condition & more, f"{text} & {more_text}"
        conditions.append(condition)
        texts.append(f"({text})")
    joined = conditions[0]
    for condition in conditions[1:]:
        joined = joined | condition
    return Without(relation, ~joined, f"~({' | '.join(texts)})")


def _listed(value: Any) -> str:
    """A list of numbers that follow each other as a range, anything else as Python writes it."""
    numbers = isinstance(value, list) and len(value) > 1 and all(type(each) is int for each in value)
    if numbers and all(b - a == 1 for a, b in pairwise(value)):
        return f"range({value[0]}, {value[-1] + 1})"
    return one_line(repr(value), _LINE)
