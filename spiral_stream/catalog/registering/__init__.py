"""What `register` checks and measures before a name changes its meaning.

Start at: `declaration`.
May not know: how rows are stored.
"""
