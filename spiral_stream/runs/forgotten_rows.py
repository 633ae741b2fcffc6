"""The rows that a run is to forget: listed by identity, or named by a table; and which rows of a plan they are."""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.cursor import Cursor
from spiral_stream.errors import StreamError, shown
from spiral_stream.planner.stages import Stages
from spiral_stream.planner.state.skips import MOST, Skips
from spiral_stream.runs.opened_leg import OpenedLeg
from spiral_stream.runtime.numbering.random_access import found_rows
from spiral_stream.runtime.numbering.skipped import SkipRequest
from spiral_stream.runtime.numbering.skipped_tables import as_table, identities_of, is_table, matched

UInt64 = NDArray[np.uint64]


class ForgottenRows(ABC):
    """Rows that a run is to forget."""

    @abstractmethod
    def keys(self, stages: Stages) -> UInt64:
        """Return one number per row of a plan that is one of them, over all streams, ascending: shape [R]."""

    @abstractmethod
    def unknown(self, plans: Sequence[Stages]) -> tuple[Any, ...]:
        """Return the identities that no row of some plans has."""

    @abstractmethod
    def request(self, stages: Stages) -> SkipRequest:
        """Return what leaves them out of a plan."""

    def skipped(self, skips: Skips, start: OpenedLeg, entered: Cursor) -> Skips:
        """Return a record with them, from the start of a leg on."""
        numbering, keep = start.opened.numbering, start.opening.records.keep
        return self.request(start.stages).added(skips, start.stages, numbering, entered, start.leg.epoch, keep)


def forgotten_rows(given: Any) -> ForgottenRows:
    """Return the rows of a list of identities, or of a table.

    Raises:
        StreamError: the list is too long, or it is neither.
    """
    if is_table(given):
        return TableRows(given)
    if not isinstance(given, Iterable):
        msg = (
            f"forget: ids={shown(given)}. Give a list of identities, a relation, its name, an Arrow table, or the path of a "
            "Parquet or Arrow file"
        )
        raise StreamError(msg)
    return ListedRows(list(given))


@final
class ListedRows(ForgottenRows):
    """Rows by a list of identities."""

    def __init__(self, identities: Sequence[Any]) -> None:
        if len(identities) > MOST:
            msg = (
                f"forget: {len(identities):,} rows, and a state lists {MOST:,} at most. Name a table in place of the list: "
                "a relation, its name, an Arrow table, or a Parquet or Arrow file"
            )
            raise StreamError(msg)
        self._identities = [tuple(each) if isinstance(each, list) else each for each in identities]

    def keys(self, stages: Stages) -> UInt64:
        count = np.uint64(len(stages.streams))
        rows = [_rows(stages, each) for each in self._identities]
        return np.unique(np.concatenate([np.empty(0, np.uint64), *(each * count + np.uint64(k) for k, each in rows)]))

    def unknown(self, plans: Sequence[Stages]) -> tuple[Any, ...]:
        return tuple(each for each in self._identities if not any(len(_rows(of, each)[1]) for of in plans))

    def request(self, stages: Stages) -> SkipRequest:
        return SkipRequest(identities=[each for each in self._identities if len(_rows(stages, each)[1])])


def _rows(stages: Stages, identity: Any) -> tuple[int, UInt64]:
    """The stream and the surviving rows of an identity; no rows if the plan has none."""
    try:
        return found_rows(stages, identity, "forget")
    except KeyError:
        return 0, np.empty(0, dtype=np.uint64)


@final
class TableRows(ForgottenRows):
    """Rows by a table of identities, which plans are joined to; each plan once."""

    def __init__(self, given: Any) -> None:
        self._given = given
        self._tables: dict[int, tuple[Stages, pa.Table, UInt64, NDArray[np.bool_]]] = {}

    def keys(self, stages: Stages) -> UInt64:
        return self._matched(stages)[2]

    def unknown(self, plans: Sequence[Stages]) -> tuple[Any, ...]:
        lacking = np.logical_and.reduce([~self._matched(each)[3] for each in plans])
        left = self._matched(plans[0])[1].filter(pa.array(lacking))
        columns = [column.to_pylist() for column in left.columns]
        return tuple(columns[0]) if len(columns) == 1 else tuple(zip(*columns, strict=True))

    def request(self, stages: Stages) -> SkipRequest:
        _, table, _, known = self._matched(stages)
        return SkipRequest(identities=table.filter(pa.array(known)))

    def _matched(self, stages: Stages) -> tuple[Stages, pa.Table, UInt64, NDArray[np.bool_]]:
        """The identities of the table, the keys of the rows that have them, and which of them a row has."""
        if id(stages) not in self._tables:
            table = identities_of(stages, as_table(self._given, stages))
            known, count = np.zeros(len(table), np.bool_), np.uint64(len(stages.streams))
            keys = [np.empty(0, np.uint64)]
            for k, found in enumerate(matched(stages, table)):
                known[found.numbers] = True
                keys.append(found.rows * count + np.uint64(k))
            self._tables[id(stages)] = stages, table, np.unique(np.concatenate(keys)), known
        return self._tables[id(stages)]


Tables = Callable[[str], Any]


def table_named(given: Any, tables: Sequence[str], table: Tables) -> Any:
    """Return what somebody names in place of a list: a relation by its name, or the table in a Parquet or Arrow file.

    Args:
        given: what was given; anything but a name or a path is returned as it is.
        tables: the names of relations.
        table: gives one.

    Raises:
        StreamError: it is neither.
    """
    if not isinstance(given, str | os.PathLike):
        return given
    path = Path(given)
    if isinstance(given, str) and (given in tables or given.startswith("runs.")):
        return table(given)
    if path.suffix == ".parquet" and path.is_file():
        import pyarrow.parquet as pq

        return pq.read_table(path)
    if path.suffix in (".arrow", ".feather", ".ipc") and path.is_file():
        from pyarrow import feather

        return feather.read_table(path)
    msg = (
        f"forget: {str(given)!r} is neither a relation of the catalog nor a Parquet or Arrow file. Name one, or list the "
        "identities: [...]"
    )
    raise StreamError(msg)
