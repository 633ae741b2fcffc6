"""The Dagster code location over `spiral_stream`: relations, statistics, caches, streams, training."""
