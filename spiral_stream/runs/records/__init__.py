"""What a run writes and reads of itself: values per sample, parts of them, and the table that they become.

Start at: `recording`, then `run_table`.
May not know: what stands out of the values.
"""
