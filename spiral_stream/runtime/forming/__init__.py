"""Batches whose members depend on lengths: windows formed chapter by chapter, counted, found again.

Start at: `batches`, then `chapter`.
May not know: payload.
"""
