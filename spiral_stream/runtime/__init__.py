"""A running stream: numbered batches, drawn, fetched, filled into slots and delivered.

Start at: `run/pipeline`, then `batch/builder`.
May not know: plans: it has stages.
"""
