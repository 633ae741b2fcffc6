"""A cache on disk: a Lance dataset, the ledger of its finished parts, their checksums, and removal.

Start at: `store`.
May not know: what a payload means.
"""
