"""What a run was given and what it measured: its history, its records, and what follows from both.

Start at: `leg`.
May not know: frameworks, and how a batch is filled.
"""
