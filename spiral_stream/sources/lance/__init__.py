"""Lance datasets, read and written, and LanceDB's tables.

Start at: `source`.
May not know: other formats.
"""
