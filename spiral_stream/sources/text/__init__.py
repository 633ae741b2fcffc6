"""Lines, CSV, JSON lines and whole text files.

Start at: `lines`.
May not know: other formats.
"""
