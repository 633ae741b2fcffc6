"""Counts, quantiles and frequent values per shard, merged, and the skew that they show.

Start at: `measure`.
May not know: plans; it reads relations only.
"""
