"""Mosaic's shards, in all the forms that its writers have.

Start at: `source`, then `index`.
May not know: other formats.
"""
