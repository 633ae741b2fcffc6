"""What follows from the rows of a shard and is kept by shard: built together with other processes, shared, verified, removed.

Start at: `derivation`, then `pieces`.
May not know: what a plan does with it.
"""
