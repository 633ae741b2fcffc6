"""The orders: position to row and back, by arithmetic.

Start at: `permutation`, then `shard_aware`.
May not know: mixtures.
"""
