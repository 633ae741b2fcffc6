"""What clips cost to decode and to hold.

Start at: `clips`.
May not know: other sections.
"""
