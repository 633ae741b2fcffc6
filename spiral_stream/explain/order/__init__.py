"""What stays together in an order, and how well it mixes.

Start at: `sample`.
May not know: other sections.
"""
