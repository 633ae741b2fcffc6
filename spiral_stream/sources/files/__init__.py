"""Which files paths and patterns name, how they are watched, held open and cut into units.

Start at: `listing`.
May not know: what is in them.
"""
