"""What streams keep on disk: built, named, verified, removed.

Start at: `build`.
May not know: one batch.
"""
