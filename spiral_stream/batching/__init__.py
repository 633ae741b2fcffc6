"""Who shares a batch: windows, buckets, packed rows, and what is left at the end.

Start at: `formation` (the interface), then `windowed`.
May not know: sources, threads, frameworks; it sees lengths and positions only.

It is also the public namespace of formations, tail rules and compositions, and of what a formation of your own derives
from: ``spiral.batching.Packed``.
"""

from typing import TYPE_CHECKING

from spiral_stream.habits import door

if TYPE_CHECKING:  # the alias exports a name to type checkers
    from spiral_stream.batching.budget import BatchBudget as BatchBudget
    from spiral_stream.batching.composition import OneStream as OneStream
    from spiral_stream.batching.composition import StratifiedByStream as StratifiedByStream
    from spiral_stream.batching.formation import Composition as Composition
    from spiral_stream.batching.formation import Formation as Formation
    from spiral_stream.batching.formation import Former as Former
    from spiral_stream.batching.formation import Left as Left
    from spiral_stream.batching.formation import Membership as Membership
    from spiral_stream.batching.formation import OversizeTally as OversizeTally
    from spiral_stream.batching.formation import Packing as Packing
    from spiral_stream.batching.formation import Setting as Setting
    from spiral_stream.batching.formation import Window as Window
    from spiral_stream.batching.packing import Packed as Packed
    from spiral_stream.batching.shapes.one_shape import OneShape as OneShape
    from spiral_stream.batching.tail import DropPartial as DropPartial
    from spiral_stream.batching.tail import KeepPartial as KeepPartial
    from spiral_stream.batching.tail import PadPartial as PadPartial
    from spiral_stream.batching.tail import Tail as Tail
    from spiral_stream.batching.windowed import BucketKey as BucketKey
    from spiral_stream.batching.windowed import WindowedBucket as WindowedBucket

if not TYPE_CHECKING:  # a type checker that saw it would take every misspelt name for one of ours
    __all__, __getattr__, __dir__ = door(
        __name__,
        {
            "batching.budget": ["BatchBudget"],
            "batching.composition": ["OneStream", "StratifiedByStream"],
            "batching.formation": [
                "Composition",
                "Formation",
                "Former",
                "Left",
                "Membership",
                "OversizeTally",
                "Packing",
                "Setting",
                "Window",
            ],
            "batching.packing": ["Packed"],
            "batching.shapes.one_shape": ["OneShape"],
            "batching.tail": ["DropPartial", "KeepPartial", "PadPartial", "Tail"],
            "batching.windowed": ["BucketKey", "WindowedBucket"],
        },
    )
