"""Rows of sources that have no addresses, read once and kept as snapshots.

Start at: `run`.
May not know: formats: a source says what a unit gives.
"""
