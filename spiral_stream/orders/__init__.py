"""The public namespace of orders, and of what one of your own derives from: ``spiral.orders.WindowShuffle``.

Start at: `../sampling/order`.
May not know: anything of its own; its names live in `sampling`.
"""

from typing import TYPE_CHECKING, Final

from spiral_stream.habits import door

if TYPE_CHECKING:
    from spiral_stream.sampling.assignment import DataParallel
    from spiral_stream.sampling.order import Arrangement, Order, Population
    from spiral_stream.sampling.orders.hash_bucketed import HashBucketed, ShuffleBuckets
    from spiral_stream.sampling.orders.sequential import Sequential
    from spiral_stream.sampling.orders.shard_aware import ShardAwareShuffle
    from spiral_stream.sampling.orders.shard_order import ExpandedRange, WithinShards
    from spiral_stream.sampling.orders.shuffle import GlobalShuffle
    from spiral_stream.sampling.orders.weighted import Weighted
    from spiral_stream.sampling.orders.window_shuffle import WindowShuffle
    from spiral_stream.sampling.orders.with_replacement import WithReplacement

__all__ = [
    "Arrangement",
    "DataParallel",
    "ExpandedRange",
    "GlobalShuffle",
    "HashBucketed",
    "Order",
    "Population",
    "Sequential",
    "ShardAwareShuffle",
    "ShuffleBuckets",
    "Weighted",
    "WindowShuffle",
    "WithReplacement",
    "WithinShards",
]

_LATE: Final = {
    "Arrangement": "spiral_stream.sampling.order",
    "DataParallel": "spiral_stream.sampling.assignment",
    "ExpandedRange": "spiral_stream.sampling.orders.shard_order",
    "GlobalShuffle": "spiral_stream.sampling.orders.shuffle",
    "HashBucketed": "spiral_stream.sampling.orders.hash_bucketed",
    "Order": "spiral_stream.sampling.order",
    "Population": "spiral_stream.sampling.order",
    "Sequential": "spiral_stream.sampling.orders.sequential",
    "ShardAwareShuffle": "spiral_stream.sampling.orders.shard_aware",
    "ShuffleBuckets": "spiral_stream.sampling.orders.hash_bucketed",
    "Weighted": "spiral_stream.sampling.orders.weighted",
    "WindowShuffle": "spiral_stream.sampling.orders.window_shuffle",
    "WithReplacement": "spiral_stream.sampling.orders.with_replacement",
    "WithinShards": "spiral_stream.sampling.orders.shard_order",
}

if not TYPE_CHECKING:  # a type checker that saw it would take every misspelt name for one of ours
    __getattr__, __dir__ = door(__name__, _LATE)
