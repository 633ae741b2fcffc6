"""Where the values of each column come from.

Start at: `lineage`.
May not know: which rows.
"""
