"""Columns that name bytes elsewhere: resolved, pinned, read by range.

Start at: `resolve`.
May not know: decoders.
"""
