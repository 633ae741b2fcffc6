"""The streams of a plan as they are read: columns of samples that come from several selections.

Without a mixture there is one stream, and everything goes straight to its selection.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import pyarrow as pa

from spiral_stream.catalog.opened import OpenRelation
from spiral_stream.plan.mix import STREAM_ID
from spiral_stream.plan.nodes import Node
from spiral_stream.planner.selection_on_disk import Selected
from spiral_stream.sampling.epoch import Places
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


def fetch(streams: Sequence[StreamStage], places: Places, names: Sequence[str]) -> pa.Table:
    """Return columns of samples, in the order of ``places``; one fetch per stream.

    Args:
        streams: the plan's streams.
        places: S samples.
        names: columns that the relational part leaves.
    """
    if len(streams) == 1:
        return streams[0].selected.narrow.fetch(places.rows, names)
    own = [name for name in names if name != STREAM_ID]
    columns: dict[str, pa.Array | pa.ChunkedArray] = {}
    if own:
        groups = split(places)
        parts = [streams[stream].selected.narrow.fetch(places.rows[at], own) for stream, at in groups]
        back = np.empty(len(places), dtype=np.int64)
        back[np.concatenate([back[:0], *(at for _, at in groups)])] = np.arange(len(places))
        whole = (
            pa.concat_tables(parts).combine_chunks() if parts else streams[0].selected.narrow.fetch(places.rows, own)
        )
        columns = dict(zip(own, whole.take(pa.array(back)).columns, strict=True))
    if STREAM_ID in names:
        columns[STREAM_ID] = pa.array([stream.name for stream in streams]).take(pa.array(places.streams))
    return pa.table({name: columns[name] for name in names})


def split(places: Places) -> list[tuple[int, np.ndarray[tuple[int], np.dtype[np.int64]]]]:
    """Return the streams that samples are of, ascending, and at which places those of each stand."""
    by = np.argsort(places.streams, kind="stable")
    present, first = np.unique(places.streams[by], return_index=True)
    if not len(by):  # NumPy splits nothing into one part
        return []
    return list(zip(present.tolist(), np.split(by, first[1:]), strict=True))


def ordinals(streams: Sequence[StreamStage], stream: int, rows: UInt64) -> UInt64:
    """Ordinals of one stream's surviving rows in the relation that owns them."""
    return streams[stream].selected.columns.ordinals(rows)
