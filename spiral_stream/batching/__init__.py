"""Who shares a batch: windows, buckets, packed rows, and what is left at the end.

Start at: `formation` (the interface), then `windowed`.
May not know: sources, threads, frameworks; it sees lengths and positions only.
"""
