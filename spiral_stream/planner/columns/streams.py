"""The streams of a plan as they are read: columns of samples that come from several selections.

Without a mixture there is one stream, and everything goes straight to its selection.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spiral_stream.catalog.relation.reader import OpenRelation
from spiral_stream.fields.ragged import Ragged
from spiral_stream.plan.nodes import Node
from spiral_stream.plan.verbs.mix import STREAM_ID
from spiral_stream.planner.selection.fetched_columns import Read
from spiral_stream.planner.selection.selected import Selected
from spiral_stream.sampling.epoch import StreamRows
from spiral_stream.sampling.order import Population, UInt64


@final
@dataclass(frozen=True, slots=True, eq=False)
class StreamStage:
    """One stream: the relation that owns its rows, those that survive, and its own relational plan."""

    name: str  # "" without a mixture
    node: Node
    base: OpenRelation
    selected: Selected
    population: Population


def fetch(streams: Sequence[StreamStage], stream_rows: StreamRows, names: Sequence[str]) -> pa.Table:
    """Return columns of samples, in the order of ``stream_rows``; one fetch per stream.

    Args:
        streams: the plan's streams.
        stream_rows: S samples.
        names: columns that the relational part leaves.
    """
    found = read(streams, stream_rows, names)
    return pa.table({name: found[name] for name in names})


def read(
    streams: Sequence[StreamStage],
    stream_rows: StreamRows,
    names: Sequence[str],
    ragged: AbstractSet[str] = frozenset(),
) -> dict[str, Read]:
    """Return columns of samples one by one, as `fetch` does; those of ``ragged`` as addresses where they are kept."""
    if len(streams) == 1:
        return streams[0].selected.columns.read(stream_rows.rows, names, ragged)
    stored = [name for name in names if name != STREAM_ID]
    columns: dict[str, Read] = {}
    if stored:
        groups = _together(streams, split(stream_rows))
        parts = [_read_group(streams, stream_rows, members, stored, ragged) for members in groups]
        if not parts:
            parts = [streams[0].selected.columns.read(stream_rows.rows, stored)]
        back = np.empty(len(stream_rows), dtype=np.int64)
        back[np.concatenate([back[:0], *(at for members in groups for _, at in members)])] = np.arange(len(stream_rows))
        columns = {name: joined([part[name] for part in parts], back) for name in stored}
    if STREAM_ID in names:
        columns[STREAM_ID] = pa.array([stream.name for stream in streams]).take(pa.array(stream_rows.streams))
    return columns


Members = list[tuple[int, NDArray[np.int64]]]  # streams, and at which places their samples stand


def _together(streams: Sequence[StreamStage], groups: Members) -> list[Members]:
    """Put streams together that differ in their rows only: one fetch serves them all."""
    out: dict[Any, Members] = {}
    for stream, at in groups:
        out.setdefault(streams[stream].selected.columns.shared or stream, []).append((stream, at))
    return list(out.values())


def _read_group(
    streams: Sequence[StreamStage],
    stream_rows: StreamRows,
    members: Members,
    names: Sequence[str],
    ragged: AbstractSet[str],
) -> dict[str, Read]:
    first, at = members[0]
    if len(members) == 1:
        return streams[first].selected.columns.read(stream_rows.rows[at], names, ragged)
    each = [ordinals(streams, stream, stream_rows.rows[at]) for stream, at in members]
    return streams[first].selected.columns.read_at(np.concatenate(each), names, ragged)


def joined(parts: list[Read], back: NDArray[np.int64]) -> Read:
    """Values of several streams, in the order of the samples."""
    if all(isinstance(part, Ragged) for part in parts) and len({part.signed for part in parts}) == 1:
        return Ragged.concat(parts).take(back)
    chunks = [part.arrow() if isinstance(part, Ragged) else part for part in parts]
    kind = next((part.type for part in parts if not isinstance(part, Ragged)), None)
    chunks = [chunk if kind is None or chunk.type == kind else chunk.cast(kind) for chunk in chunks]
    flat = [one for chunk in chunks for one in (chunk.chunks if isinstance(chunk, pa.ChunkedArray) else [chunk])]
    return (pa.concat_arrays(flat) if flat else chunks[0].combine_chunks()).take(pa.array(back))


def split(stream_rows: StreamRows) -> list[tuple[int, np.ndarray[tuple[int], np.dtype[np.int64]]]]:
    """Return the streams that samples are of, ascending, and at which places those of each stand."""
    streams = stream_rows.streams
    if not len(streams):  # NumPy splits nothing into one part
        return []
    if (one := streams.min()) == streams.max():
        return [(int(one), np.arange(len(streams)))]
    by = np.argsort(streams, kind="stable")
    present, first = np.unique(streams[by], return_index=True)
    return list(zip(present.tolist(), np.split(by, first[1:]), strict=True))


def ordinals(streams: Sequence[StreamStage], stream: int, rows: UInt64) -> UInt64:
    """Ordinals of one stream's surviving rows in the relation that owns them."""
    return streams[stream].selected.columns.ordinals(rows)
