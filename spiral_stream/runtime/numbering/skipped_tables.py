"""Samples that a run skips by a table of identities: as the catalog stores it, and the rows that have them, found by a join.

A state names the table by the digest of what it holds. The rows are found when a plan is opened: its identities are read once,
batch by batch, and the engine joins them to the table, which spills if it is large.
"""

import base64
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spiral_stream.errors import ResumeError, StreamError
from spiral_stream.plan.verbs.mix import STREAM_ID
from spiral_stream.planner.stages import Stages
from spiral_stream.relational import engine
from spiral_stream.sampling.order import UInt64
from spiral_stream.sources.arrow.table import coded_once, without_dictionaries

MOST: Final = 1_000_000  # rows of a table: about 20 MB in the catalog
_CHUNK: Final = 1 << 18  # rows whose identities are read at a time
_STREAMS: Final = (STREAM_ID, "stream")  # columns that name the stream of a mixture; a run's table has the latter

# N rows of a table


class MatchedRows(NamedTuple):
    """Which rows of a stream have identities of a table."""

    rows: UInt64  # [R] surviving rows, ascending
    numbers: NDArray[np.int64]  # [R] the row of the table that each has


def is_table(given: object) -> bool:
    """Whether somebody gave identities as a table: a relation, or whatever Arrow takes as one."""
    return hasattr(given, "to_arrow") or hasattr(given, "__arrow_c_stream__")


def as_table(given: Any, stages: Stages) -> pa.Table:
    """Return a table, with the columns that say which samples are meant: of a relation, no others are read."""
    if hasattr(given, "to_arrow") and hasattr(given, "project"):
        return given.project(*wanted_columns(stages, given.schema.names)).to_arrow()
    return given if isinstance(given, pa.Table) else pa.table(given)


def wanted_columns(stages: Stages, there: Sequence[str]) -> list[str]:
    """Return the columns of a table that say which samples are meant: the stream where streams are mixed, and the identity.

    Args:
        stages: of the plan.
        there: the columns of the table. One column alone is the identity, if that is one column.

    Raises:
        StreamError: a column is missing.
    """
    identity = list(stages.identity)
    if len(there) == 1 and len(identity) == 1:
        identity = list(there)
    if missing := [name for name in identity if name not in there]:
        msg = (
            f"skip: the table of identities has no column {missing[0]!r}; a sample here is told by {', '.join(stages.identity)}. "
            "Name the columns like that: select, or project(name=...)"
        )
        raise StreamError(msg)
    stream = next((name for name in _STREAMS if name in there), None) if stages.mixed else None
    return identity if stream is None else [stream, *identity]


def identities_of(stages: Stages, table: pa.Table) -> pa.Table:
    """Return the identities in a table, each once: ``stream_id`` where the table says it, then those of the plan.

    Raises:
        StreamError: a column is missing, has another type than the plan's or a null, or there are too many rows.
    """
    names = wanted_columns(stages, table.column_names)
    named = [*([STREAM_ID] if len(names) > len(stages.identity) else []), *stages.identity]
    out = without_dictionaries(table.select(names)).rename_columns(named)
    for name, kind in zip(stages.identity, _kinds(stages), strict=True):
        try:
            cast = out[name].cast(kind)
        except pa.ArrowException as error:
            msg = f"skip: column {name!r} of the table of identities is {out[name].type}, here it is {kind} ({error}). Cast it"
            raise StreamError(msg) from error
        if cast.null_count:
            msg = f"skip: column {name!r} of the table of identities has nulls, which name no sample. Filter them out"
            raise StreamError(msg)
        out = out.set_column(out.schema.get_field_index(name), name, cast)
    found = coded_once(out.group_by(out.column_names, use_threads=False).aggregate([]))
    if len(found) > MOST:
        msg = (
            f"skip: the table has {len(found):,} identities, and {MOST:,} at most are skipped by one. Leave them out with "
            ".filter(...) before sample, and go on with new_stream.rebase(old_stream)"
        )
        raise StreamError(msg)
    return found.sort_by([(name, "ascending") for name in found.column_names]).combine_chunks()


def _kinds(stages: Stages) -> list[pa.DataType]:
    """The types of the identity columns, without dictionaries."""
    schema = stages.streams[0].selected.columns.schema
    kinds = [schema.field(name).type for name in stages.identity]
    return [kind.value_type if pa.types.is_dictionary(kind) else kind for kind in kinds]


def packed(table: pa.Table) -> dict[str, Any]:
    """Return a table as a JSON value, the same for the same rows."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=len(table) or None)
    return {"rows": len(table), "arrow": base64.b64encode(sink.getvalue()).decode()}


def unpacked(value: Any) -> pa.Table:
    """Read `packed` back.

    Raises:
        ResumeError: it cannot be read.
    """
    try:
        table = pa.ipc.open_stream(base64.b64decode(value["arrow"])).read_all()
        table.validate(full=True)
    except (KeyError, TypeError, ValueError, pa.ArrowException) as error:
        msg = (
            f"resume: a table of skipped samples cannot be read ({error}). Import the state again: catalog.import_state"
        )
        raise ResumeError(msg) from error
    return table


def matched(stages: Stages, table: pa.Table) -> list[MatchedRows]:
    """Find the rows of each stream that have identities of a table, as `identities_of` returns it.

    Raises:
        PlanError: a limit of the engine is passed.
    """
    return [_of_stream(stages, k, table) for k in range(len(stages.streams))]


def _of_stream(stages: Stages, k: int, table: pa.Table) -> MatchedRows:
    stream = stages.streams[k]
    numbered = table.append_column("n", pa.array(np.arange(len(table))))
    if STREAM_ID in table.column_names:
        numbered = numbered.filter(pc.equal(numbered[STREAM_ID], stream.name))
    if not len(numbered):
        return MatchedRows(np.empty(0, np.uint64), np.empty(0, np.int64))
    short = {f"c{n}": name for n, name in enumerate(stages.identity)}
    wanted = numbered.select([*short.values(), "n"]).rename_columns([*short, "n"])
    schema = pa.schema([*(wanted.schema.field(name) for name in short), ("at", pa.uint64())])

    def rows() -> Iterator[pa.RecordBatch]:
        for begin in range(0, stream.selected.total, _CHUNK):
            at = np.arange(begin, min(begin + _CHUNK, stream.selected.total), dtype=np.uint64)
            part = without_dictionaries(stream.selected.columns.fetch(at, stages.identity))
            columns = [part[name].cast(schema.field(each).type) for each, name in short.items()]
            yield from pa.table([*columns, pa.array(at)], schema=schema).to_batches()

    same = " AND ".join(f"r.{each} = w.{each}" for each in short)
    text = f"SELECT r.at AS at, w.n AS n FROM rows r JOIN wanted w ON {same}"  # noqa: S608  names are ours
    reader = pa.RecordBatchReader.from_batches(schema, rows())
    found = engine.answer(text, {"rows": reader, "wanted": wanted}, "skip: the table of identities").sort_by("at")
    return MatchedRows(found["at"].to_numpy(), found["n"].to_numpy())
