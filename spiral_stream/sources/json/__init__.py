"""Values of JSON as columns: types, lines, what is wrong with one.

Start at: `types`.
May not know: files.
"""
