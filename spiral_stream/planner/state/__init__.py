"""What a saved state says, and whether this plan may go on from it.

Start at: `saved_state`, then `compatibility`.
May not know: how batches are formed.
"""
