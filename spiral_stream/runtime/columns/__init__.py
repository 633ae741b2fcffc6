"""Values of the columns that a batch needs beside payload: stored, tokenized, computed by functions.

Start at: `samples`.
May not know: the layout of a batch.
"""
