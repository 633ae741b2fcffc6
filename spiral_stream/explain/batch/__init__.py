"""How full and how large batches are.

Start at: `batch`.
May not know: other sections.
"""
