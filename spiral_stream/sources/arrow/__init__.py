"""Arrow tables in memory and Arrow files, memory-mapped, or read once from a store.

Start at: `table`.
May not know: other formats.
"""
