"""Pages of relations and catalogs for people.

Start at: `build`.
May not know: streams.
"""
