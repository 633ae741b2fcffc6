"""How values, progress and pages are written for people.

Start at: `wording`.
May not know: what is shown.
"""
