"""Make what is missing, shard by shard, with whoever else makes the same.

Start at: `cooperative_build`.
May not know: kinds.
"""
