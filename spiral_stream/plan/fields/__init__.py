"""What each field needs of its columns, and the dtype and shape that it will have.

Start at: `needed_columns`, then `dtypes`.
May not know: the nodes above it.
"""
