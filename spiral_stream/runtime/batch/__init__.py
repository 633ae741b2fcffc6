"""One batch from its drawn samples to its filled fields.

Start at: `builder`.
May not know: which batch comes next.
"""
