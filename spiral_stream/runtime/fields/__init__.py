"""Fill the fields of a batch: one room per kind of payload.

Start at: `images`.
May not know: which samples.
"""
