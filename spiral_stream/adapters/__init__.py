"""Batches as a framework's arrays, and the framework's own loops.

Start at: `torch`.
May not know: how a batch is made: only `PreparedStream` and slots of memory.
"""
