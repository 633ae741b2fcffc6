"""What a relation is registered from: its source, where it is found, what its files are, and its groups of storage shards."""
