"""The verbs beyond scan, filter and collate, each a frozen node.

Start at: `maps`.
May not know: how they are run.
"""
