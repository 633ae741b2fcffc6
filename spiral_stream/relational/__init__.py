"""Joins, SQL and conditions that need an engine.

Start at: `selection`, then `engine`.
May not know: orders, batches.
"""
