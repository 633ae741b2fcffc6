"""Block sizes in SAMPLE: how well each mixes shards and labels, and how many bytes a block spans.

Labels are counted in the first batches of the order at each block size, which is arithmetic and the reading of one narrow
column: up to 16 batches and 65,536 rows. A block is not held in memory; its bytes say over how much payload reads spread.
"""

from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from spiral_stream.errors import SpiralError
from spiral_stream.explain.shares import joined_or_delivered
from spiral_stream.explain.sizes import batch_size
from spiral_stream.explain.subject import Subject
from spiral_stream.expr import kind_of
from spiral_stream.planner.streams import StreamStage
from spiral_stream.sampling.shard_aware import ShardAwareShuffle
from spiral_stream.sampling.shard_mixing import randomness

BLOCK: Final = "shuffle_block_size"
_BATCHES: Final = 16
_ROWS: Final = 65_536


def block_rows(subject: Subject, order: ShardAwareShuffle, k: int, meeting: int) -> list[dict[str, Any]]:
    """Return one row per block size for stream ``k``.

    Args:
        subject: what is explained.
        order: its order.
        k: the stream.
        meeting: rows of the stream that may share a batch.
    """
    stream = subject.stages.streams[k]
    choices: Any = randomness(stream.population, order, meeting)["choices"]
    label, row_bytes = _label(subject, stream), _row_bytes(subject)
    out = []
    for each in choices:
        held = min(each["block_rows"], stream.selected.total)
        row = {
            BLOCK: ("-> " if each["chosen"] else "   ") + f"{each['block_rows']:,}",
            "shards/block": each["shards_per_block"],
            "P(same shard)": each["same_shard"],
            "run length": each["run_length"],
            "rows buffered": held,
            "block bytes": "unknown" if row_bytes is None else f"~{held * row_bytes:,.0f}",
        }
        if label is not None:
            row[f"{label}/batch"] = _labels(subject, stream, order, each["block_rows"], meeting, label)
        out.append(row)
    return out


def _row_bytes(subject: Subject) -> float | None:
    """Bytes of one sample in a batch; None where batches are formed, or a field's size is unknown."""
    if subject.stages.formed:
        return None
    size = batch_size(subject)
    count = subject.stages.batches.batch_size * subject.bound.merge
    return None if size.unknown else (size.arrays + (size.lists or 0)) / max(1, count)


def _label(subject: Subject, stream: StreamStage) -> str | None:
    """The first integer that is joined on or delivered, and does not identify samples."""
    schema, hidden = stream.selected.columns.schema, {*subject.stages.identity, *subject.payload}
    names = [name for name in joined_or_delivered(subject, stream) if name in schema.names and name not in hidden]
    return next((name for name in names if kind_of(schema.field(name).type) in ("int", "bool")), None)


def _labels(
    subject: Subject, stream: StreamStage, order: ShardAwareShuffle, block: int, meeting: int, label: str
) -> float | str:
    """Mean number of distinct labels in the first batches."""
    count = min(stream.selected.total, meeting * _BATCHES, max(meeting, _ROWS // meeting * meeting))
    if not count or meeting > _ROWS:
        return "unknown"
    try:
        arranged = replace(order, shuffle_block_size=block).arrange(stream.population, subject.bound.epoch)
        values = stream.selected.columns.fetch(arranged.rows(np.arange(count, dtype=np.uint64)), [label])[label]
    except SpiralError:  # a block size that the order does not take
        return "unknown"
    column = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    parts = [column.slice(at, meeting) for at in range(0, max(1, count // meeting * meeting), meeting)]
    return float(np.mean([len(part.unique()) for part in parts]))
