"""What a name stands for: relations, streams and tokenizers, in a folder or on an object store.

Start at: `registry`.
May not know: plans, batches.
"""
