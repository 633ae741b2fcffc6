"""One sample's bytes to an array, as frozen values of the plan.

Start at: `decoder` (the interface).
May not know: batches, caches, stores.
"""
