"""What a field of a batch is: stacked, padded, listed, cut into segments; the arithmetic that fills it.

Start at: `field` (the interface), then `stack`.
May not know: where values come from.
"""
