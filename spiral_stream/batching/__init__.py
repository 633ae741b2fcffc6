"""Who shares a batch: windows, buckets, packed rows, and what is left at the end.

Start at: `formation` (the interface), then `windowed`.
May not know: sources, threads, frameworks; it sees lengths and positions only.

It is also the public namespace of formations, tail rules and compositions, and of what a formation of your own derives
from: ``spiral.batching.Packed``.
"""

from typing import TYPE_CHECKING, Final

from spiral_stream.habits import door

if TYPE_CHECKING:
    from spiral_stream.batching.budget import BatchBudget
    from spiral_stream.batching.composition import OneStream, StratifiedByStream
    from spiral_stream.batching.formation import (
        Composition,
        Formation,
        Former,
        Left,
        Membership,
        OversizeTally,
        Packing,
        Setting,
        Window,
    )
    from spiral_stream.batching.packing import Packed
    from spiral_stream.batching.tail import DropPartial, KeepPartial, PadPartial, Tail
    from spiral_stream.batching.windowed import BucketKey, WindowedBucket

__all__ = [
    "BatchBudget",
    "BucketKey",
    "Composition",
    "DropPartial",
    "Formation",
    "Former",
    "KeepPartial",
    "Left",
    "Membership",
    "OneStream",
    "OversizeTally",
    "Packed",
    "Packing",
    "PadPartial",
    "Setting",
    "StratifiedByStream",
    "Tail",
    "Window",
    "WindowedBucket",
]

_LATE: Final = {
    "BatchBudget": "spiral_stream.batching.budget",
    "BucketKey": "spiral_stream.batching.windowed",
    "Composition": "spiral_stream.batching.formation",
    "DropPartial": "spiral_stream.batching.tail",
    "Formation": "spiral_stream.batching.formation",
    "Former": "spiral_stream.batching.formation",
    "KeepPartial": "spiral_stream.batching.tail",
    "Left": "spiral_stream.batching.formation",
    "Membership": "spiral_stream.batching.formation",
    "OneStream": "spiral_stream.batching.composition",
    "OversizeTally": "spiral_stream.batching.formation",
    "Packed": "spiral_stream.batching.packing",
    "Packing": "spiral_stream.batching.formation",
    "PadPartial": "spiral_stream.batching.tail",
    "Setting": "spiral_stream.batching.formation",
    "StratifiedByStream": "spiral_stream.batching.composition",
    "Tail": "spiral_stream.batching.tail",
    "Window": "spiral_stream.batching.formation",
    "WindowedBucket": "spiral_stream.batching.windowed",
}

if not TYPE_CHECKING:  # a type checker that saw it would take every misspelt name for one of ours
    __getattr__, __dir__ = door(__name__, _LATE)
