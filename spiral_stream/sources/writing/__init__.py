"""Rows written as a dataset, by several processes, all of them or none.

Start at: `writer`.
May not know: readers.
"""
