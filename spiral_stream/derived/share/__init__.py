"""Pieces between machines: who makes one, and where finished ones lie on a store.

Start at: `share`.
May not know: kinds.
"""
