"""The laws that every source, order, formation and stream keeps, to test your own against.

Start at: `streams`.
May not know: inner rooms beyond those interfaces.

Each ``check_...`` function raises `AssertionError` at the first place where its law is broken:

==================== ==========================================================================
`check_source`       *source*: units, scans, fetches agree; content keys stand for rows
`check_transform`    *transform*: a value depends on its row and its key alone, wherever it is made
`check_order`        *cover*, *pure*: each pass reads every row once
`check_formation`    *cover*, *bounded*, *pure*: each sample is in one batch, within the limits
`check_replay`       *replay*: the same plan gives the same bytes
`check_resume`       *resume*: a state saved after any step leads to the same batches
`check_loops`        *loops*: however a loop ends, the next one reads the next epoch
`check_elastic`      *elastic*: any number of ranks delivers the same global batches
`check_even_steps`   *even steps*: any number of ranks shares each optimizer step evenly
`check_one_shape`    *one shape*: in each step, all ranks get fields of one shape
==================== ==========================================================================

The laws of streams take a function that makes a new stream each time:

    check_resume(lambda: plan.to_numpy())
"""

from spiral_stream.testing.orders import ChapterSamples, FormedChapter, check_formation, check_order
from spiral_stream.testing.sources import check_source
from spiral_stream.testing.streams import (
    LOOPS,
    Loop,
    MakeStream,
    check_elastic,
    check_even_steps,
    check_loops,
    check_one_shape,
    check_replay,
    check_resume,
    frozen,
    same,
)
from spiral_stream.testing.transforms import check_transform

__all__ = [
    "LOOPS",
    "ChapterSamples",
    "FormedChapter",
    "Loop",
    "MakeStream",
    "check_elastic",
    "check_even_steps",
    "check_formation",
    "check_loops",
    "check_one_shape",
    "check_order",
    "check_replay",
    "check_resume",
    "check_source",
    "check_transform",
    "frozen",
    "same",
]
