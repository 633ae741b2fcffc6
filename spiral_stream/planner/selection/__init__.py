"""Which rows survive the relational work of a plan, in which order, with which columns beside them.

Start at: `rewrites`, then `whole`.
May not know: payload.
"""
