"""Batches of one shape out of a stated list: which size a sample gets, and who shares a batch of that size.

Start at: `one_shape`, then `choice`.
May not know: pixels; it sees widths, heights and numbers of frames only.
"""
