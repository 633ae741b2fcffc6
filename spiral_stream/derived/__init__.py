"""Derived data: what is computed from the rows of a relation lies by storage shard, made once, by anyone."""
