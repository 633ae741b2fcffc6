"""Which sample comes next: orders, mixtures, and what part of them a rank reads.

Start at: `order` (the interface), then `epoch`.
May not know: rows, files: it has positions.
"""
