"""Several streams as one order, in stated proportions.

Start at: `mixture`.
May not know: what the streams hold.
"""
