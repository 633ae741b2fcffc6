"""Make what is missing, shard by shard, with whoever else makes the same.

Start at: `make`.
May not know: kinds.
"""
