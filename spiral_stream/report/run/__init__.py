"""Pages of a run: what stands out of its values, and its card.

Start at: `spike_page`.
May not know: how records are written.
"""
