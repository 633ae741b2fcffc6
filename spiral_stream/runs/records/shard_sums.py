"""Batches of which several processes logged shards, put together: sums and counts of tokens are added over the shards.

A batch is complete when a part has the last of its shards; then its rows are read from the parts that have the others, and
added in the order of the shards, so the result does not depend on who wrote first. A batch that lacks a shard is in no table:
its sums would be wrong. Memory holds a part and the rows that it completes.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spiral_stream.errors import RunError
from spiral_stream.runs.records.part_rows import SUM, TOKENS

Int64 = NDArray[np.int64]
BATCH_ID: Final = ("leg", "epoch", "number")
_ORDER: Final = [(name, "ascending") for name in (*BATCH_ID, "index")]
Group = tuple[str, int]  # the attempt, and how many shards its batches have


def pieces_of(table: pa.Table) -> Iterator[tuple[int, int, int, int]]:
    """Yield the rows of a part that follow each other in one leg and epoch: first, end, leg and epoch."""
    leg, epoch = table["leg"].to_numpy(), table["epoch"].to_numpy()
    if len(table):
        borders = np.flatnonzero((leg[1:] != leg[:-1]) | (epoch[1:] != epoch[:-1])) + 1
        for first, end in zip([0, *borders.tolist()], [*borders.tolist(), len(table)], strict=True):
            yield first, end, int(leg[first]), int(epoch[first])


@final
class Numbered:
    """How many parts had a batch, by anything, leg, epoch and number."""

    def __init__(self) -> None:
        self._had: dict[tuple[object, int, int], NDArray[np.int16]] = {}

    def new(self, of: object, table: pa.Table) -> pa.Array:
        """Enter a part, and return which of its rows are of batches that no part before had."""
        return pa.array(self._entered(of, table) == 1)

    def complete(self, of: object, count: int, table: pa.Table) -> pa.Array:
        """Enter a part, and return which of its rows are of batches that so many parts have had now."""
        return pa.array(self._entered(of, table) == count)

    def known(self, of: object, table: pa.Table) -> pa.Array:
        """Return which rows are of batches that were entered."""
        numbers, out = table["number"].to_numpy(), np.zeros(len(table), np.bool_)
        for first, end, leg, epoch in pieces_of(table):
            had, found = self._had.get((of, leg, epoch), np.zeros(1, np.int16)), numbers[first:end]
            out[first:end] = had[np.minimum(found, len(had) - 1)] * (found < len(had)) > 0
        return pa.array(out)

    def _entered(self, of: object, table: pa.Table) -> NDArray[np.int16]:
        """Count the batches of a part; for each row, how many parts had its batch."""
        numbers, out = table["number"].to_numpy(), np.empty(len(table), np.int16)
        for first, end, leg, epoch in pieces_of(table):
            found = numbers[first:end]
            had = self._had.get((of, leg, epoch), np.zeros(0, np.int16))
            if len(had) <= (last := int(found.max())):
                had = np.append(had, np.zeros(2 * last + 2 - len(had), np.int16))
            begins = np.append(True, found[1:] != found[:-1])  # the rows of a batch follow each other
            had[found[begins]] = np.minimum(had[found[begins]], np.iinfo(np.int16).max - 1) + 1
            out[first:end] = had[found]
            self._had[of, leg, epoch] = had
        return out


@final
@dataclass(frozen=True, slots=True)
class _Held:
    """A part with shards that was looked at, and which batches it has: leg, epoch, first and last number."""

    shard: int
    read: Callable[[], pa.Table]
    numbers: tuple[tuple[int, int, int, int], ...]

    def may_have(self, table: pa.Table) -> bool:
        return any(
            (leg, epoch) == (a, b) and low <= last and high >= first
            for leg, epoch, low, high in _ranges(table)
            for a, b, first, last in self.numbers
        )


@final
class ShardSums:
    """Puts batches together from the parts of an attempt, whichever comes last.

    Args:
        name: of the run, for messages.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._shards = Numbered()
        self._held: dict[Group, list[_Held]] = {}

    def completed(self, group: Group, shard: int, table: pa.Table, read: Callable[[], pa.Table]) -> pa.Table:
        """Enter a part, and return its rows that are of batches of which all shards are there now.

        Args:
            group: of the part.
            shard: of the part.
            table: columns of it with `BATCH_ID`; batches that a part before had of this shard are left out.
            read: gives all of it.
        """
        found = table.filter(self._shards.complete(group, group[1], table))
        self._held.setdefault(group, []).append(_Held(shard, read, tuple(_ranges(table))))
        return found

    def summed(self, group: Group, complete: pa.Table) -> pa.Table:
        """Return the rows of complete batches, with the sums and counts of all shards.

        Raises:
            RunError: the shards of a batch hold other samples.
        """
        if not len(complete):
            return complete
        wanted, numbers, by_shard = Numbered(), Numbered(), dict[int, list[pa.Table]]()
        wanted.new(group, complete)
        for held in self._held[group]:
            if held.may_have(complete):
                rows = held.read()
                rows = rows.filter(wanted.known(group, rows))
                by_shard.setdefault(held.shard, []).append(rows.filter(numbers.new(held.shard, rows)))
        ordered = [pa.concat_tables(by_shard[k], promote_options="default").sort_by(_ORDER) for k in range(group[1])]
        same = [each for each in (*BATCH_ID, "index", "stream", "row", "part") if each in complete.column_names]
        first = ordered[0]
        for k, other in enumerate(ordered):
            if not other.select(same).equals(first.select(same)):
                msg = (
                    f"run {self._name!r}: shards 0 and {k} of its batches hold other samples. All ranks that share rows need the "
                    "same batches: bind(mesh=...) or bind(replication=...)"
                )
                raise RunError(msg)
        return added(ordered)


def added(shards: Sequence[pa.Table]) -> pa.Table:
    """Return the rows of the first of some tables that are alike, with the sums and counts of all of them.

    A value that the first one lacks is that of the next one that has it; a step was taken if all say so.
    """
    names = list(dict.fromkeys(name for each in shards for name in each.column_names))
    columns = {}
    for name in names:
        values = [each[name] for each in shards if name in each.column_names]
        stem = name.removesuffix(SUM).removesuffix(TOKENS)
        if name == "applied":
            columns[name] = reduce(pc.and_, values)
        elif name != stem and {stem + SUM, stem + TOKENS} <= set(names):
            total = reduce(pc.add, (pc.fill_null(each, 0) for each in values))
            there = reduce(pc.or_, (each.is_valid() for each in values))
            columns[name] = pc.if_else(there, total, pa.scalar(None, total.type))
        else:
            columns[name] = pc.coalesce(*values)
    return pa.table(columns)


def _ranges(table: pa.Table) -> Iterator[tuple[int, int, int, int]]:
    numbers = table["number"].to_numpy()
    for first, end, leg, epoch in pieces_of(table):
        yield leg, epoch, int(numbers[first:end].min()), int(numbers[first:end].max())
