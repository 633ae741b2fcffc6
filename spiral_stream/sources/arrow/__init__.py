"""Arrow tables in memory and Arrow files, whole or by range.

Start at: `table`.
May not know: other formats.
"""
