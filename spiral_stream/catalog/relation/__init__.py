"""One registered relation: its entry, its shards and pins, and the reader that opens it.

Start at: `entry`, then `reader`.
May not know: other relations.
"""
