"""Payload that was computed once: built, read back and copied, under a fingerprint of all that decides its bytes.

Start at: `fingerprint`, then `materialize`.
May not know: batches and orders.
"""
