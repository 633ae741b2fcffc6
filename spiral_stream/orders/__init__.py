"""The public namespace of orders, and of what one of your own derives from: ``spiral.orders.WindowShuffle``.

Start at: `../sampling/order`.
May not know: anything of its own; its names live in `sampling`.
"""

from typing import TYPE_CHECKING

from spiral_stream.habits import door

if TYPE_CHECKING:  # the alias exports a name to type checkers
    from spiral_stream.sampling.assignment import DataParallel as DataParallel
    from spiral_stream.sampling.order import Arrangement as Arrangement
    from spiral_stream.sampling.order import Order as Order
    from spiral_stream.sampling.order import Population as Population
    from spiral_stream.sampling.orders.hash_bucketed import HashBucketed as HashBucketed
    from spiral_stream.sampling.orders.hash_bucketed import ShuffleBuckets as ShuffleBuckets
    from spiral_stream.sampling.orders.sequential import Sequential as Sequential
    from spiral_stream.sampling.orders.shard_aware import ShardAwareShuffle as ShardAwareShuffle
    from spiral_stream.sampling.orders.shard_order import ExpandedRange as ExpandedRange
    from spiral_stream.sampling.orders.shard_order import WithinShards as WithinShards
    from spiral_stream.sampling.orders.shuffle import GlobalShuffle as GlobalShuffle
    from spiral_stream.sampling.orders.weighted import Weighted as Weighted
    from spiral_stream.sampling.orders.window_shuffle import WindowShuffle as WindowShuffle
    from spiral_stream.sampling.orders.with_replacement import WithReplacement as WithReplacement

if not TYPE_CHECKING:  # a type checker that saw it would take every misspelt name for one of ours
    __all__, __getattr__, __dir__ = door(
        __name__,
        {
            "sampling.assignment": ["DataParallel"],
            "sampling.order": ["Arrangement", "Order", "Population"],
            "sampling.orders.hash_bucketed": ["HashBucketed", "ShuffleBuckets"],
            "sampling.orders.sequential": ["Sequential"],
            "sampling.orders.shard_aware": ["ShardAwareShuffle"],
            "sampling.orders.shard_order": ["ExpandedRange", "WithinShards"],
            "sampling.orders.shuffle": ["GlobalShuffle"],
            "sampling.orders.weighted": ["Weighted"],
            "sampling.orders.window_shuffle": ["WindowShuffle"],
            "sampling.orders.with_replacement": ["WithReplacement"],
        },
    )
