"""What `register` checks, measures and writes.

Start at: `register`, then `declaration`.
May not know: plans, or how rows are selected.
"""
