"""Remote bytes on a disk of this node, fetched once for all of its processes.

Start at: `cache`, then `file`.
May not know: what the bytes are.
"""
