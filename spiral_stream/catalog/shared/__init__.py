"""A catalog on an object store: records and files that several machines write.

Start at: `records`.
May not know: what a record says.
"""
