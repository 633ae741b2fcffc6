"""Block sizes in SAMPLE: how well each mixes shards and labels, and how many bytes a block spans.

Shards per block follow from the unit table of the pass that the epoch reads. Labels are counted in batches of the epoch at
each block size, which is arithmetic and the reading of one narrow column: up to 65,536 rows. A block is not held in memory;
its bytes say over how much payload reads spread.
"""

from dataclasses import replace
from typing import Any, Final

import numpy as np

from spiral_stream.errors import SpiralError
from spiral_stream.explain.batch.sizes import batch_size
from spiral_stream.explain.figure import RATIO, Figure, FigureSource, Phrase, marked, phrase
from spiral_stream.explain.order.mixing import (
    Groups,
    groups_of,
    label_of,
    labels_in,
    met,
    met_at_random,
    same_shard,
    warn_of_labels,
)
from spiral_stream.explain.subject import Subject
from spiral_stream.planner.columns.streams import StreamStage
from spiral_stream.sampling.orders.shard_aware import ShardAwareShuffle
from spiral_stream.sampling.orders.shard_mixing import Choice, randomness

BLOCK: Final = "shuffle_block_size"


def block_rows(subject: Subject, order: ShardAwareShuffle, k: int, meeting: int) -> list[dict[str, Any]]:
    """Return one row per block size for stream ``k``.

    Args:
        subject: what is explained.
        order: its order.
        k: the stream.
        meeting: rows of the stream that may share a batch.
    """
    stream, groups = subject.stages.streams[k], groups_of(subject, k)
    number, is_full = subject.pass_of(k)
    choices: Any = randomness(stream.population, order, meeting, number)["choices"]
    label, row_bytes = label_of(subject, stream), _row_bytes(subject)
    out, units = [], f"the units of pass {number:,}"
    for each in choices:
        held, source = (
            min(each["block_rows"], stream.selected.total),
            FigureSource(units, marked(each["exact"] and is_full)),
        )
        sized, same = _resized(order, each), source(each["same_shard"], RATIO)
        if subject.stages.mixed and sized is not None:  # a mixture spreads the samples of a stream over slices
            same = FigureSource(groups.source.name, "estimated")(same_shard(stream, sized, groups), RATIO)
        row = {
            BLOCK: _block(each),
            "shards/block": source(each["shards_per_block"], "shards"),
            "P(same shard)": same,
            "run length": source(each["run_length"], "rows"),
            "rows buffered": Figure(held, "rows"),
            "block bytes": "unknown"
            if row_bytes is None
            else Figure(round(held * row_bytes), "bytes", "estimated", source="bytes of a sample"),
        }
        if label is not None:
            row[f"{label}/batch"] = _labels(subject, stream, sized, groups, label, warns=each["chosen"])
        out.append(row)
    return out


def _block(choice: Choice) -> Phrase:
    """A block size; the arrow marks that of the plan."""
    template = "-> {rows}" if choice["chosen"] else "   {rows}"
    return phrase(template, rows=Figure(choice["block_rows"], "rows"))


def _resized(order: ShardAwareShuffle, choice: Choice) -> ShardAwareShuffle | None:
    """The order with another block size; None for one that it does not take."""
    try:
        return replace(order, shuffle_block_size=choice["block_rows"])
    except SpiralError:
        return None


def _row_bytes(subject: Subject) -> float | None:
    """Bytes of one sample in a batch; None where batches are formed, or a field's size is unknown."""
    if subject.stages.formed:
        return None
    size = batch_size(subject)
    count = subject.stages.batches.batch_size * subject.bound.merge
    return None if size.unknown else (size.arrays + (size.lists or 0)) / max(1, count)


def _labels(
    subject: Subject,
    stream: StreamStage,
    order: ShardAwareShuffle | None,
    groups: Groups,
    label: str,
    *,
    warns: bool,
) -> Figure | str:
    """Mean number of distinct labels in batches of the epoch."""
    if order is None or not groups.count:
        return "unknown"
    rows = groups.rows(lambda number: order.arrange(stream.population, number))
    codes = labels_in(stream, rows, label)
    found = met(codes, groups).values
    if warns:
        counts, size = np.bincount(codes).astype(np.float64), round(len(rows) / groups.count)
        warn_of_labels(subject, order, stream, label, found, met_at_random(counts, size).values)
    return groups.source(found, "values")
