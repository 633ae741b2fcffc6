"""How derived files are kept by several processes and machines: who makes one, who reads it, where it lies on a store.

Start at: `share`.
May not know: what a file holds.
"""
