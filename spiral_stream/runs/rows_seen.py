"""Which rows a run saw, each once: a count per row of each relation and data version, and their identities.

Memory: four bytes per row that passes a stream's filters, and one chunk of samples. Rows of assembled samples lie nowhere, so
their samples are told apart by the identity that the assembler gave them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.plan.verbs.maps import SampleAssembly
from spiral_stream.planner.stages import Stages
from spiral_stream.runs.leg import Leg
from spiral_stream.runs.opened_leg import NotApplied, OpenedLeg, OpenedLegs, lacking_of

RELATION: Final = "relation"
TIMES: Final = "times"
ASSEMBLED: Final = "assembled"  # in place of a relation, of samples that a function made of several rows
_CHUNK: Final = 1 << 16  # rows whose identities are read at a time


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Counted:
    """How often each surviving row of a stream was seen."""

    stages: Stages
    stream: int
    times: NDArray[np.uint32]  # [R]


def counted_rows(
    legs: Sequence[Leg], opened: OpenedLegs, not_applied: NotApplied = ()
) -> tuple[list[_Counted], list[pa.Table]]:
    """Count how often legs delivered each row.

    Returns:
        counts per stream of each plan and data version; and the identities of assembled samples, a table per chunk.
    """
    found: dict[Any, _Counted] = {}
    made: list[pa.Table] = []
    for leg in legs:
        if not leg.known or not leg.batches:
            continue
        at = opened.of(leg)
        lacking = lacking_of(at, not_applied)
        streams = [_counter(found, at, k) for k in range(len(at.stages.streams))]
        assembled = any(isinstance(step, SampleAssembly) for step in at.stages.maps)
        for each in at.delivered():
            left = each.begins
            if len(lacking):
                left = left & ~np.isin(at.numbers(each.batches), lacking)
            samples = each.samples.take(np.flatnonzero(left))
            if assembled:
                table = at.identity(samples)
                made.append(table.select([name for name in table.column_names if name in at.stages.identity]))
                continue
            rows = samples.stream_rows
            for k, counter in enumerate(streams):
                np.add.at(counter.times, rows.rows[rows.streams == k].astype(np.int64), 1)
    return list(found.values()), made


def _counter(found: dict[Any, _Counted], at: OpenedLeg, stream: int) -> _Counted:
    stages = at.stages
    key = id(stages), stream
    if key not in found:
        found[key] = _Counted(stages, stream, np.zeros(stages.streams[stream].selected.total, dtype=np.uint32))
    return found[key]


def row_tables(counted: Sequence[_Counted]) -> Iterator[pa.Table]:
    """Yield relation, identity and times of the rows that were seen, in chunks."""
    for each in counted:
        stages, stream = each.stages, each.stages.streams[each.stream]
        rows = np.flatnonzero(each.times).astype(np.uint64)
        for at in range(0, len(rows), _CHUNK):
            part = rows[at : at + _CHUNK]
            columns = stream.selected.columns.read(part, list(stages.identity))
            names = pa.DictionaryArray.from_arrays(np.zeros(len(part), dtype=np.int32), [stream.base.entry.name])
            yield pa.table(
                {
                    RELATION: names.dictionary_decode(),
                    **{name: columns[name] for name in stages.identity},
                    TIMES: pa.array(each.times[part.astype(np.int64)].astype(np.int64)),
                }
            )


def assembled_table(samples: Sequence[pa.Table]) -> list[pa.Table]:
    """Return assembled samples, each once, as rows are returned; no table if there are none."""
    if not samples:
        return []
    joined = pa.concat_tables(samples, promote_options="permissive")
    once = joined.append_column(TIMES, pa.array(np.ones(len(joined), dtype=np.int64)))
    return [_summed(once.add_column(0, RELATION, pa.array([ASSEMBLED] * len(once), pa.utf8())))]


def identities_of(legs: Sequence[Leg], opened: OpenedLegs, not_applied: NotApplied = ()) -> pa.Table:
    """Return the rows that legs delivered, each once: relation, the columns of the identity, and how often."""
    counted, made = counted_rows(legs, opened, not_applied)
    tables = [*row_tables(counted), *assembled_table(made)]
    if not tables:
        return pa.table({RELATION: pa.array([], pa.utf8()), TIMES: pa.array([], pa.int64())})
    joined = pa.concat_tables(tables, promote_options="permissive")
    names = [name for name in joined.column_names if name != TIMES]
    joined = joined.select([*names, TIMES])
    return joined if len(counted) == 1 else _summed(joined)


def _summed(table: pa.Table) -> pa.Table:
    """Rows with the same values as one, with the sum of their times."""
    names = [name for name in table.column_names if name != TIMES]
    found = table.group_by(names, use_threads=False).aggregate([(TIMES, "sum")])
    return found.select([*names, f"{TIMES}_sum"]).rename_columns([*names, TIMES])
