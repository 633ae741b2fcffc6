"""Arrays and texts to other arrays, as frozen values of the plan: images, tokens, users' functions.

Start at: `transform` (the interface), then `chain`.
May not know: batches, sources.
"""
