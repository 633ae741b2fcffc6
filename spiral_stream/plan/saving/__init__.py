"""A plan as JSON values: saved, compared, fingerprinted, read back.

Start at: `canonical`, then `fingerprint`.
May not know: where plans are kept.
"""
